"""Print the backends and what they support on this machine: `python -m relattn.backends`."""

from relattn.backends import BACKENDS

for name, module in BACKENDS.items():
    print(f"{name}: {module.CAPABILITIES} ({module.CAPABILITIES.installation()})")
