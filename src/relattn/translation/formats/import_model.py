"""From a path to a bundle: what model lies there, whether it says the same here, and what is kept of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from relattn.translation import bundle
from relattn.translation.config import DataConfig, Recipe, dump
from relattn.translation.errors import InputError
from relattn.translation.formats import eole, opennmt_py
from relattn.translation.formats.ctranslate2 import read as ctranslate2
from relattn.translation.formats.ctranslate2.translator import MODEL, CTranslate2Translator
from relattn.translation.formats.foreign_model import Found
from relattn.translation.formats.parity import FARTHEST, Reference
from relattn.translation.formats.sample import likely_lines
from relattn.translation.translate.torch_translator import TorchTranslator


def import_model(
    path: Path,
    out: Path,
    *,
    tokenizer: Path | None,
    tgt_tokenizer: Path | None,
    src_lang: str,
    tgt_lang: str,
    sample: Sequence[str] | int,
) -> str:
    """Make a bundle of a model of another toolkit, and say what was found.

    One that CTranslate2 runs is checked with it, where it is installed: what it makes of our translations of some
    lines, token by token, its weights in float32.

    Args:
        path: of the model: a checkpoint of OpenNMT-py, a directory of eole or one for CTranslate2.
        out: directory of the bundle.
        tokenizer: file of a SentencePiece model, of the source or of both sides.
        tgt_tokenizer: of the target's, where it has one of its own.
        src_lang: of the source; empty for what the model says.
        tgt_lang: of the target.
        sample: lines to check it with, or how many to draw from its vocabulary.

    Raises:
        InputError: a file is missing, damaged or none of such a model; the model has what ours have not; a language is
            not known; the check fails; or `out` holds something else or cannot be written.
    """
    found = read(path, tokenizer, tgt_tokenizer)
    src_lang, tgt_lang = src_lang or found.languages[0], tgt_lang or found.languages[1]
    if not (src_lang and tgt_lang):
        raise InputError(f"{path}: does not say which languages it translates: give --src_lang and --tgt_lang")
    model = found.model()
    translator, config = TorchTranslator(model, found.tokenizer, found.search), found.config
    told = [
        f"{found.toolkit}: {config.positions} positions; {config.encoder_layers} and {config.decoder_layers} layers, "
        f"dim {config.dim}, feed-forward {config.feed_forward_dim:,}, {config.heads} heads; vocabularies of "
        f"{' and '.join(f'{size:,}' for size in found.tokenizer.vocab_sizes)} pieces; "
        f"{sum(p.numel() for p in model.parameters()):,} weights"
    ]
    if (path / MODEL).is_file() and find_spec("ctranslate2") is None:
        told.append("not checked: ctranslate2 is not installed")
    elif (path / MODEL).is_file():
        lines = likely_lines(found.tokenizer, sample, longest=model.max_length) if isinstance(sample, int) else sample
        theirs = CTranslate2Translator(
            path, found.tokenizer, found.search, max_length=model.max_length, compute_type="float32"
        )
        parity = Reference.of(translator, lines, found.search).compare(theirs)
        if not parity.worst <= FARTHEST:
            raise InputError(f"{path}: not imported: it would not say the same: {parity}")
        told.append(str(parity))
    recipe = Recipe(model=config, data=DataConfig(src_lang=src_lang, tgt_lang=tgt_lang), search=found.search)
    bundle.save(out, model=model, recipe=recipe, tokenizer=found.tokenizer, card=_card(found, recipe, told))
    return "\n\n".join(told)


def read(path: Path, tokenizer: Path | None, tgt_tokenizer: Path | None) -> Found:
    """The model that lies at a path, whatever toolkit it is from. Arguments and errors are those of `import_model`."""
    if (path / MODEL).is_file():
        reader = ctranslate2.read
    elif path.is_dir() and any(path.glob(eole.WEIGHTS)):
        reader = eole.read
    elif path.is_file():
        reader = opennmt_py.read
    elif path.is_dir():
        raise InputError(f"{path}: holds no {MODEL} as for CTranslate2, and no {eole.WEIGHTS} as of eole")
    else:
        raise InputError(f"{path}: no such file or directory")
    return reader(path, tokenizer, tgt_tokenizer)


def _card(found: Found, recipe: Recipe, told: Sequence[str]) -> str:
    """What a bundle says of where it comes from, with the part of a recipe that trains it further."""
    of_model = re.search(r"^model:\n(?: .*\n)+", dump(recipe), re.M)
    assert of_model is not None
    return (
        f"# {recipe.data.src_lang} → {recipe.data.tgt_lang}\n\n"
        f"A Transformer with {recipe.model.positions} positions, imported from {found.toolkit}.\n\n"
        "    relattn translate PATH < in.txt > out.txt\n\n"
        "## Recipe\n\nTo train it further, give a recipe this model, and its path as `train.init_from`:\n\n"
        f"```yaml\n{of_model[0]}```\n\n## Import\n\n" + "\n\n".join(told) + "\n"
    )
