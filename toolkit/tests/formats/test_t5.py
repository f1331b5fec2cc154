"""Models of T5's kinds, imported and compared with transformers."""

import json
import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from relattn_mt import bundle
from relattn_mt.formats.ctranslate2 import write as ctranslate2
from relattn_mt.support.errors import InputError
from relattn_mt.translate.options import TranslateOptions

from tests.support import transformers_models as models
from tests.support.bundles import tensors_of
from tests.support.commands import assert_refused
from tests.support.foreign_bundles import (
    LINES,
    load_export,
    random_lines,
    require_no_tokens_from_text,
    run_import,
)

TEXT = [*LINES, *random_lines(range(1, 13))]
GATED = {"feed_forward_proj": "gated-gelu"}
MADLAD = {"tied": False, "languages": ("de", "en", "zh_Hant"), **GATED}
CASES: dict[str, dict[str, Any]] = {
    "T5": {"end": 3.0},
    "T5 1.1": {"tied": False, **GATED},
    "tied and gated": {"feed_forward_proj": "gated-silu", "d_ff": 33},
    "untied and not gated": {"tied": False, "d_kv": 16, "num_layers": 3, "num_decoder_layers": 2},
    "mT5": {"kind": "MT5", "tied": False},
    "UMT5": {"kind": "UMT5", "tied": False},
    "UMT5, tied": {"kind": "UMT5", "num_decoder_layers": 2},
    "MADLAD-400": MADLAD,
}


def log_probs(model: Any, src: list[int], tgt: list[int]) -> list[float]:
    """Return transformers' log-probability of each token of a target, whose end is included, in float64."""
    labels = torch.tensor([tgt])
    with torch.no_grad():
        logits = model.double()(input_ids=torch.tensor([src]), labels=labels).logits[0]
    return logits.log_softmax(-1).gather(1, labels[0, :, None])[:, 0].tolist()


@pytest.mark.parametrize("case", CASES)
def test_imported_models_agree_with_transformers(tmp_path, case):
    """Also beams, and what CTranslate2 makes of the export."""
    theirs, tokenizer = models.t5(tmp_path / "model", **CASES[case])
    parts = run_import(tmp_path / "model", tmp_path / "bundle", "en", "de")
    require_no_tokens_from_text(parts.tokenizer)
    ours, in_pytorch, special = parts.translator(), parts.torch_translator(), parts.tokenizer.special
    assert ours.engine.name.startswith("compiled engine")
    code = "<2de> " if "languages" in CASES[case] else ""
    encoded = tokenizer([code + line for line in TEXT])["input_ids"]
    src, tgt = [parts.tokenizer.encode(x) for x in TEXT], [parts.tokenizer.encode_target(x) for x in TEXT[::-1]]
    assert [[*special.src_begin, *mine, *special.src_end] for mine in src] == encoded
    scores, again = ours.log_probs(src, tgt), in_pytorch.log_probs(src, tgt)
    for ids, mine, score, other in zip(encoded, tgt, scores, again, strict=True):
        expected = log_probs(theirs, ids, [*mine, special.eos])
        assert score == pytest.approx(expected, abs=1e-4)
        assert other == pytest.approx(expected, abs=1e-4)

    found = ours.n_best(TEXT, TranslateOptions(n_best=4, copy=False))
    padded = tokenizer.pad({"input_ids": encoded}, return_tensors="pt")
    how = {"num_return_sequences": 4, "return_dict_in_generate": True, "output_scores": True}
    out = theirs.generate(**padded, **how, suppress_tokens=list(special.banned))
    complete = 0
    for i, hypotheses in enumerate(found):
        rows = out.sequences[4 * i : 4 * i + 4, 1:].tolist()
        ends = [row.index(special.eos) if special.eos in row else len(row) for row in rows]
        if max(ends) < theirs.generation_config.max_length - 2:  # where an end costs nothing in transformers
            complete += 1
            assert [each.tokens for each in hypotheses] == [row[:end] for row, end in zip(rows, ends, strict=True)]
            expected = out.sequences_scores[4 * i : 4 * i + 4].tolist()
            assert [each.score for each in hypotheses] == pytest.approx(expected, abs=1e-4)
    assert complete >= 4

    report = ctranslate2.export(parts, tmp_path / "export", quantization="float32", sample=TEXT)
    assert report.parities["float32"].lines == len(TEXT)
    exported = load_export(tmp_path / "export").log_probs(src, tgt)
    for mine, its in zip(scores, exported, strict=True):
        assert its == pytest.approx(mine, abs=1e-4)
    with pytest.raises(InputError, match="import the model of transformers instead"):
        run_import(tmp_path / "export", tmp_path / "again", "en", "de")


