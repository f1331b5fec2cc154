"""`relattn plan`"""

from relattn.translation.config import Recipe
from relattn.translation.errors import require


def plan(recipe: Recipe, *, devices: int | None = None, measure: int = 0) -> None:
    """Estimate the memory, disk space, tokens and time of a training run.

    Args:
        recipe: YAML file, or name of a known recipe. Each setting can be overridden by a flag.
        devices: Number of devices to distribute each training step over. By default, as in the recipe.
        measure: Number of training steps to run here, on one device, to estimate the total time. 0 measures nothing.
    """
    require(measure >= 0, f"measure must be at least 0, got {measure}")

    from relattn.translation.training import estimate

    if devices is not None:
        recipe = estimate.distribute(recipe, devices)
    print(estimate.plan(recipe, seconds=estimate.seconds_per_step(recipe, measure) if measure else None))
