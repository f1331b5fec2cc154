"""Models by name: those of this package, and bundles and models of transformers on the Hugging Face hub (`org/name`).

Downloaded files stay in the cache of `huggingface_hub` (under HF_HOME), and load from there without a network.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from relattn_mt.firefox import is_name
from relattn_mt.support.console import is_quiet, log_level
from relattn_mt.support.errors import InputError, install_command
from relattn_mt.version import __version__

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_NAME = re.compile(r"(\w[\w.-]*/\w[\w.-]*)(?:@(\S+))?", re.ASCII)  # org/name, org/name@revision


def resolve(path: str | Path) -> Path:
    """Return the directory of a bundle, which is downloaded if `path` is a name on the hub or of a model of Firefox.

    Args:
        path: a directory, which takes precedence if it exists; or the name of a model of this package, such as
            "everyday-en-de"; or `org/name`; or `org/name@revision` with a branch, tag or commit; or `firefox:en-de`.

    Returns:
        The directory, unchecked; `path` itself if it exists or is not a valid name.

    Raises:
        InputError: The hub has no such model, denies access to it, or cannot be reached; or the model is not a bundle;
            or a model of Firefox cannot be had, or a pair requires two.
    """
    directory, *others = resolve_route(path)
    if others:
        raise InputError(f"{path}: Firefox translates this pair with two models, through English; name one of them")
    return directory


def resolve_route(path: str | Path) -> list[Path]:
    """Return the directory of a bundle, as `resolve`, or the two of a pair that Firefox translates through English."""
    if is_name(path) and not Path(path).exists():
        from relattn_mt.firefox.cache import bundles

        return bundles(str(path))
    from relattn_mt.bundle import CONFIG, PACKAGED, TOKENIZER_FILES, WEIGHTS, packaged_models

    name, revision = name_on_hub(path)
    if not name:
        is_packaged = str(path) in packaged_models() and not Path(path).exists()
        return [PACKAGED / path if is_packaged else Path(path)]
    from relattn_mt.config.settings import read_json_settings

    with hub_errors(f"{path}: no such directory here, and from the hub") as api:
        commit = api.resolve_revision(name, revision=revision)
        config = Path(api.hf_hub_download(name, CONFIG, revision=commit))
        imported = read_json_settings(config).get("tokenizer") == "imported"
        for file in (*TOKENIZER_FILES["imported" if imported else "own"], WEIGHTS):  # the largest last
            api.hf_hub_download(name, file, revision=commit)
    return [config.parent]


def name_on_hub(path: str | Path) -> tuple[str, str | None]:
    """Return the name and the revision of a model on the hub; an empty name for an existing path or another string."""
    match = _NAME.fullmatch(str(path))
    return ("", None) if match is None or Path(path).exists() else (match[1], match[2])


def fetch_foreign(path: str | Path) -> Path:
    """Return the directory of a model of transformers, which is downloaded if `path` is a name on the hub.

    Only files that the import reads are downloaded: settings first, then weights, in one format.

    Raises:
        InputError: As `resolve`, or the architecture is not supported.
    """
    name, revision = name_on_hub(path)
    if not name:
        return Path(path)
    from relattn_mt.formats.transformers import directory as transformers

    with hub_errors(f"{path}: no such directory here, and from the hub") as api:
        commit = api.resolve_revision(name, revision=revision)
        found = {file.rfilename for file in api.model_info(name, revision=commit, files_metadata=True).siblings or []}
        transformers.require_no_adapter(found, path)
        small = [file for file in transformers.SMALL_FILES if file in found or file == transformers.CONFIG]
        local = Path(api.hf_hub_download(name, transformers.CONFIG, revision=commit)).parent
        try:
            transformers.read_config(local)
            for file in small:
                api.hf_hub_download(name, file, revision=commit)
            for file in transformers.weight_files(local, found):
                api.hf_hub_download(name, file, revision=commit)
        except InputError as error:
            raise InputError(str(error).replace(str(local), str(path))) from error
    return local


@contextmanager
def hub_errors(prefix: str) -> Iterator[HfApi]:
    """Provide the interface of the hub, and turn every error into an InputError that begins with `prefix`.

    The name and version of relattn, huggingface_hub and Python are sent with each request; nothing else about the
    system is. Warnings of `huggingface_hub`, one per attempt to connect, are not shown: the error has the reason.

    Downloads show progress unless `is_quiet`.
    """
    try:
        from huggingface_hub import HfApi, constants
        from huggingface_hub.utils import disable_progress_bars
    except ImportError as error:
        raise InputError(f"{prefix}: needs huggingface_hub: {install_command('hub')}") from error
    telemetry = constants.HF_HUB_DISABLE_TELEMETRY
    if is_quiet():
        disable_progress_bars()
    constants.HF_HUB_DISABLE_TELEMETRY = True
    try:
        with warnings.catch_warnings(), log_level(logging.ERROR, "huggingface_hub"):
            warnings.filterwarnings("error", "Not enough free disk space")
            yield HfApi(library_name="relattn-mt", library_version=__version__)
    except InputError:
        raise
    except Exception as error:  # HTTP, the system, the hub and its storage raise many types
        raise InputError(f"{prefix}: {_reason(error)}") from error
    finally:
        constants.HF_HUB_DISABLE_TELEMETRY = telemetry


def _reason(error: BaseException) -> str:
    """Return the reason of an error of the hub, in one line."""
    from huggingface_hub import errors

    if isinstance(error, errors.RevisionResolutionError | errors.LocalEntryNotFoundError) and error.__cause__:
        return f"not in the cache, and {_reason(error.__cause__)}"
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    if not isinstance(error, errors.HfHubHTTPError):
        return reason
    if isinstance(error, errors.RevisionNotFoundError):
        return "the model has no such revision"
    if isinstance(error, errors.RemoteEntryNotFoundError):
        return f"not a complete bundle: it has no {error.response.url.path.rpartition('/')[2]}"
    reason = (error.server_message or reason).splitlines()[0]
    if isinstance(error, errors.RepositoryNotFoundError) and not isinstance(error, errors.GatedRepoError):
        reason = "no such model, or a private one"
    log_in = "; to log in: `hf auth login`, or set HF_TOKEN" if error.response.status_code < 500 else ""
    return reason + log_in