@pytest.mark.parametrize("case", ["T5", "UMT5"])
def test_biases_at_any_length(tmp_path, case):
    """Longer than 512 pieces on both sides, with a step per target piece in the compiled engine."""
    theirs, _ = models.t5(tmp_path / "model", **CASES[case], generation={"max_length": 700})
    parts = run_import(tmp_path / "model", tmp_path / "bundle", "en", "de")
    special = parts.tokenizer.special
    src, tgt = ([parts.tokenizer.encode(line)] for line in random_lines([300, 280]))
    assert min(len(src[0]), len(tgt[0])) > 512
    (found,), (again,) = (each.log_probs(src, tgt) for each in (parts.translator(), parts.torch_translator()))
    expected = log_probs(theirs, [*special.src_begin, *src[0], *special.src_end], [*tgt[0], special.eos])
    assert found == pytest.approx(expected, abs=1e-4)
    assert again == pytest.approx(expected, abs=1e-4)


def peak(function: Any, *arguments: Any) -> int:
    """Return the most bytes that Python and NumPy have allocated during a call."""
    tracemalloc.start()
    try:
        function(*arguments)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_weights_of_several_files_are_read_one_at_a_time(tmp_path):
    models.t5(tmp_path / "model", **MADLAD, shards="1MB", d_ff=5000, num_layers=4)  # 0.5 MB per matrix
    assert len([*(tmp_path / "model").glob("model-*.safetensors")]) > 3
    total = sum(file.stat().st_size for file in (tmp_path / "model").glob("model-*.safetensors"))
    assert peak(run_import, tmp_path / "model", tmp_path / "bundle", "en", "de") < total / 2
    whole = bundle.read_bundle(tmp_path / "bundle")
    assert peak(bundle.quantize_bundle, whole, tmp_path / "int8") < total / 2
    assert bundle.read_bundle(tmp_path / "int8").is_quantized
    weights = {}
    for file in (tmp_path / "model").glob("model-*.safetensors"):
        weights |= safetensors.torch.load_file(file)
        file.unlink()
    (tmp_path / "model" / "model.safetensors.index.json").unlink()
    torch.save(weights, tmp_path / "model" / "pytorch_model.bin")
    again = run_import(tmp_path / "model", tmp_path / "again", "en", "de")
    torch.testing.assert_close(tensors_of(again), tensors_of(whole), rtol=0, atol=0)


def test_languages_of_madlad(relattn, tmp_path):
    models.t5(tmp_path / "model", **MADLAD)
    (tmp_path / "model" / "README.md").write_text("---\nlicense: apache-2.0\nlanguage:\n- de\n---\n# MADLAD\n")
    parts = run_import(tmp_path / "model", tmp_path / "bundle", "en", "de")
    pieces = parts.tokenizer.vocabularies[0]
    assert set(parts.tokenizer.languages) == {"de", "en", "zh_Hant"}
    assert "apache-2.0" in parts.card
    for code in ("de", "zh_Hant"):
        special = parts.tokenizer.with_languages("xx", code).special
        assert [pieces[i] for i in special.src_begin] == [f"<2{code}>"]
    translator = parts.translator()
    options = TranslateOptions(copy=False)
    one, other = (translator.with_languages("en", code).n_best(LINES, options) for code in ("de", "zh_Hant"))
    assert [best.text for (best,) in one] != [best.text for (best,) in other]
    assert not any("<2" in best.text for (best,) in (*one, *other))
    assert len(translator.pairs) == 6
    result = relattn(
        "import", tmp_path / "model", "--out", tmp_path / "out", "--src_lang", "en", "--tgt_lang", "zh_Hans"
    )
    assert_refused(result, "relattn-mt: error: ")
    assert "unknown tgt_lang 'zh_Hans'; did you mean zh_Hant?" in result.err


