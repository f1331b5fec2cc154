"""Models of transformers' own classes, imported and compared with transformers."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from relattn_mt import bundle
from relattn_mt.config import SearchConfig
from relattn_mt.data.batching import collate
from relattn_mt.formats import argos
from relattn_mt.formats.ctranslate2 import write as ctranslate2
from relattn_mt.support.errors import InputError
from relattn_mt.training.objective import summed_loss
from relattn_mt.translate.glossary import Glossary
from relattn_mt.translate.options import TranslateOptions
from transformers import M2M100ForConditionalGeneration, M2M100Tokenizer

from tests.support import transformers_models as models
from tests.support.bundles import tensors_of
from tests.support.commands import assert_refused
from tests.support.foreign_bundles import LINES, random_lines, require_no_tokens_from_text, run_import

TEXT = [*LINES, *random_lines(range(1, 13))]
CASES: dict[str, tuple[Any, dict[str, Any], tuple[str, str]]] = {
    "marian": (models.marian, {"generation": {"renormalize_logits": True}}, ("en", "de")),
    "marian to several languages": (
        models.marian, {"languages": ("deu", "fra"), "activation_function": "quick_gelu", "scale_embedding": False,
                        "draw": (0.2, 3.0)}, ("en", "fra")),
    "marian with two vocabularies": (
        models.marian, {"separate": True, "activation_function": "gelu_new", "draw": (0.2, 4.0)}, ("en", "de")),
    "m2m_100": (models.m2m_100, {}, ("en", "de")),
    "nllb": (models.nllb, {"generation": {"early_stopping": False, "length_penalty": 0.6}}, ("eng_Latn", "deu_Latn")),
    "nllb, legacy": (models.nllb, {"legacy": True, "scale_embedding": False}, ("eng_Latn", "deu_Latn")),
    "mbart_50": (models.mbart_50, {}, ("en_XX", "de_DE")),
    "mbart_50, other settings": (
        models.mbart_50, {"scale_embedding": False, "activation_function": "relu", "is_new": True}, ("fr_XX", "en_XX")),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_imported_models_agree_with_transformers(tmp_path, case):
    make, options, (src_lang, tgt_lang) = CASES[case]
    theirs, tokenizer = make(tmp_path / "model", **options)
    parts = run_import(tmp_path / "model", tmp_path / "bundle", src_lang, tgt_lang)
    require_no_tokens_from_text(parts.tokenizer)
    ours, in_pytorch, special = parts.translator(), parts.torch_translator(), parts.tokenizer.special
    assert ours.engine.name.startswith("compiled engine")
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
        assert mine.tokens == row[: row.index(special.eos) if special.eos in row else len(row)]

    how = {"num_return_sequences": 4, "return_dict_in_generate": True, "output_scores": True}
    out = theirs.generate(**encoded, **forced, **how)
    options = TranslateOptions(n_best=4, copy=False)
    complete = 0
    for i, (mine, again) in enumerate(zip(ours.n_best(TEXT, options), in_pytorch.n_best(TEXT, options), strict=True)):
        assert [each.tokens for each in mine] == [each.tokens for each in again]
        rows = out.sequences[4 * i : 4 * i + 4, 1 + given :].tolist()
        ends = [row.index(special.eos) if special.eos in row else len(row) for row in rows]
        if max(ends) < theirs.generation_config.max_length - 2 - given:  # where an end costs nothing in transformers
            complete += 1
            assert [each.tokens for each in mine] == [row[:end] for row, end in zip(rows, ends, strict=True)]
            expected = out.sequences_scores[4 * i : 4 * i + 4].tolist()
            assert [each.score for each in mine] == pytest.approx(expected, abs=1e-5)
    assert complete >= 4


@pytest.fixture(scope="module")
def multilingual(tmp_path_factory) -> tuple[Path, bundle.Bundle]:
    """An M2M-100 model, and its bundle from English to German. Read them, do not write to them."""
    path = tmp_path_factory.mktemp("multilingual")
    models.m2m_100(path / "model")
    return path / "model", run_import(path / "model", path / "bundle", "en", "de")


def test_weights_in_other_files(multilingual, tmp_path):
    """One file of safetensors, several, a checkpoint of PyTorch with all copies of shared weights, and float16."""
    path, parts = multilingual
    weights = safetensors.torch.load_file(path / "model.safetensors")
    for kind in ("shards", "checkpoint", "float16"):
        copy = Path(shutil.copytree(path, tmp_path / kind))
        (copy / "model.safetensors").unlink()
        state = dict(weights)
        if kind == "checkpoint":  # as transformers 4 wrote it
            shared = ("lm_head", "model.encoder.embed_tokens", "model.decoder.embed_tokens")
            state |= {f"{name}.weight": weights["model.shared.weight"] for name in shared}
            state |= {"model.encoder.embed_positions.weights": torch.ones(3, 24)}
            torch.save(state, copy / "pytorch_model.bin")
        elif kind == "float16":
            safetensors.torch.save_file({n: x.half() for n, x in state.items()}, copy / "model.safetensors")
        else:
            files = {name: f"model-0000{1 + at % 2}-of-00002.safetensors" for at, name in enumerate(state)}
            for file in {*files.values()}:
                safetensors.torch.save_file({n: state[n] for n in state if files[n] == file}, copy / file)
            (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
        again = run_import(copy, tmp_path / f"{kind}.bundle", "en", "de")
        tolerance = {"rtol": 1e-3, "atol": 1e-3} if kind == "float16" else {"rtol": 0, "atol": 0}
        torch.testing.assert_close(tensors_of(again), tensors_of(parts), **tolerance)


def test_settings_of_the_search(tmp_path):
    """Also in config.json, as old models have them; what has another effect here is named.

    In transformers, a translation at the length limit has no end, unless one is forced, as in Marian by default.
    """
    models.marian(tmp_path / "model")
    (tmp_path / "model" / "generation_config.json").unlink()
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    del config["forced_eos_token_id"]
    old = {"num_beams": 6, "max_length": 50, "bad_words_ids": [[config["pad_token_id"]]], "length_penalty": 1.3}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config | old))
    expected = SearchConfig(
        beam_size=6, length_penalty="average", alpha=1.3, early_stopping="heuristic", max_length_ratio=0.0,
        max_length_extra=49,
    )  # fmt: skip
    assert run_import(tmp_path / "model", tmp_path / "bundle").search == expected
    more = {"early_stopping": "never", "no_repeat_ngram_size": 3, "max_new_tokens": 9, "min_length": 2}
    more |= {"bad_words_ids": [[3, 4]], "forced_eos_token_id": 5, "length_penalty": -1.0, "do_sample": False}
    (tmp_path / "model" / "generation_config.json").write_text(json.dumps(more))
    parts = run_import(tmp_path / "model", tmp_path / "b")
    expected = SearchConfig(
        beam_size=1, length_penalty="average", alpha=1.0, no_repeat_ngram=3, max_length_ratio=0.0, max_length_extra=9
    )
    assert parts.search == expected
    (tmp_path / "model" / "generation_config.json").write_text(json.dumps({"max_new_tokens": 9}))
    assert run_import(tmp_path / "model", tmp_path / "c").search.max_length_extra == 10
    for name in ("min_length", "bad_words_ids", "forced_eos_token_id", "length_penalty -1", "no_repeat_ngram"):
        assert name in parts.card
    assert "do_sample" not in parts.card


def test_languages(relattn, multilingual, tmp_path):
    path, parts = multilingual
    french = parts.tokenizer.with_languages("de", "fr")
    expected = run_import(path, tmp_path / "bundle", "de", "fr").tokenizer
    assert (french.special, french.digest) == (expected.special, expected.digest)
    assert french.special.tgt_begin != parts.tokenizer.special.tgt_begin
    for languages, fact in (
        (["--src_lang", "en"], "give --src_lang and --tgt_lang"),
        (["--src_lang", "en", "--tgt_lang", "dee"], "unknown tgt_lang 'dee'; did you mean de?"),
        (["--src_lang", "xx", "--tgt_lang", "de"], "unknown src_lang 'xx'"),
    ):
        result = relattn("import", path, "--out", tmp_path / "out", *languages)
        assert_refused(result, f"relattn-mt: error: {path}: ")
        assert fact in result.err
        assert not (tmp_path / "out").exists()


def test_given_first_tokens_in_all_searches(multilingual):
    """They belong to no translation and to no score, and the compiled engine finds what PyTorch finds."""
    _, parts = multilingual
    ours, in_pytorch = parts.translator(), parts.torch_translator()
    search = replace(parts.search, max_length_ratio=0.0, max_length_extra=12)
    plain = TranslateOptions(search=search, copy=False)
    glossary = Glossary([(1, "pears", "Birnen")])
    for options, prefix in (
        (replace(plain, align=True), None),
        (plain, "zwei Bir"),
        (replace(plain, glossary=glossary), None),
        (replace(plain, search=replace(search, no_repeat_ngram=2, repetition_penalty=1.2)), None),
        (replace(plain, keep_tags=True), None),
    ):
        lines = [f"<b>{line}</b>" for line in LINES] if options.keep_tags else LINES
        prefixes = None if prefix is None else [prefix] * len(lines)
        found, again = (each.n_best(lines, options, prefixes=prefixes) for each in (ours, in_pytorch))
        for line, mine, its in zip(LINES, found, again, strict=True):
            for one, other in zip(mine, its, strict=True):
                assert (one.text, one.tokens, one.alignment) == (other.text, other.tokens, other.alignment)
                assert "__" not in one.text
                assert one.text.startswith(prefix or "")
                assert "Birnen" in one.text or options.glossary is None or "pears" not in line
                if options.search is search:
                    (scores,) = ours.log_probs([parts.tokenizer.encode(line)], [one.tokens])
                    assert one.mean_log_prob == pytest.approx(sum(scores) / len(scores), abs=1e-4)


def test_legacy_tokenizers_are_exported_without_argos(tmp_path):
    models.nllb(tmp_path / "nllb", legacy=True)
    legacy = run_import(tmp_path / "nllb", tmp_path / "nllb.bundle", "eng_Latn", "deu_Latn")
    report = ctranslate2.export(legacy, tmp_path / "nllb.out", quantization="float32", sample=TEXT)
    assert report.parities["float32"].worst < 1e-4
    with pytest.raises(InputError, match="does not add the special tokens"):
        argos.export(replace(legacy, src_lang="en", tgt_lang="de"), tmp_path / "x", quantization="int8", sample=LINES)


def test_training_continues_with_given_first_tokens(multilingual):
    """The loss is that of transformers, without the given tokens."""
    path, parts = multilingual
    theirs = M2M100ForConditionalGeneration.from_pretrained(path).eval()
    special = parts.tokenizer.special
    src, tgt = [[5, 6, 7], [8]], [[9, 10], [11, 12, 13]]
    batch = collate(src, tgt, special)
    model = parts.make_model().eval()
    expected = 0.0
    for source, target in zip(src, tgt, strict=True):
        labels = torch.tensor([[*special.tgt_begin, *target, special.eos]])
        ids = torch.tensor([[*special.src_begin, *source, *special.src_end]])
        with torch.no_grad():
            log_probs = theirs(input_ids=ids, labels=labels).logits.log_softmax(-1)[0, 1:]
        expected -= float(log_probs.gather(1, labels[0, 1:, None]).sum())
    assert summed_loss(model, batch).item() == pytest.approx(expected, rel=1e-5)


def test_languages_that_were_added_to_m2m_100(multilingual, tmp_path):
    """An added language has its token's id. Other added tokens, which divide a text, are refused."""
    path, _ = multilingual
    tokenizer = M2M100Tokenizer.from_pretrained(path)
    tokenizer.add_tokens(["__kab__"], special_tokens=True)
    copy = Path(shutil.copytree(path, tmp_path / "added"))
    tokenizer.save_pretrained(copy)
    for name in ("added_tokens.json", "tokenizer_config.json"):  # which both have it
        added = Path(shutil.copytree(copy, tmp_path / f"from {name}"))
        if name == "added_tokens.json":
            settings = json.loads((added / "tokenizer_config.json").read_text())
            del settings["added_tokens_decoder"]
            (added / "tokenizer_config.json").write_text(json.dumps(settings))
        else:
            (added / "added_tokens.json").unlink()
        parts = run_import(added, tmp_path / f"{name[:5]}.bundle", "en", "kab")
        (begin,) = parts.tokenizer.special.tgt_begin
        assert begin == tokenizer.convert_tokens_to_ids("__kab__")
    tokenizer.add_tokens(["Birnen"])
    tokenizer.save_pretrained(copy)
    with pytest.raises(InputError, match=r"added tokens must be of languages, such as __en__, got 'Birnen'"):
        run_import(copy, tmp_path / "other", "en", "de")
    copy = tmp_path / "from added_tokens.json"
    (copy / "added_tokens.json").write_text(json.dumps({"__kab__": 5}))
    with pytest.raises(InputError, match=r"the added token '__kab__' must have an id after those of vocab.json, got 5"):
        run_import(copy, tmp_path / "other", "en", "de")


def test_an_adapter_is_refused(multilingual, tmp_path):
    """Beside a model and alone."""
    copy = Path(shutil.copytree(multilingual[0], tmp_path / "adapted"))
    (copy / "adapter_config.json").write_text("{}")
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(copy / "adapter_config.json", alone)
    for path in (copy, alone):
        with pytest.raises(InputError, match=r"must have no adapter, got adapter_config\.json; .*merge_and_unload"):
            run_import(path, tmp_path / "other", "en", "de")
