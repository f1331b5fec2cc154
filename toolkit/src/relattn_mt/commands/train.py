"""`relattn-mt train`"""

from relattn_mt.config import Recipe


def train(recipe: Recipe, *, resume: bool = False) -> None:
    """Train the model that a recipe defines, and print the path of its bundle.

    RECIPE is a YAML file. Each setting can be overridden by a flag. Ctrl-C, SIGTERM or
    SIGHUP saves a checkpoint and stops the run; --resume continues it.

    Args:
        recipe: YAML file.
        resume: Continue from the newest checkpoint in the run's directory.
    """
    from relattn_mt.training.train import train as run
    from relattn_mt.training.worker import is_first_process

    path = run(recipe, resume=resume)
    if is_first_process():
        print(path)
