"""Models that CTranslate2's converters wrote from other toolkits, imported and compared with CTranslate2."""

import json
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import ctranslate2
import pytest
from ctranslate2.converters import MarianConverter, OpusMTConverter, TransformersConverter
from relattn_mt import bundle
from relattn_mt.formats.import_model import import_model
from relattn_mt.translate.options import TranslateOptions

from tests.support import marian_models, transformers_models
from tests.support.covering import pairwise
from tests.support.foreign_bundles import FIXTURES, LINES, convert_opennmt_py, random_lines

TEXT, LONGEST = [*LINES, *random_lines(range(1, 13))], 30


def require_agreement(
    converted: Path, out: Path, *tokenizers: Path, languages: tuple[str, str] = ("en", "de"), compared: int
) -> bundle.Bundle:
    """Import what a converter wrote, and compare scores of given texts and all hypotheses, with and without a beam.

    Args:
        converted: Directory for CTranslate2.
        out: Directory of the bundle.
        tokenizers: SentencePiece models of the source, and of the target.
        languages: Source and target language.
        compared: Minimum number of searches that are compared. Those of a beam at the length limit, or with tokens
            that only CTranslate2 generates, are not.
    """
    import_model(
        converted, out, tokenizer=tokenizers[0], tgt_tokenizer=tokenizers[-1], src_lang=languages[0],
        tgt_lang=languages[1], sample=TEXT,
    )  # fmt: skip
    parts = bundle.read_bundle(out)
    ours, special = parts.translator(), parts.tokenizer.special
    src_pieces, tgt_pieces = parts.tokenizer.vocabularies
    theirs = ctranslate2.Translator(str(converted), compute_type="float32", intra_threads=1)
    src, tgt = [parts.tokenizer.encode(x) for x in TEXT], [parts.tokenizer.encode_target(x) for x in TEXT[::-1]]
    adds_end = json.loads((converted / "config.json").read_text())["add_source_eos"]
    after = [] if adds_end else special.src_end
    sources = [[src_pieces[i] for i in (*special.src_begin, *row, *after)] for row in src]
    begin = [tgt_pieces[i] for i in special.tgt_begin]
    targets = [[*begin, *(tgt_pieces[i] for i in row)] for row in tgt]
    for mine, its in zip(ours.log_probs(src, tgt), theirs.score_batch(sources, targets), strict=True):
        assert mine == pytest.approx(its.log_probs[len(begin) :], abs=1e-4)
    never = {tgt_pieces[i] for i in special.banned}
    for beam_size in (1, 4):
        search = replace(parts.search, beam_size=beam_size, max_length_ratio=0.0, max_length_extra=LONGEST)
        found = ours.n_best(TEXT, TranslateOptions(search=search, n_best=beam_size, copy=False))
        results = theirs.translate_batch(
            sources, target_prefix=[begin] * len(sources), beam_size=beam_size, num_hypotheses=beam_size,
            return_scores=True, min_decoding_length=0, max_decoding_length=LONGEST - 1 + len(begin),
        )  # fmt: skip
        for mine, result in zip(found, results, strict=True):
            its = [pieces[len(begin) :] for pieces in result.hypotheses]
            is_cut = max(map(len, its)) == LONGEST - 1  # where CTranslate2 adds no end, whose score may change a beam
            if never.isdisjoint(chain(*its)) and (beam_size == 1 or not is_cut):
                compared -= 1
                assert [[tgt_pieces[i] for i in each.tokens] for each in mine] == its
                if not is_cut:
                    assert [each.score for each in mine] == pytest.approx(result.scores, abs=1e-5)
    assert compared <= 0
    return parts


@pairwise(
    norm=["pre", "post"],
    activation=["relu", "gelu", "swish"],
    embeddings=["d", "nd"],
    shared=[True, False],
    converter=["marian", "opus-mt"],
    quantization=[None, "float16"],
)
def test_marian(tmp_path, norm, activation, embeddings, shared, converter, quantization):
    options: dict[str, Any] = {"transformer-ffn-activation": activation, "shared": shared, "norm": norm}
    options["transformer-postprocess-emb"] = embeddings
    model = marian_models.write(tmp_path / "model", **options)
    names = ["vocab.yml"] if shared else ["source.vocab.yml", "target.vocab.yml"]
    if converter == "marian":
        made = MarianConverter(str(model / "model.npz"), [str(model / name) for name in names])
    else:
        made = OpusMTConverter(str(model))
    made.convert(str(tmp_path / "converted"), quantization=quantization)
    spm = model / "source.spm", model / "target.spm"
    parts = require_agreement(tmp_path / "converted", tmp_path / "bundle", *spm, compared=24)
    assert parts.model.activation == activation.replace("gelu", "gelu_sigmoid")
    again = parts.tokenizer
    assert again.decode(again.encode_target(LINES[3])) == LINES[3]


def test_opennmt_py(tmp_path):
    converted = convert_opennmt_py(tmp_path / "converted", ends=3.0)  # some translations end by themselves
    parts = require_agreement(converted, tmp_path / "bundle", FIXTURES / "sentencepiece.model", compared=16)
    assert (parts.model.clip, parts.model.shared_embeddings) == (3, "target")


MULTILINGUAL: dict[str, tuple[dict[str, Any], tuple[str, str], int, int]] = {
    # options, so that the empty translation is unlikely; languages; their number; searches that are compared
    "m2m_100": ({"end": 3.5}, ("en", "de"), 100, 20),
    "nllb": ({"end": 2.5}, ("eng_Latn", "deu_Latn"), 3, 20),
    "mbart_50": ({"end": 1.5}, ("en_XX", "de_DE"), 52, 16),
    "marian": ({"languages": ("deu", "fra"), "draw": (0.2, 1.0)}, ("en", "fra"), 2, 16),
}


@pytest.mark.parametrize("adds_end", [False, True])
@pytest.mark.parametrize("kind", MULTILINGUAL)
def test_transformers_and_fairseq(tmp_path, kind, adds_end):
    """The converter of fairseq writes a multilingual model as that of transformers does, but adds an end to sources."""
    options, languages, count, compared = MULTILINGUAL[kind]
    getattr(transformers_models, kind)(tmp_path / "model", **options)
    TransformersConverter(str(tmp_path / "model")).convert(str(tmp_path / "converted"))
    config = json.loads((tmp_path / "converted" / "config.json").read_text())
    assert not config["add_source_eos"]
    config |= {"add_source_eos": adds_end, "bos_token": config["bos_token"] or "<s>"}  # transformers 5 gives mBART none
    (tmp_path / "converted" / "config.json").write_text(json.dumps(config))
    names = ("source.spm", "target.spm") if kind == "marian" else ("sentencepiece.bpe.model",)
    spm = [tmp_path / "model" / name for name in names]
    parts = require_agreement(tmp_path / "converted", tmp_path / "bundle", *spm, languages=languages, compared=compared)
    assert len(parts.tokenizer.vocabulary.languages) == count
