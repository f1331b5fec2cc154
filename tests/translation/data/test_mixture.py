"""Mixtures of corpora: shares, whole passes and drawn pairs; lists of corpora and their errors."""

from __future__ import annotations

from collections import Counter
from itertools import takewhile
from pathlib import Path

import numpy as np
import pytest

from relattn.translation.config import DataConfig
from relattn.translation.data.encode import load_data
from relattn.translation.data.mixture import Mixture, read_corpus_list
from relattn.translation.errors import InputError


def test_without_weights_an_epoch_has_each_pair_once():
    mixture = Mixture.weighted([3, 1, 5], [1, 1, 1])
    assert mixture == Mixture((3, 1, 5), (3, 1, 5))
    assert mixture.epoch(1, 0) is None
    assert [mixture.corpus(pair) for pair in range(9)] == [0, 0, 0, 1, 2, 2, 2, 2, 2]


def test_weights_are_passes_over_a_corpus():
    mixture = Mixture.weighted([30, 40], [2.5, 0.25])
    assert mixture.draws == (75, 10)
    counts = Counter(mixture.epoch(1, 0).tolist())
    assert Counter(counts[pair] for pair in range(30)) == {2: 15, 3: 15}
    assert sum(counts[pair] for pair in range(30, 70)) == len([p for p in counts if p >= 30]) == 10


def test_what_is_drawn_is_a_pure_function_of_seed_and_epoch():
    mixture = Mixture.weighted([300, 40], [0.5, 3])
    drawn = {key: frozenset(mixture.epoch(*key).tolist()) for key in ((1, 0), (1, 1), (2, 0))}
    assert drawn[1, 0] == frozenset(mixture.epoch(1, 0).tolist())
    assert len(set(drawn.values())) == 3
    seen = frozenset().union(*(mixture.epoch(1, epoch).tolist() for epoch in range(20)))
    assert seen == frozenset(range(340))  # every pair is drawn in some epoch


@pytest.mark.parametrize("temperature", [1, 2, 5, 1e6])
def test_temperature_flattens_the_shares(temperature):
    sizes, weights = [1000, 10], [1, 2]
    wanted = np.array([1000.0, 20.0]) ** (1 / temperature)
    expected = 1020 * wanted / wanted.sum()
    assert Mixture.weighted(sizes, weights, temperature).draws == tuple(round(x) for x in expected.tolist())


def test_a_small_share_is_one_pair_at_least():
    assert Mixture.weighted([10_000, 1], [1, 1e-6]).draws == (10_000, 1)


def listed(tmp_path: Path, text: str) -> str:
    (tmp_path / "corpora").mkdir(exist_ok=True)
    (tmp_path / "corpora" / "list.tsv").write_text(text, encoding="utf-8")
    return str(tmp_path / "corpora" / "list.tsv")


def test_a_list_names_files_from_its_own_directory(tmp_path):
    path = listed(tmp_path, "# ours\na.en\tb de.gz\n\n/far/c.en\t../c.de\t0.5\n")
    here = tmp_path / "corpora"
    assert read_corpus_list(path) == [
        (str(here / "a.en"), str(here / "b de.gz"), 1.0),
        ("/far/c.en", str(here / "../c.de"), 0.5),
    ]


@pytest.mark.parametrize(
    "line", ["a.en", "a\tb\tc", "a\tb\t0", "a\tb\t-1", "a\tb\tnan", "a\tb\tinf", "a\tb\t1e9", "a\t\t1", "a\tb\t1\t2"]
)
def test_errors_name_the_line_of_a_list(tmp_path, line):
    with pytest.raises(InputError, match=r"list\.tsv, line 2: must be a source file, a target file"):
        read_corpus_list(listed(tmp_path, f"x\ty\n{line}\n"))


def test_an_empty_list_is_refused(tmp_path):
    with pytest.raises(InputError, match="must list at least one corpus"):
        read_corpus_list(listed(tmp_path, "# nothing\n"))


def test_a_validation_set_has_no_weight(tmp_path):
    with pytest.raises(InputError, match=r"list\.tsv, line 2: validation text must have no weight, got"):
        read_corpus_list(listed(tmp_path, "a\tb\nx\ty\t3\n"), weighted=False)


@pytest.fixture
def corpora(tmp_path):
    """Settings with a list of two corpora, with 30 and 6 pairs, and a list of two validation sets."""
    for name, lines in {"news": 30, "talks": 6, "v": 4, "w": 3}.items():
        for side in ("en", "de"):
            text = "".join(f"{name} {side} {i}\n" if i != 1 else "\n" for i in range(lines))
            (tmp_path / f"{name}.{side}").write_text(text, encoding="utf-8")
    (tmp_path / "train.tsv").write_text("news.en\tnews.de\ntalks.en\ttalks.de\t3\n")
    (tmp_path / "valid.tsv").write_text("v.en\tv.de\nw.en\tw.de\n")
    return {"train_list": str(tmp_path / "train.tsv"), "valid_list": str(tmp_path / "valid.tsv"), "vocab_size": 400}


def test_a_run_trains_on_a_mixture_and_knows_each_pair(tmp_path, corpora):
    """The text of each pair is its corpus and line. Empty lines are dropped."""
    data = load_data(DataConfig(**corpora, max_tokens=64), tmp_path / "run", seed=1)
    assert data.dropped["empty"] == 2
    assert [(valid.name, len(valid.pairs)) for valid in data.valid] == [("v.en", 3), ("w.en", 2)]
    seen: Counter[str] = Counter()
    for step in takewhile(lambda step: step.epoch == 0, data.train.steps()):
        texts = [data.tokenizer.decode(row) for batch in step.micro_batches for row in batch.src.tolist()]
        seen.update(texts)
        origin = data.train.origin((step.epoch, step.index))
        assert sorted(texts) == sorted(f"{name.removesuffix('.en')} en {line - 1}" for name, line in origin)
    assert seen == {f"news en {i}": 1 for i in range(30) if i != 1} | {f"talks en {i}": 3 for i in range(6) if i != 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "news.en\tnews.de\ntalks.en\ttalks.de\t2\n",
            r"train_list: the weight of talks\.en must be 3 in this run, got 2",
        ),
        ("news.en\tnews.de\n", "train_list must have 2 corpora in this run, got 1"),
        (
            "news.en\tnews.de\nnews.en\tnews.de\t3\n",
            r"train_list: .*news\.en must have the text that this run started with",
        ),
    ],
)
def test_a_list_that_changed_is_refused(tmp_path, corpora, text, message):
    config = DataConfig(**corpora)
    load_data(config, tmp_path / "run", seed=1)
    Path(config.train_list).write_text(text)
    with pytest.raises(InputError, match=message):
        load_data(config, tmp_path / "run", seed=1)


def test_a_list_and_files_are_one_too_many():
    with pytest.raises(InputError, match="train_list must not be set together with train_src"):
        DataConfig(train_list="l", train_src="a", train_tgt="b")
    with pytest.raises(InputError, match="valid_src and valid_list require train_src or train_list"):
        DataConfig(valid_list="l")
