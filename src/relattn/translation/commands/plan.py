"""`relattn plan`"""

from relattn.translation.config import Recipe
from relattn.translation.errors import require


def plan(recipe: Recipe, *, devices: int | None = None, measure: int = 0) -> None:
    """Estimate the memory, disk space, tokens and time of a training run.

    Args:
        recipe: YAML file, or name of a known recipe. Each setting can be overridden by a flag.
        devices: Number of devices to distribute each training step over. By default, as in the recipe.
        measure: Number of training steps to run here, on one device, to estimate the total time, at most 1,000. 0
            measures nothing.
    """
    require(0 <= measure <= 1000, f"measure must be at least 0 and at most 1,000, got {measure}")

    from relattn.translation.training import estimate

    if devices is not None:
        recipe = estimate.distribute(recipe, devices)
    print(estimate.plan(recipe, seconds=estimate.seconds_per_step(recipe, measure) if measure else None))
