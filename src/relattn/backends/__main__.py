"""What attention runs on here, one line per backend: `python -m relattn.backends`."""

from relattn.backends import BACKENDS

for name, module in BACKENDS.items():
    print(f"{name}: {module.CAPABILITIES} ({module.CAPABILITIES.installation()})")
