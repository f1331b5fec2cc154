"""Bundles with random weights."""

import argparse
import functools
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from ctranslate2.converters import OpenNMTPyConverter
from relattn_mt import bundle
from relattn_mt.config import ModelConfig, SearchConfig
from relattn_mt.formats.ctranslate2.directory import read_settings
from relattn_mt.formats.import_model import import_model
from relattn_mt.model.transformer import Transformer
from relattn_mt.model.weights import arrays_of
from relattn_mt.support.errors import language_pairs
from relattn_mt.tokens.imported_tokenizer import AnyTokenizer, tokenizer_in
from relattn_mt.tokens.tokenizer import Tokenizer
from relattn_mt.translate.translator import Translator

from tests.support.ctranslate2_engine import CTranslate2Engine

FIXTURES = Path(__file__).parent / "fixtures"
LINES = ["one apple and two pears", "zwei Birnen und ein Apfel", "17 apples, 4 pears", "17 Äpfel, 4 Birnen"]
SEARCH = SearchConfig(
    beam_size=3, length_penalty="average", alpha=0.7, early_stopping=True, max_length_ratio=0.5, max_length_extra=5
)


def bpe_pieces() -> list[str]:
    """Return pieces for the codes fixtures/bpe.model: characters of LINES, and what the merges make."""
    merged = [line.replace(" ", "") for line in (FIXTURES / "bpe.model").read_text().splitlines()[1:]]
    characters = [each + end for each in sorted({*"".join(LINES)} - {" "}) for end in ("", "</w>")]
    return list(dict.fromkeys(x.removesuffix("</w>") if x[-1] == ">" else f"{x}@@" for x in (*characters, *merged)))


def load_export(path: Path) -> Translator:
    """Return a translator of an export, which CTranslate2 runs with one thread."""
    settings = read_settings(path)
    assert settings is not None
    tokenizer = tokenizer_in(path).with_languages(settings.src_lang, settings.tgt_lang)
    engine = CTranslate2Engine(path, tokenizer, settings.max_length, threads=1)
    languages, pairs = (settings.src_lang, settings.tgt_lang), language_pairs(settings.pairs, path)
    return Translator(engine, tokenizer, settings.search, languages=languages, pairs=pairs)


def require_no_tokens_from_text(tokenizer: AnyTokenizer) -> None:
    """Check that names of special tokens and of languages in a text do not become these tokens."""
    special = tokenizer.special
    around = special.bos, special.eos, *special.banned, *special.tgt_begin
    names = {*tokenizer.languages.values(), *(tokenizer.vocabularies[1][i] for i in around)}
    for vocabulary, encode in zip(tokenizer.vocabularies, (tokenizer.encode, tokenizer.encode_target), strict=True):
        tokens = {i for i, piece in enumerate(vocabulary) if piece in names and piece != tokenizer.unknown_piece}
        assert tokens
        for name in names:
            assert tokens.isdisjoint(encode(f"{name} one{name}two {name}{name}"))


@functools.cache
def tokenizer(languages: tuple[str, ...] = ()) -> Tokenizer:
    return Tokenizer.train(LINES * 5, 300, seed=1, languages=languages)


def make_bundle(
    path: Path,
    *,
    search: SearchConfig = SEARCH,
    ends: float = 0.0,
    languages: tuple[str, str] = ("en", "pt_BR"),
    pairs: tuple[tuple[str, str], ...] = (),
    **model: object,
) -> bundle.Bundle:
    """Return the bundle at a path, which is written with random weights if there is none.

    Args:
        path: Directory of the bundle.
        search: Default search.
        ends: The larger, the more translations end by themselves.
        languages: Source and target language.
        pairs: Pairs of languages of a model for several.
        model: Settings of the model. Other settings are small.
    """
    if not path.exists():
        sizes = {"dim": 12, "heads": 3, "feed_forward_dim": 20, "encoder_layers": 2, "decoder_layers": 1}
        clip = {"clip": 3} if "relative" in str(model.get("positions", "relative")) else {}
        config = ModelConfig(**{**sizes, **clip, **model})  # type: ignore[arg-type]
        torch.manual_seed(1)
        pieces = tokenizer(tuple(sorted({tgt for _, tgt in pairs})))
        weights = Transformer(config, pieces.vocab_size)
        with torch.no_grad():
            for parameter in weights.parameters():
                parameter.add_(torch.randn(parameter.shape), alpha=0.3)  # none of them is small
            if ends:
                state = weights.state_dict()
                state["decoder_norm.bias"] += ends * state["embedding"][pieces.special.eos]
        bundle.Bundle(path, config, search, *languages, arrays_of(weights), pieces, pairs).save("# A model\n")
    return bundle.read_bundle(path)


def run_import(path: Path, out: Path, src_lang: str = "", tgt_lang: str = "", **options: Any) -> bundle.Bundle:
    """Import a model of another toolkit, and return its bundle."""
    defaults: dict[str, Any] = {"tokenizer": None, "tgt_tokenizer": None, "sample": 3}
    import_model(path, out, src_lang=src_lang, tgt_lang=tgt_lang, **{**defaults, **options})
    return bundle.read_bundle(out)


def random_lines(words: Sequence[int]) -> list[str]:
    """Return lines with so many words each."""
    draw, vocabulary = random.Random(1), " ".join(LINES).split()
    return [" ".join(draw.choices(vocabulary, k=count)) for count in words]


def convert_opennmt_py(path: Path, *, ends: float = 0.0) -> Path:
    """Convert a model of OpenNMT-py 3.5.1 with random weights for CTranslate2, and return the directory.

    The converter refuses the default attention of OpenNMT-py 3.5, which computes the same as that of 3.4.

    Args:
        path: Directory to write.
        ends: Number that is added to the bias of the end of sentence.
    """
    with torch.serialization.safe_globals([argparse.Namespace]):
        content = torch.load(FIXTURES / "opennmt_py.pt", weights_only=True)
    content["opt"].self_attn_type = "scaled-dot"
    content["generator"]["bias"][content["vocab"]["tgt"].index("</s>")] += ends
    checkpoint = path.with_suffix(".pt")
    torch.save(content, checkpoint)
    OpenNMTPyConverter(str(checkpoint), unsafe_deserialization=True).convert(str(path))
    return path
