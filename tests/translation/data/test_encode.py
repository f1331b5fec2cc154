import gzip
import os
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pyarrow
import pytest
import torch
from datasets import Dataset

from relattn.translation.config import DataConfig
from relattn.translation.data import text_files
from relattn.translation.data.encode import load_data
from relattn.translation.data.storage import open_pairs, write_pairs
from relattn.translation.data.tokenizer import Tokenizer
from relattn.translation.errors import InputError

SRC = [f"the cat number {i} sat on the mat" for i in range(40)] + [
    "",
    "short",
    "   ",
    "long " * 30,
    "a b c d e f g h i j k",
]
TGT = [f"die Katze Nummer {i} saß auf der Matte" for i in range(40)] + ["leer", "kurz", "x", "lang", "eins"]


@pytest.fixture
def files(tmp_path):
    paths = {}
    for name, lines in (("train_src", SRC), ("train_tgt", TGT), ("valid_src", SRC[:7]), ("valid_tgt", TGT[:7])):
        path = tmp_path / name
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        paths[name] = str(path)
    return paths


def made(tmp_path, *, tokenizer=None, seed=1, **fields):
    config = DataConfig(**{"vocab_size": 400, "max_tokens": 100, **fields})
    return load_data(config, tmp_path / "run", seed=seed, tokenizer=tokenizer)


def texts(data, steps):
    """Return the decoded pairs of the first steps."""
    decode = data.tokenizer.decode
    return [
        (decode(src), decode(tgt))
        for step in islice(data.train.steps(), steps)
        for batch in step.micro_batches
        for src, tgt in zip(batch.src.tolist(), batch.tgt_out.tolist(), strict=True)
    ]


def test_an_epoch_is_the_text_that_was_given(files, tmp_path):
    data = made(tmp_path, **files, max_length=60)
    epoch = next(i for i, step in enumerate(data.train.steps()) if step.epoch == 1)
    pairs = list(zip(SRC, TGT, strict=True))
    kept = [*pairs[:40], pairs[41], pairs[44]]
    assert sorted(texts(data, epoch)) == sorted(kept)
    assert data.dropped == {"empty": 2, "max_length": 1}
    (valid,) = data.valid
    assert (valid.name, valid.pairs) == ("valid_src", pairs[:7])
    rows = [row for batch in valid.batches for row in batch.tgt_out.tolist()]
    assert sorted(map(data.tokenizer.decode, rows)) == sorted(TGT[:7])


def test_max_words_keeps_short_pairs_and_their_characters_alone(files, tmp_path):
    for side in ("train_src", "train_tgt"):
        with open(files[side], "a", encoding="utf-8") as stream:
            stream.write("ж " * 11 + "\n" + "я " * 10 + "\n")
    data = made(tmp_path, **files, max_words=10)
    assert data.dropped == {"empty": 2, "max_words": 3}
    assert [
        len(data.tokenizer.encode(f"the cat{letter}")) - len(data.tokenizer.encode("the cat")) for letter in "яж"
    ] == [1, 2]


def test_steps_start_at_their_position(files, tmp_path):
    data = made(tmp_path, **files)
    whole = list(islice(data.train.steps(), 30))
    for expected, step in zip(whole[17:], data.train.steps((whole[17].epoch, whole[17].index)), strict=False):
        assert (step.epoch, step.index, step.target_tokens) == (expected.epoch, expected.index, expected.target_tokens)
        for a, b in zip(expected.micro_batches, step.micro_batches, strict=True):
            assert torch.equal(a.src, b.src)
            assert torch.equal(a.tgt_out, b.tgt_out)


def written(directory: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in directory.rglob("*")}


def test_a_later_session_opens_what_the_first_wrote(files, tmp_path):
    first = made(tmp_path, **files)
    before = written(tmp_path / "run")
    again = made(tmp_path, **files)
    assert written(tmp_path / "run") == before
    assert texts(again, 20) == texts(first, 20)
    assert again.dropped == first.dropped


