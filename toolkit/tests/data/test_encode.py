"""Data of a run: encoded once, opened again, refused if the text has changed; mixtures and lists of corpora."""

import gzip
from collections import Counter
from itertools import islice, takewhile
from pathlib import Path

import numpy as np
import pytest
from relattn_mt.config import AugmentConfig, DataConfig, Recipe
from relattn_mt.data import storage
from relattn_mt.data.encode import load_data
from relattn_mt.data.mixture import Mixture, read_corpus_list
from relattn_mt.data.storage import open_pairs, write_pairs
from relattn_mt.support.errors import InputError
from relattn_mt.tokens import text_files

SRC = [f"the cat number {i} sat on the mat" for i in range(40)] + ["", "short", " \u200b ", "long " * 62, "a b", "c d"]
TGT = [f"die Katze Nummer {i} saß auf der Matte" for i in range(40)]
TGT += ["leer", "kurz", "x", "lang", "lang " * 62, "eins"]
SETTINGS = ["train_src", "train_tgt", "valid_src", "valid_tgt"]


@pytest.fixture
def files(tmp_path):
    paths = {}
    for name, lines in zip(SETTINGS, (SRC, TGT, SRC[:7], TGT[:7]), strict=True):
        paths[name] = str(tmp_path / name)
        Path(paths[name]).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return paths


def load(tmp_path, *, tokenizer=None, check=True, **fields):
    config = DataConfig(**{"vocab_size": 400, "max_tokens": 100, **fields})
    return load_data(Recipe(out=str(tmp_path / "run"), data=config), tokenizer=tokenizer, check=check)


def texts(data, steps):
    """Return the decoded pairs of the first steps."""
    decode = data.tokenizer.decode
    batches = [batch for step in islice(data.train.steps(), steps) for batch in step.micro_batches]
    rows = [row for b in batches for row in zip(b.src.tolist(), b.tgt_out.tolist(), strict=True)]
    return [(decode(src), decode(tgt)) for src, tgt in rows]


def written(directory):
    return {path: path.stat().st_mtime_ns for path in directory.rglob("*")}


@pytest.mark.parametrize("copies", [20, 21])
def test_a_text_that_was_not_translated_is_reported(files, tmp_path, caplog, copies):
    for name, lines in (("train_src", SRC[:40]), ("train_tgt", SRC[:copies] + TGT[copies:40])):
        Path(files[name]).write_text("\n".join(lines), encoding="utf-8")
    load(tmp_path, **files)
    assert ("the same text in 21 of 40 pairs" in caplog.text) == (copies > 20)


def test_an_epoch_is_the_text_without_dropped_pairs(files, tmp_path):
    data = load(tmp_path, **files, max_length=60)
    steps = next(i for i, step in enumerate(data.train.steps()) if step.epoch == 1)
    pairs = list(zip(SRC, TGT, strict=True))
    assert sorted(texts(data, steps)) == sorted([*pairs[:40], pairs[41], pairs[45]])
    assert data.dropped == {"empty": 2, "max_length": 2}
    (valid,) = data.valid
    assert (valid.name, valid.pairs) == ("valid_src", pairs[:7])
    rows = [row for batch in valid.batches for row in batch.tgt_out.tolist()]
    assert sorted(map(data.tokenizer.decode, rows)) == sorted(TGT[:7])


def test_a_later_session_opens_what_the_first_wrote(files, tmp_path, monkeypatch):
    """The text may have moved. It is read once, and once more to learn a vocabulary from it."""
    opened, decompressed = [], text_files._decompressed
    monkeypatch.setattr(text_files, "_decompressed", lambda f, path: (opened.append(path), decompressed(f, path))[1])
    first = load(tmp_path, **files)
    assert sorted(opened) == sorted([*files.values(), *(files[side] for side in SETTINGS[:2])])
    before, moved = written(tmp_path / "run"), {}
    for name, path in files.items():
        moved[name] = str(tmp_path / f"{name}.moved.gz")
        Path(moved[name]).write_bytes(gzip.compress(Path(path).read_bytes()))
        Path(path).unlink()
    opened.clear()
    again = load(tmp_path, **moved)
    assert sorted(opened) == sorted(moved.values())
    assert (written(tmp_path / "run"), texts(again, 20), again.dropped) == (before, texts(first, 20), first.dropped)
    for side in SETTINGS[:2]:
        Path(moved[side]).unlink()
    assert texts(load(tmp_path, **moved, check=False), 20) == texts(first, 20)  # which reads no training text


def test_a_text_that_changed_is_refused_by_its_name(files, tmp_path):
    load(tmp_path, **files)
    before = written(tmp_path / "run")
    for name, path in files.items():
        content = Path(path).read_bytes()
        Path(path).write_bytes(b"ONE" + content[3:])  # same size, different text
        with pytest.raises(InputError, match=f"data.{name}: {path} must have the text that this run started with"):
            load(tmp_path, **files)
        Path(path).write_bytes(content)
    assert written(tmp_path / "run") == before


