"""`relattn recipe`"""


def recipe(name: str) -> None:
    """Print a known recipe as YAML, or one that continues the training of a bundle on other text.

    Examples: `relattn recipe wmt14-en-de-base > my.yaml`, and `relattn recipe opus-en-de > tune.yaml` for a bundle.

    Args:
        name: Name of a recipe: wmt14-en-de-base, wmt14-en-de-big, wmt14-en-fr-base, wmt14-en-fr-big or
            t2t-relative-base. Or the directory of a bundle, or the name of a model: everyday-en-de, or org/name on the
            hub.
    """
    from pathlib import Path

    from relattn.translation.config import dump
    from relattn.translation.config.presets import PRESETS
    from relattn.translation.errors import unknown

    if name in PRESETS and not Path(name).is_dir():
        print(dump(PRESETS[name]), end="")
        return

    from relattn.translation.hub import resolve
    from relattn.translation.training.initial import fine_tuning_recipe

    if not resolve(name).is_dir():
        raise unknown("recipe", name, PRESETS)
    print(dump(fine_tuning_recipe(name)), end="")