def test_prompts_of_pairs(tmp_path):
    """As in the pipeline of transformers: config.json has the text before each source of a pair."""
    _, tokenizer = models.t5(tmp_path / "model", **CASES["T5"])
    prompts = {pair: f"two {word}:" for pair, word in (("en_to_de", "Birnen"), ("en_to_fr", "pears"))}
    tasks = {f"translation_{pair}": {"prefix": f"{text} "} for pair, text in prompts.items()}
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    config["task_specific_params"] = {**tasks, "summarization": {"prefix": "summarize: "}}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    parts = run_import(tmp_path / "model", tmp_path / "bundle", "en", "de")
    translator = parts.translator()
    assert translator.pairs == [("en", "de"), ("en", "fr")]
    for code, text in (("de", prompts["en_to_de"]), ("fr", prompts["en_to_fr"])):
        own = translator.with_languages("en", code).tokenizer
        for line, ids in zip(LINES, tokenizer([f"{text} {line}" for line in LINES])["input_ids"], strict=True):
            assert [*own.special.src_begin, *own.encode(line), *own.special.src_end] == ids
    other = run_import(tmp_path / "model", tmp_path / "other", "en", "es")
    assert (other.tokenizer.special.src_begin, other.translator().pairs) == ((), [("en", "es")])
    assert "prompts, before sources of these pairs only: en de, en fr" in other.card


def test_what_is_not_supported_is_named(relattn, tmp_path):
    models.t5(tmp_path / "model")
    for changes, facts in (
        ({"relative_attention_num_buckets": 64}, ["relative_attention_num_buckets 64"]),
        (
            {"relative_attention_max_distance": 256, "feed_forward_proj": "gated-tanh"},
            ["relative_attention_max_distance 256", "feed_forward_proj gated-tanh"],
        ),
        ({"d_kv": 12}, ["q.weight must have shape (36, 24), got (30, 24)"]),
        ({"num_layers": 3}, ["encoder.block.2.layer.0.SelfAttention.q.weight is missing"]),
        ({"num_layers": 1}, ["weight encoder.block.1"]),
        ({"feed_forward_proj": "gated-gelu"}, ["DenseReluDense.wi"]),
        ({"architectures": ["T5EncoderModel"]}, ["architectures must be"]),
        (
            {"model_type": "umt5", "architectures": None},
            ["encoder.block.1.layer.0.SelfAttention.relative_attention_bias"],
        ),
        ({"vocab_size": 9}, ["must have at most 9 pieces"]),
    ):
        changed = Path(shutil.copytree(tmp_path / "model", tmp_path / "changed", dirs_exist_ok=True))
        config = json.loads((changed / "config.json").read_text()) | changes
        (changed / "config.json").write_text(json.dumps(config))
        result = relattn("import", changed, "--out", tmp_path / "out", "--src_lang", "en", "--tgt_lang", "de")
        assert_refused(result, "relattn-mt: error: ")
        for fact in facts:
            assert fact in result.err
        assert not (tmp_path / "out").exists()
    for name, value in (("tokenizer_class", "ByT5Tokenizer"), ("auto_map", {"AutoTokenizer": "code.T"})):
        changed = Path(shutil.copytree(tmp_path / "model", tmp_path / "changed", dirs_exist_ok=True))
        file = changed / "tokenizer_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {name: value}))
        result = relattn("import", changed, "--out", tmp_path / "out", "--src_lang", "en", "--tgt_lang", "de")
        assert_refused(result, "relattn-mt: error: ")
        assert name in result.err