def test_the_same_text_by_another_path_is_the_same_text(files, tmp_path):
    first = made(tmp_path, **files)
    before = written(tmp_path / "run")
    moved = {}
    for name, path in files.items():
        moved[name] = str(tmp_path / f"{name}.moved.gz")
        Path(moved[name]).write_bytes(gzip.compress(Path(path).read_bytes()))
        Path(path).unlink()
    again = made(tmp_path, **moved)
    assert written(tmp_path / "run") == before
    assert texts(again, 20) == texts(first, 20)


@pytest.mark.parametrize("name", ["train_src", "train_tgt", "valid_src", "valid_tgt"])
def test_a_text_that_changed_is_refused_by_its_name(files, tmp_path, name):
    made(tmp_path, **files)
    before = written(tmp_path / "run")
    with open(files[name], "r+", encoding="utf-8") as stream:
        stream.write("ONE")  # same size, different text
    with pytest.raises(InputError, match=f"^data.{name}: {files[name]} must have the text that this run started with$"):
        made(tmp_path, **files)
    assert written(tmp_path / "run") == before


def test_text_is_read_once_and_once_more_to_learn_from(files, tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr(
        text_files,
        "_decompressed",
        lambda file, path, really=text_files._decompressed: (opened.append(str(path)), really(file, path))[1],
    )
    first = made(tmp_path, **files)
    sides = ("train_src", "train_tgt")
    assert sorted(opened) == sorted([*files.values(), *(files[side] for side in sides)])
    opened.clear()
    made(tmp_path, **files)
    assert sorted(opened) == sorted(files.values())
    opened.clear()
    made(tmp_path / "given", **files, tokenizer=first.tokenizer)
    assert sorted(opened) == sorted(files.values())


def test_a_process_that_only_opens_reads_no_training_text(files, tmp_path):
    made(tmp_path, **files)
    for side in ("train_src", "train_tgt"):
        Path(files[side]).unlink()
    config = DataConfig(vocab_size=400, max_tokens=100, **files)
    assert texts(load_data(config, tmp_path / "run", seed=1, check=False), 5)


def test_a_given_tokenizer_is_used_and_no_other_is_learned(files, tmp_path):
    tokenizer = Tokenizer.train(["other text 0123456789"] * 5, 300, seed=1)
    data = made(tmp_path, **files, tokenizer=tokenizer)
    assert data.tokenizer is tokenizer
    assert (tmp_path / "run" / "tokenizer.model").read_bytes() == tokenizer.model_bytes
    assert ("short", "kurz") in texts(data, 60)


def test_the_builtin_corpus_brings_its_own_validation(tmp_path):
    data = made(tmp_path, builtin_lines=200, vocab_size=600)
    (valid,) = data.valid
    assert len(valid.pairs) == 500
    assert sum(data.dropped.values()) == 0
    assert sum(len(batch.src) for batch in valid.batches) == 500


def test_no_validation_text_is_no_validation(files, tmp_path):
    data = made(tmp_path, train_src=files["train_src"], train_tgt=files["train_tgt"])
    assert data.valid == []


@pytest.mark.parametrize("side", ["train_src", "train_tgt", "valid_src", "valid_tgt"])
def test_errors_in_text_name_the_file_and_leave_nothing_half_written(files, tmp_path, side):
    path = tmp_path / side
    whole = path.read_bytes()
    bad = {
        "not UTF-8 at byte 4": b"abc\n\xff\n",
        "must have the same number of lines": whole + b"one more\n",
        "the file is empty": b"",
    }
    for message, content in bad.items():
        path.write_bytes(content)
        with pytest.raises(InputError, match=message) as caught:
            made(tmp_path, **files)
        assert str(path) in str(caught.value)
    path.unlink()
    with pytest.raises(InputError, match=f"{side}: no such file"):
        made(tmp_path, **files)
    path.mkdir()
    with pytest.raises(InputError, match=f"{side}: cannot be read: Is a directory"):
        made(tmp_path, **files)
    assert not (tmp_path / "run").exists()


def test_a_corpus_with_nothing_to_keep_is_refused(files, tmp_path):
    with pytest.raises(InputError, match=r"train_src: at least one pair must be kept, .*: 43 max_length, 2 empty"):
        made(tmp_path, **files, max_length=1)
    assert [path.name for path in (tmp_path / "run").iterdir() if path.is_file()] == ["tokenizer.model"]
    assert list((tmp_path / "run" / "data").iterdir()) == []


@pytest.mark.parametrize("pieces", [2**16, 2**16 + 1])
def test_stored_pairs_come_back_across_chunks(tmp_path, monkeypatch, pieces):
    monkeypatch.setattr("relattn.translation.data.storage._ROWS_PER_CHUNK", 3)
    last = pieces - 11
    pairs = [([last + i] * (i % 4), [i, i + 1]) for i in range(11)]
    rows = ((src_ids, tgt_ids, 2 * i + 1) for i, (src_ids, tgt_ids) in enumerate(pairs))
    write_pairs(tmp_path / "pairs.arrow", rows, vocab_size=pieces)
    src, tgt, line = open_pairs(tmp_path / "pairs.arrow")
    assert line.to_pylist() == list(range(1, 22, 2))
    assert src.lengths().tolist() == [len(src_ids) for src_ids, _ in pairs]
    assert Dataset.from_file(str(tmp_path / "pairs.arrow"))[10] == {"src": pairs[10][0], "tgt": [10, 11], "line": 21}
    assert len(src) == len(tgt) == 11
    for i, (src_ids, tgt_ids) in enumerate(pairs):
        assert src[i].tolist() == src_ids
        assert tgt[i].tolist() == tgt_ids


def test_stored_pairs_are_mapped_not_read(tmp_path):
    write_pairs(tmp_path / "pairs.arrow", (([i] * 50, [i] * 50, i) for i in range(5000)), vocab_size=5000)
    assert (tmp_path / "pairs.arrow").stat().st_size > 1_000_000
    before = pyarrow.total_allocated_bytes()
    src, tgt, _ = open_pairs(tmp_path / "pairs.arrow")
    assert (int(src[4999].sum()), len(tgt[17])) == (4999 * 50, 50)
    assert pyarrow.total_allocated_bytes() - before < 100_000


def test_a_store_that_cannot_be_written_says_so_and_leaves_nothing(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match="cannot be written"):
        write_pairs(tmp_path / "file" / "pairs.arrow", [], vocab_size=9)

    def pairs():
        yield [1], [2], 1
        raise OSError(28, "No space left on device")

    with pytest.raises(InputError, match=r"pairs\.arrow: cannot be written: No space left on device"):
        write_pairs(tmp_path / "pairs.arrow", pairs(), vocab_size=9)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.whole
def test_nothing_is_written_in_the_home_directory(files, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    script = (
        "import sys; from pathlib import Path\n"
        "from relattn.translation.config import DataConfig\n"
        "from relattn.translation.data.encode import load_data\n"
        "config = DataConfig(train_src=sys.argv[1], train_tgt=sys.argv[2], vocab_size=400)\n"
        "print(next(load_data(config, Path(sys.argv[3]), seed=1).train.steps()).target_tokens)\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "XDG_"))}
    environment["MPLCONFIGDIR"] = str(tmp_path / "matplotlib")  # Lightning imports it, and it caches its fonts
    command = [sys.executable, "-c", script, files["train_src"], files["train_tgt"], str(tmp_path / "run")]
    done = subprocess.run(
        command, env={**environment, "HOME": str(home)}, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert int(done.stdout) > 0
    assert list(home.rglob("*")) == []