def test_a_corpus_with_nothing_to_keep_is_refused(files, tmp_path):
    with pytest.raises(InputError, match=r"train_src: at least one pair must be kept.*: 44 max_length, 2 empty"):
        load(tmp_path, **files, max_length=1)
    assert list((tmp_path / "run" / "data").iterdir()) == []


@pytest.mark.parametrize("name", SETTINGS)
def test_a_text_that_can_be_read_once_is_refused(files, tmp_path, name):
    with pytest.raises(InputError, match="/dev/null must be a regular file"):
        load(tmp_path, **{**files, name: "/dev/null"})


# Storage


@pytest.mark.parametrize("pieces", [2**16, 2**16 + 1])
def test_stored_pairs_come_back_across_chunks(tmp_path, monkeypatch, pieces):
    monkeypatch.setattr(storage, "_ROWS_PER_CHUNK", 3)
    last, path = pieces - 11, tmp_path / "pairs.pairs"
    pairs = [([last + i] * (i % 4), [i, i + 1]) for i in range(11)]
    write_pairs(path, iter(pairs), vocab_size=pieces)
    src, tgt = open_pairs(path)
    assert [(src[i].tolist(), tgt[i].tolist()) for i in range(len(src))] == pairs
    assert src.lengths().tolist() == [len(row) for row, *_ in pairs]


@pytest.mark.parametrize("place", range(-8, 0))
def test_stored_pairs_with_other_numbers_are_refused(tmp_path, place):
    """Each number after the values: rows, values and bytes per value, and before them the ends of sentences."""
    path = tmp_path / "pairs"
    write_pairs(path, [([1, 2, 3, 4], [5]), ([6, 7], [8])], vocab_size=9)  # 8 values, and 5 ends
    content = path.read_bytes()
    for number in (-1, 1 << 40, 6 if place == -7 else 3):
        numbers = np.frombuffer(content, dtype=np.int64).copy()
        numbers[place] = number
        path.write_bytes(numbers.tobytes())
        with pytest.raises(InputError, match="truncated or damaged: it"):
            open_pairs(path)


# Mixtures


def test_mixtures():
    """Without weights an epoch has each pair once. Weights are passes over a corpus."""
    mixture = Mixture.weighted([3, 1, 5], [1, 1, 1])
    assert (mixture, mixture.epoch(1, 0)) == (Mixture((3, 1, 5), (3, 1, 5)), None)
    mixture = Mixture.weighted([30, 40], [2.5, 0.25])
    assert mixture.draws == (75, 10)
    counts = Counter(mixture.epoch(1, 0).tolist())
    assert Counter(counts[pair] for pair in range(30)) == {2: 15, 3: 15}
    assert Counter(counts[pair] for pair in range(30, 70)) == {1: 10, 0: 30}
    drawn = {key: frozenset(mixture.epoch(*key).tolist()) for key in ((1, 0), (1, 1), (2, 0))}
    assert drawn[1, 0] == frozenset(mixture.epoch(1, 0).tolist())
    assert len(set(drawn.values())) == 3  # it depends on seed and epoch
    assert frozenset().union(*(mixture.epoch(1, epoch).tolist() for epoch in range(40))) == frozenset(range(70))
    assert Mixture.weighted([10_000, 1], [1, 1e-6]).draws == (10_000, 1)
    for temperature in (1, 2, 5, 1e6):  # it flattens the shares
        shares = [1000 ** (1 / temperature), 20 ** (1 / temperature)]
        draws = tuple(round(1020 * share / sum(shares)) for share in shares)
        assert Mixture.weighted([1000, 10], [1, 2], temperature).draws == draws


@pytest.fixture
def corpora(tmp_path):
    """Settings with a list of two corpora, with 30 and 6 pairs, and a list of two validation sets."""
    for name, lines in {"news": 30, "talks": 6, "v": 4, "w": 3}.items():
        for side in ("en", "de"):
            text = "".join(f"{name} {side} {i}\n" if i != 1 else "\n" for i in range(lines))
            (tmp_path / f"{name}.{side}").write_text(text, encoding="utf-8")
    (tmp_path / "train.tsv").write_text("# ours\nnews.en\tnews.de\n\ntalks.en\ttalks.de\t3\n")
    (tmp_path / "valid.tsv").write_text("v.en\tv.de\nw.en\tw.de\n")
    return {"train_list": str(tmp_path / "train.tsv"), "valid_list": str(tmp_path / "valid.tsv"), "max_tokens": 64}


def test_a_run_trains_on_a_mixture(tmp_path, corpora):
    """The text of each pair is its corpus and line. Empty lines are dropped."""
    data = load(tmp_path, **corpora)
    assert data.dropped["empty"] == 2
    assert [(valid.name, len(valid.pairs)) for valid in data.valid] == [("v.en", 3), ("w.en", 2)]
    seen: Counter[str] = Counter()
    for step in takewhile(lambda step: step.epoch == 0, data.train.steps()):
        rows = [data.tokenizer.decode(row) for batch in step.micro_batches for row in batch.src.tolist()]
        seen.update(rows)
    assert seen == {f"news en {i}": 1 for i in range(30) if i != 1} | {f"talks en {i}": 3 for i in range(6) if i != 1}


