"""A bundle on the Hugging Face hub: a repository named `org/name` that holds the bundle's files.

What is fetched is kept in the cache of `huggingface_hub` (under HF_HOME), and loads from there without a network too.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import relattn
from relattn.translation.errors import InputError

if TYPE_CHECKING:
    from huggingface_hub import HfApi

    from relattn.translation import bundle

_NAME = re.compile(r"(\w[\w.-]*/\w[\w.-]*)(?:@(\S+))?", re.ASCII)  # org/name, org/name@revision


def resolve(path: str | Path) -> Path:
    """The directory of a bundle: `path`, or where the files are kept of a model that `path` names on the hub.

    Args:
        path: a directory, which wins where there is one, or `org/name`, or `org/name@` with a branch, tag or commit.

    Returns:
        The directory, for `bundle.load` to check: `path` itself where it exists or cannot be a name.

    Raises:
        InputError: the hub has no such model, or not for this user; it is no bundle; or it cannot be fetched.
    """
    named = _NAME.fullmatch(str(path))
    if named is None or Path(path).exists():
        return Path(path)
    from relattn.translation.bundle import CONFIG, WEIGHTS, tokenizer_files  # imports PyTorch; exports need none

    name, revision = named.groups()
    with asking(f"{path}: no such directory here, and from the hub") as api:
        commit = api.resolve_revision(name, revision=revision)
        config = Path(api.hf_hub_download(name, CONFIG, revision=commit))
        for file in (*tokenizer_files(config), WEIGHTS):  # the largest last, of a bundle and no other model
            api.hf_hub_download(name, file, revision=commit)
    return config.parent


def push(path: str | Path, name: str, *, private: bool = False, license: str = "") -> str:
    """Put a bundle on the hub in one commit, with its card as the model card, and return the address of its page.

    The repository is made if there is none. What stands in it besides the bundle's files is left alone.

    Args:
        path: directory of the bundle, which is loaded first, so that none goes out that would not load.
        name: `org/name`, with the user's own name or an organisation's.
        private: the repository is to be private; one that exists and is public is then refused.
        license: the model's licence, by the hub's name for it ("mit", "cc-by-4.0"); empty leaves it to the card.

    Raises:
        InputError: the bundle does not load, `name` is no name, nobody is logged in, or the hub refuses.
    """
    from relattn.translation.bundle import CARD, CONFIG, WEIGHTS, read_bundle

    parts = read_bundle(path)
    parts.translator()
    named = _NAME.fullmatch(name)
    if named is None or named[2]:
        raise InputError(f"{name}: not a name for a model on the hub, which is org/name")
    with asking(f"{name}: not pushed") as api:
        from huggingface_hub import CommitOperationAdd, get_token

        if get_token() is None:
            raise InputError(f"{name}: not pushed: log in first: `hf auth login`, or set HF_TOKEN")
        card = _model_card(parts, license)
        url = str(api.create_repo(name, private=private or None, exist_ok=True))
        if private and not api.model_info(name).private:
            raise InputError(f"{name}: not pushed: it was to be private, but the repository exists and is public")
        files = [CommitOperationAdd(file, Path(path) / file) for file in (CONFIG, WEIGHTS, *parts.tokenizer.files)]
        files.append(CommitOperationAdd(CARD, card.encode()))
        api.create_commit(name, files, commit_message=f"A bundle of relattn {relattn.__version__}")
    return url


def _model_card(parts: bundle.Bundle, license: str) -> str:
    """The bundle's card with the front matter that the hub reads; what the card says there itself is kept."""
    from huggingface_hub import ModelCard

    text = parts.card
    card = ModelCard(text if text.startswith("---\n") else f"---\n{{}}\n---\n\n{text}")
    locales = [re.split("[-_]", locale)[0].lower() for locale in (parts.src_lang, parts.tgt_lang)]
    codes = [code for code in dict.fromkeys(locales) if re.fullmatch("[a-z]{2,3}", code)]  # ISO 639, as the hub asks
    ours = {"language": codes or None, "library_name": "relattn", "tags": ["translation"], "license": None}
    for name, value in ours.items():
        card.data[name] = card.data.get(name) or value
    if license:
        card.data["license"] = license
    return str(card)


@contextmanager
def asking(doing: str, kind: str = "model") -> Iterator[HfApi]:
    """The hub's interface; whatever goes wrong while it is used is an InputError that begins with `doing`.

    `kind` is what the hub calls the repository that is asked for: a model, a dataset.

    Requests tell the versions of relattn, huggingface_hub and Python, and nothing else about the system. The library's
    own warnings, a line for each attempt to connect, are not shown: what matters of them is in the error.
    """
    try:
        from huggingface_hub import HfApi, constants
    except ImportError as error:
        raise InputError(f'{doing}: needs huggingface_hub: pip install "relattn[hub]"') from error
    log = logging.getLogger("huggingface_hub")
    level, telemetry = log.level, constants.HF_HUB_DISABLE_TELEMETRY
    log.setLevel(logging.ERROR)
    constants.HF_HUB_DISABLE_TELEMETRY = True
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "Not enough free disk space")
            yield HfApi(library_name="relattn", library_version=relattn.__version__)
    except InputError:
        raise
    except Exception as error:  # of many families: HTTP's, the system's, the hub's own, those of its storage
        raise InputError(f"{doing}: {_reason(error, kind)}") from error
    finally:
        log.setLevel(level)
        constants.HF_HUB_DISABLE_TELEMETRY = telemetry


def _reason(error: BaseException, kind: str) -> str:
    """What went wrong with the hub, in one line."""
    from huggingface_hub import errors

    if isinstance(error, errors.RevisionResolutionError | errors.LocalEntryNotFoundError) and error.__cause__:
        return f"not in the cache, and {_reason(error.__cause__, kind)}"
    said = (str(error).strip() or type(error).__name__).splitlines()[0]
    if not isinstance(error, errors.HfHubHTTPError):
        return said
    if isinstance(error, errors.RevisionNotFoundError):
        return f"the {kind} has no such revision"
    if isinstance(error, errors.RemoteEntryNotFoundError):
        whole = "not a complete bundle: it" if kind == "model" else f"the {kind}"
        return f"{whole} has no {error.response.url.path.rpartition('/')[2]}"
    said = (error.server_message or said).splitlines()[0]
    if isinstance(error, errors.RepositoryNotFoundError) and not isinstance(error, errors.GatedRepoError):
        said = f"no such {kind}, or a private one"
    return f"{said}; to log in: `hf auth login`, or set HF_TOKEN" if error.response.status_code < 500 else said
