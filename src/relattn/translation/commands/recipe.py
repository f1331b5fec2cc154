"""`relattn recipe`"""


def recipe(name: str) -> None:
    """Print a known recipe as YAML, or one that continues the training of a bundle on other text.

    Examples: `relattn recipe wmt14-en-de-base > my.yaml`, and `relattn recipe opus-en-de > tune.yaml` for a bundle.

    Args:
        name: Name of a recipe: wmt14-en-de-base, wmt14-en-de-big, wmt14-en-fr-base, wmt14-en-fr-big or
            t2t-relative-base. Or the directory of a bundle.
    """
    from pathlib import Path

    from relattn.translation.config import dump
    from relattn.translation.config.presets import PRESETS
    from relattn.translation.errors import unknown

    if Path(name).is_dir():
        from relattn.translation.training.initial import fine_tuning_recipe

        print(dump(fine_tuning_recipe(name)), end="")
        return
    if name not in PRESETS:
        raise unknown("recipe", name, PRESETS)
    print(dump(PRESETS[name]), end="")
