"""`BatchTranslator`, with the tables of other libraries, compared with the translations of a translator."""

import functools
import multiprocessing
import pickle

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from relattn_mt import BatchTranslator, load
from relattn_mt.support.errors import InputError
from relattn_mt.translate.options import TranslateOptions

LINES = ["one cat sat", "", "on two mat and one cat", "-", "two"] * 3
IDS = list(range(len(LINES)))


@functools.cache
def expected(model: str, **options: bool) -> dict[str, list]:
    results = [best for (best,) in load(model).n_best(LINES, TranslateOptions(**options))]
    table = {
        "score": [round(each.score, 4) for each in results],
        "confidence": [round(each.confidence, 4) for each in results],
        "translation": [each.text for each in results],
        "warnings": [" ".join(each.warnings) for each in results],
    }
    alignments = [" ".join(f"{i}-{j}" for i, j in each.alignment) for each in results]
    return table | ({"alignment": alignments} if options else {})


@pytest.mark.parametrize("convert", [list, np.array, lambda x: np.array(x, dtype=object), pa.array, pd.Series])
@pytest.mark.parametrize("options", [{}, {"align": True}])
def test_columns_are_those_of_the_translator(model, convert, options):
    translate = BatchTranslator(model, TranslateOptions(**options))
    before, batch = pickle.dumps(translate), {"id": convert(IDS), "text": convert(LINES)}
    result = translate(batch)
    assert pickle.dumps(translate) == before  # libraries that cache results compare it
    assert all(result.pop(name) is batch[name] for name in ("id", "text"))
    want = expected(model, **options)
    assert any(want["warnings"])
    assert {name: result[name] for name in want} == want == result
    again = pickle.loads(before)
    assert again.translator is translate.translator  # loaded once


def test_a_table_of_datasets_and_one_of_pandas(model, tmp_path):
    want = expected(model)
    table = datasets.Dataset.from_dict({"id": IDS, "line": LINES})
    translate = BatchTranslator(model, column="line")
    mapped = table.map(translate, batched=True, batch_size=4, load_from_cache_file=False)
    assert mapped.to_dict() == {"id": IDS, "line": LINES, **want}
    frame = pd.DataFrame({"line": LINES}, index=[i + 7 for i in IDS])
    pd.testing.assert_frame_equal(frame.assign(**translate(dict(frame))), frame.assign(**want))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_other_processes_get_a_copy(model, method):
    translate = BatchTranslator(model, threads=1)
    translate({"text": LINES})
    with multiprocessing.get_context(method).Pool(1) as pool:
        results = pool.map(translate, [{"text": LINES[:7]}, {"text": LINES[7:]}, {"text": []}], chunksize=1)
    want = expected(model)
    assert {name: [*results[0][name], *results[1][name], *results[2][name]] for name in want} == want


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"line": ["a"]}, "a batch must have a column 'text', got line"),
        ({}, "a batch must have a column 'text', got none"),
        ({"text": ["a"], "score": [1.0]}, "a batch must not have a column score"),
        ({"text": ["a", None]}, "line 2: column 'text' must be text, got null"),
        ({"text": np.array([1, 2])}, "line 1: column 'text' must be text, got int"),
        ({"text": pa.array([b"a"])}, "line 1: column 'text' must be text, got bytes"),
        ({"text": pd.Series(["a", float("nan")], dtype=object)}, "line 2: column 'text' must be text, got float"),
        ({"text": ["a", "a" * 20_000]}, "line 2 must have at most 16,384 characters, got 20,000"),
        (["a"], "a batch must be a dict of columns, got list"),
    ],
)
def test_wrong_batches(model, batch, message):
    with pytest.raises(InputError, match=f"^{message}"):
        BatchTranslator(model)(batch)


def test_wrong_arguments(tmp_path):
    with pytest.raises(InputError, match="n_best must be 1 for a table, got 2"):
        BatchTranslator("anything", TranslateOptions(n_best=2))
    translate = BatchTranslator(str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match=r"nowhere: no such directory"):
        translate({"text": ["a"]})
