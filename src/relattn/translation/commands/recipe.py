"""`relattn recipe`"""


def recipe(name: str) -> None:
    """Print a known recipe as YAML: relattn recipe wmt14-en-de-base > my.yaml

    Args:
        name: Name of the recipe: wmt14-en-de-base, wmt14-en-de-big, wmt14-en-fr-base, wmt14-en-fr-big or
            t2t-relative-base.
    """
    from relattn.translation.config import dump
    from relattn.translation.config.presets import PRESETS
    from relattn.translation.errors import unknown

    if name not in PRESETS:
        raise unknown("recipe", name, PRESETS)
    print(dump(PRESETS[name]), end="")