@pytest.fixture
def directions(tmp_path, corpora):
    """Settings with lists of three corpora in three directions."""
    (tmp_path / "train.tsv").write_text(
        "news.en\tnews.de\t0.5\ten\tde\nnews.de\tnews.en\tde\ten\ntalks.en\ttalks.de\t2\ten\tgsw-CH\n"
    )
    (tmp_path / "valid.tsv").write_text("v.en\tv.de\ten\tde\nw.de\tw.en\tde\ten\n")
    return {**corpora, "language_tokens": "target"}


@pytest.mark.parametrize("augment", [AugmentConfig(), AugmentConfig(join_lines=0.5, upper_case=0.5)])
def test_a_source_begins_with_the_token_of_its_target_language(tmp_path, directions, augment):
    data = load(tmp_path, **directions, augment=augment)
    pieces = data.tokenizer.vocabularies[0]
    directions_of_lines = {("en", "de"): ">>de<<", ("de", "en"): ">>en<<"}
    assert [(v.languages, pieces[v.batches[0].src[0, 0]]) for v in data.valid] == [*directions_of_lines.items()]
    seen: Counter[str] = Counter()
    for step in takewhile(lambda step: step.epoch < 3, data.train.steps()):
        for batch in step.micro_batches:
            for row, length in zip(batch.src.tolist(), batch.src_lengths.tolist(), strict=True):
                corpus, side, *_ = data.tokenizer.decode(row).lower().split()
                swiss = ">>gsw-CH<<" if corpus == "talks" else ">>de<<"
                assert pieces[row[0]] == (swiss if side == "en" else ">>en<<")
                assert not {*row[1:length]} & {*map(pieces.index, data.tokenizer.languages.values())}
                seen[pieces[row[0]]] += 1
        lengths = [length for batch in step.micro_batches for length in batch.src_lengths.tolist()]
        rows = data.train.epoch(step.epoch).steps[step.index]
        assert sorted(lengths) == sorted(data.train.epoch(step.epoch).lengths[0][rows].tolist())
    assert seen == {">>de<<": 3 * 14, ">>en<<": 3 * 29, ">>gsw-CH<<": 3 * 10}


def test_languages_of_a_run_are_checked(tmp_path, directions):
    """Without language_tokens, a list has no languages."""
    load(tmp_path, **directions)
    path = Path(directions["train_list"])
    before = path.read_text()
    for text, settings, message in (
        (before.replace("gsw-CH", "nl"), {}, "languages of talks.en must be en to gsw-CH in this run, got en to nl"),
        (
            before,
            {"tgt_lang": "fr"},
            r"must be a pair of data.train_list \(en to de, de to en, en to gsw-CH\), got en to fr",
        ),
        (before, {"language_tokens": "none"}, "tsv, line 1: must be a source file, a target file and perhaps"),
        (before + "news.en\tnews.de\n", {}, "line 4: .* and the codes of both languages"),
        (
            before + "news.en\tnews.de\ten\ten\n",
            {},
            "line 4: must end with the codes of two languages, got 'en' and 'en'",
        ),
        (before + "news.en\tnews.de\ten\td e\n", {}, "line 4: .*, got 'en' and 'd e'"),
        (before + "news.en\tnews.de\ten\t\n", {}, "line 4: .*, got 'en' and ''"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=message):
            load(tmp_path, **{**directions, **settings})


def test_a_list_that_changed_is_refused(tmp_path, corpora):
    load(tmp_path, **corpora)
    for text, message in (
        ("news.en\tnews.de\ntalks.en\ttalks.de\t2\n", r"train_list: the weight of talks\.en must be 3.*got 2"),
        ("news.en\tnews.de\n", "train_list must have 2 corpora in this run, got 1"),
        ("news.en\tnews.de\nnews.en\tnews.de\t3\n", r"train_list: .*news\.en must have the text"),
    ):
        Path(corpora["train_list"]).write_text(text)
        with pytest.raises(InputError, match=message):
            load(tmp_path, **corpora)


def test_lists_of_corpora(tmp_path):
    """Paths are relative to the directory of the list."""
    path = tmp_path / "list"
    path.write_text("a.en\tb de.gz\n/far/c.en\t../c.de\t0.5\n")
    expected = [(f"{tmp_path}/a.en", f"{tmp_path}/b de.gz", 1.0, None), ("/far/c.en", f"{tmp_path}/../c.de", 0.5, None)]
    assert read_corpus_list(str(path)) == expected
    wrong = ("a.en", "a\tb\tc", "a\tb\t0", "a\tb\t-1", "a\tb\tnan", "a\tb\t1e9", "a\t\t1", "a\tb\t1\t2")
    for line, weighted, message in (
        *((line, True, r"list, line 2: must be a source file, a target file") for line in wrong),
        ("# nothing", True, "must list at least one corpus"),
        ("x\ty\t3", False, r"list, line 2: validation text must have no weight"),
    ):
        path.write_text(f"# a comment\n{line}\n")
        with pytest.raises(InputError, match=message):
            read_corpus_list(str(path), weighted=weighted)
