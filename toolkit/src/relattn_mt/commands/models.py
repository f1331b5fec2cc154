"""`relattn-mt models`"""

from itertools import chain
from typing import Literal

from relattn_mt.firefox import PREFIX
from relattn_mt.firefox.cache import cached, parse
from relattn_mt.firefox.registry import fetch_models
from relattn_mt.support.errors import require
from relattn_mt.support.files import as_size
from relattn_mt.support.files import remove as remove_directory


def models(source: Literal["cached", "firefox"] = "cached", *, remove: list[str] = []) -> None:  # noqa: B006
    """List the models of Firefox that are in the cache, with their sizes, or those that Mozilla offers.

    A line of the offered ones has the name, the architecture, the status, the size, whether the cache has the model,
    and the scores on Flores.

    Args:
        source: cached, for what is in the cache; firefox, for what Mozilla offers.
        remove: Names of models to remove from the cache: firefox:en-de, or of one version, firefox:en-de@3.0.
    """
    removed = {name: cached(*parse(name)) for name in remove}
    for name, paths in removed.items():
        require(paths, f"--remove must name a model in the cache, got {name}")
    require(not (remove and source == "firefox"), "--remove must be without firefox, since it prints no list")
    for path in chain.from_iterable(removed.values()):
        remove_directory(path)
        require(not path.exists(), f"{path}: cannot be removed")
        print(f"removed: {path}")
    if remove:
        return
    if source == "cached":
        for path in cached():
            size = as_size(sum(file.stat().st_size for file in path.iterdir()))
            print(f"{PREFIX}{path.parent.name}@{path.name.rpartition('-')[2]}\t{size}\t{path}")
        return
    for model in fetch_models():
        name = f"{PREFIX}{'-'.join(model.pair)}@{model.version}"
        status = "released" if model.is_released else "pre-release"
        state = "cached" if cached(model.pair, model.version, model.architecture) else ""
        print("\t".join([name, model.architecture, status, model.size, state, model.score]))
