"""Models of transformers' own classes, imported and compared with transformers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from ctranslate2.converters import TransformersConverter

from relattn.translation import bundle
from relattn.translation.formats.import_model import import_model
from relattn.translation.translate.options import TranslateOptions
from tests.translation.formats import transformers_models as models
from tests.translation.formats.bundles import LINES, random_lines

MAX_LENGTH = 40
TEXT = [*LINES, *random_lines(range(1, 13))]
CASES: dict[str, tuple[Any, dict[str, Any], tuple[str, str]]] = {
    "marian": (models.marian, {"generation": {"renormalize_logits": True}}, ("en", "de")),
    "marian to several languages": (
        models.marian,
        {"languages": ("deu", "fra"), "activation_function": "relu", "scale_embedding": False, "draw": (0.2, 3.0)},
        ("en", "fra"),
    ),
    "marian with two vocabularies": (
        models.marian,
        {"separate": True, "activation_function": "gelu_new", "draw": (0.2, 4.0)},
        ("en", "de"),
    ),
    "m2m_100": (models.m2m_100, {}, ("en", "de")),
    "nllb": (models.nllb, {"generation": {"early_stopping": False, "length_penalty": 0.6}}, ("eng_Latn", "deu_Latn")),
    "nllb, legacy": (models.nllb, {"legacy": True, "scale_embedding": False}, ("eng_Latn", "deu_Latn")),
}


def run_import(path: Path, out: Path, src_lang: str = "", tgt_lang: str = "", **options: Any) -> bundle.Bundle:
    defaults = {"tokenizer": None, "tgt_tokenizer": None, "sample": 3}
    import_model(path, out, **{**defaults, **options, "src_lang": src_lang, "tgt_lang": tgt_lang})
    return bundle.read_bundle(out)


@pytest.mark.parametrize("case", CASES)
def test_imported_models_agree_with_transformers(tmp_path, case):
    make, options, (src_lang, tgt_lang) = CASES[case]
    theirs, tokenizer = make(tmp_path / "model", **options)
    parts = run_import(tmp_path / "model", tmp_path / "bundle", src_lang, tgt_lang)
    ours, in_pytorch, special = parts.translator(), parts.translator(), parts.tokenizer.special
    assert ours.engine.startswith("compiled decoder")
    in_pytorch.pytorch_reason = "for this test"
    if make is not models.marian:
        tokenizer.src_lang, tokenizer.tgt_lang = src_lang, tgt_lang
    code = f">>{tgt_lang}<<" if "languages" in options else ""
    encoded = tokenizer([code + line for line in TEXT], return_tensors="pt", padding=True)
    src, tgt = [parts.tokenizer.encode(x) for x in TEXT], [parts.tokenizer.encode_target(x) for x in TEXT[::-1]]
    for ids, mask, mine in zip(encoded.input_ids, encoded.attention_mask, src, strict=True):
        assert ids[mask.bool()].tolist() == [*special.src_begin, *mine, *special.src_end]
    for row, mine in zip(tokenizer(text_target=TEXT[::-1]).input_ids, tgt, strict=True):
        assert [token for token in row if token not in (*special.tgt_begin, special.eos)] == mine

    given = len(special.tgt_begin)
    scores = ours.log_probs(src, tgt)
    for i, mine in enumerate(tgt):
        labels = torch.tensor([[*special.tgt_begin, *mine, special.eos]])
        row = {name: tensor[i : i + 1] for name, tensor in encoded.items()}
        with torch.no_grad():
            logits = theirs(**row, labels=labels).logits[0, given:]
        if options.get("generation", {}).get("renormalize_logits"):
            logits[:, theirs.config.pad_token_id] = -torch.inf
        expected = logits.log_softmax(-1).gather(1, labels[0, given:, None])[:, 0]
        assert scores[i] == pytest.approx(expected.tolist(), abs=1e-5)

    forced = {"forced_bos_token_id": special.tgt_begin[0]} if given else {}
    out = theirs.generate(**encoded, **forced, num_beams=1)
    greedy = TranslateOptions(search=replace(parts.search, beam_size=1), copy=False)
    for (mine,), row in zip(ours.n_best(TEXT, greedy), out[:, 1 + given :].tolist(), strict=True):
        assert row[: len(mine.tokens)] == mine.tokens
        assert len(mine.tokens) >= parts.search.max_length_extra - 1 or row[len(mine.tokens)] == special.eos

    how = {"num_return_sequences": 4, "return_dict_in_generate": True, "output_scores": True}
    out = theirs.generate(**encoded, **forced, **how)
    options = TranslateOptions(n_best=4, copy=False)
    complete = 0
    for i, (mine, again) in enumerate(zip(ours.n_best(TEXT, options), in_pytorch.n_best(TEXT, options), strict=True)):
        assert [each.tokens for each in mine] == [each.tokens for each in again]
        rows = out.sequences[4 * i : 4 * i + 4, 1 + given :].tolist()
        ends = [row.index(special.eos) if special.eos in row else len(row) for row in rows]
        if max(ends) < parts.search.max_length_extra - 1:  # at the limit, an end costs nothing in transformers
            complete += 1
            assert [each.tokens for each in mine] == [row[:end] for row, end in zip(rows, ends, strict=True)]
            expected = out.sequences_scores[4 * i : 4 * i + 4].tolist()
            assert [each.score for each in mine] == pytest.approx(expected, abs=1e-5)
    assert complete >= 4


@pytest.mark.parametrize("case", ["marian", "marian to several languages", "m2m_100", "nllb"])
def test_what_the_converter_of_ctranslate2_wrote_is_the_same_model(tmp_path, case):
    make, options, (src_lang, tgt_lang) = CASES[case]
    make(tmp_path / "model", **options)
    TransformersConverter(str(tmp_path / "model")).convert(str(tmp_path / "converted"))
    names = {"tokenizer": "source.spm", "tgt_tokenizer": "target.spm"}
    files = {name: tmp_path / "model" / file for name, file in names.items()}
    if make is not models.marian:
        files = {"tokenizer": tmp_path / "model" / "sentencepiece.bpe.model"}
    report = import_model(
        tmp_path / "converted", tmp_path / "bundle", src_lang=src_lang, tgt_lang=tgt_lang, sample=TEXT,
        **{"tgt_tokenizer": None, **files},
    )  # fmt: skip
    if case != "nllb":  # where the empty translation is likely, which CTranslate2 forbids after a given first token
        assert report.parities["float32"].same == len(TEXT)
    own = run_import(tmp_path / "model", tmp_path / "own", src_lang, tgt_lang)
    parts = bundle.read_bundle(tmp_path / "bundle")
    assert parts.tokenizer.special._replace(bos=0, banned=()) == own.tokenizer.special._replace(bos=0, banned=())
    search = TranslateOptions(search=replace(parts.search, max_length_ratio=0.0, max_length_extra=20), copy=False)
    found = parts.translator().n_best(TEXT, search)
    if options.get("generation", {}).get("renormalize_logits") or make is not models.marian:
        assert [one.tokens for (one,) in found] == [one.tokens for (one,) in own.translator().n_best(TEXT, search)]
