import os
import subprocess
import sys
from itertools import islice

import pyarrow
import pytest
import torch

from relattn.translation.config import DataConfig
from relattn.translation.data.datamodule import TranslationData
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
    data = TranslationData(config, seed=seed, cache_dir=tmp_path / "cache", tokenizer=tokenizer)
    data.prepare_data()
    data.setup("fit")
    return data


def texts(data, steps):
    """The text of both sides of the first steps."""
    decode = data.tokenizer.decode
    return [
        (decode(src), decode(tgt))
        for step in islice(data.train_dataloader(), steps)
        for batch in step.micro_batches
        for src, tgt in zip(batch.src.tolist(), batch.tgt_out.tolist(), strict=True)
    ]


def test_an_epoch_is_the_text_that_was_given(files, tmp_path):
    data = made(tmp_path, **files, max_length=60)
    epoch = next(i for i, step in enumerate(data.train_dataloader()) if step.epoch == 1)
    pairs = list(zip(SRC, TGT, strict=True))
    kept = [*pairs[:40], pairs[41], pairs[44]]
    assert sorted(texts(data, epoch)) == sorted(kept)
    assert data.dropped == {"empty": 2, "max_words": 0, "max_length": 1}
    assert data.valid_pairs == pairs[:7]
    rows = [row for batch in data.valid_batches() for row in batch.tgt_out.tolist()]
    assert sorted(map(data.tokenizer.decode, rows)) == sorted(TGT[:7])


def test_max_words_keeps_short_pairs_and_their_characters_alone(files, tmp_path):
    for side in ("train_src", "train_tgt"):
        with open(files[side], "a", encoding="utf-8") as stream:
            stream.write("ж " * 11 + "\n" + "я " * 10 + "\n")
    data = made(tmp_path, **files, max_words=10)
    assert data.dropped == {"empty": 2, "max_words": 3, "max_length": 0}
    assert [
        len(data.tokenizer.encode(f"the cat{letter}")) - len(data.tokenizer.encode("the cat")) for letter in "яж"
    ] == [1, 2]


def test_the_loader_starts_at_its_position(files, tmp_path):
    data = made(tmp_path, **files)
    whole = list(islice(data.train_dataloader(), 30))
    data.position = (whole[17].epoch, whole[17].index)
    for expected, step in zip(whole[17:], data.train_dataloader(), strict=False):
        assert (step.epoch, step.index, step.target_tokens) == (expected.epoch, expected.index, expected.target_tokens)
        for a, b in zip(expected.micro_batches, step.micro_batches, strict=True):
            assert torch.equal(a.src, b.src)
            assert torch.equal(a.tgt_out, b.tgt_out)


def test_a_second_run_opens_what_the_first_wrote_and_a_changed_one_does_not(files, tmp_path):
    first = made(tmp_path, **files)
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").iterdir()}
    again = made(tmp_path, **files)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").iterdir()} == written
    assert texts(again, 20) == texts(first, 20)
    assert again.dropped == first.dropped

    with open(files["train_src"], "r+", encoding="utf-8") as stream:
        stream.write("ONE")  # the same size, other text
    changed = made(tmp_path, **files)
    assert any(src.startswith("ONE cat") for src, _ in texts(changed, 40))
    assert not any(path.name.endswith(".part") for path in (tmp_path / "cache").iterdir())


def test_a_given_tokenizer_is_used_and_no_other_is_learned(files, tmp_path):
    tokenizer = Tokenizer.train(["other text 0123456789"] * 5, 300, seed=1)
    data = made(tmp_path, **files, tokenizer=tokenizer)
    assert data.tokenizer is tokenizer
    assert not list((tmp_path / "cache").glob("*.model"))
    assert ("short", "kurz") in texts(data, 60)


def test_the_embedded_corpus_brings_its_own_validation(tmp_path):
    data = made(tmp_path, embedded_lines=200, vocab_size=600)
    assert len(data.valid_pairs) == 500
    assert sum(data.dropped.values()) == 0
    assert sum(len(batch.src) for batch in data.valid_batches()) == 500


def test_no_validation_text_is_no_validation(files, tmp_path):
    data = made(tmp_path, train_src=files["train_src"], train_tgt=files["train_tgt"])
    assert data.valid_pairs == []
    assert data.valid_batches() == []


@pytest.mark.parametrize("side", ["train_src", "train_tgt", "valid_src", "valid_tgt"])
def test_bad_text_is_told_by_file_and_leaves_nothing_half_written(files, tmp_path, side):
    path = tmp_path / side
    whole = path.read_bytes()
    bad = {
        "not UTF-8 at byte 4": b"abc\n\xff\n",
        "the two sides differ in length": whole + b"one more\n",
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
    with pytest.raises(InputError, match=f"{side}: (cannot be read: Is|is) a directory"):
        made(tmp_path, **files)
    left = list((tmp_path / "cache").iterdir()) if (tmp_path / "cache").exists() else []
    assert not left or side.startswith("valid")
    assert not any(path.suffix == ".part" for path in left)


def test_a_corpus_with_nothing_to_keep_is_refused(files, tmp_path):
    with pytest.raises(InputError, match="no training pair is left; left out: 2 empty, 0 max_words, 43 max_length"):
        made(tmp_path, **files, max_length=1)
    assert not list((tmp_path / "cache").glob("train-*"))


def test_before_set_up_there_is_nothing(tmp_path):
    data = TranslationData(DataConfig(), seed=1, cache_dir=tmp_path)
    with pytest.raises(RuntimeError, match="setup"):
        _ = data.tokenizer
    with pytest.raises(RuntimeError, match="setup"):
        data.train_dataloader()


def test_stored_pairs_come_back_across_chunks(tmp_path, monkeypatch):
    monkeypatch.setattr("relattn.translation.data.storage._ROWS_A_CHUNK", 3)
    pairs = [([i] * (i % 4), [i, i + 1]) for i in range(11)]
    write_pairs(tmp_path / "pairs.arrow", pairs)
    src, tgt = open_pairs(tmp_path / "pairs.arrow")
    assert len(src) == len(tgt) == 11
    for i, (src_ids, tgt_ids) in enumerate(pairs):
        assert src[i].tolist() == src_ids
        assert tgt[i].tolist() == tgt_ids
    assert [row.tolist() for row in src] == [src_ids for src_ids, _ in pairs]
    with pytest.raises(IndexError, match="row 11 of 11"):
        src[11]


def test_stored_pairs_are_mapped_not_read(tmp_path):
    write_pairs(tmp_path / "pairs.arrow", (([i] * 50, [i] * 50) for i in range(5000)))
    assert (tmp_path / "pairs.arrow").stat().st_size > 2_000_000
    before = pyarrow.total_allocated_bytes()
    src, tgt = open_pairs(tmp_path / "pairs.arrow")
    assert (int(src[4999].sum()), len(tgt[17])) == (4999 * 50, 50)
    assert pyarrow.total_allocated_bytes() - before < 100_000


def test_a_store_that_cannot_be_written_says_so_and_leaves_nothing(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match="cannot be written"):
        write_pairs(tmp_path / "file" / "pairs.arrow", [])

    def pairs():
        yield [1], [2]
        raise OSError(28, "No space left on device")

    with pytest.raises(InputError, match=r"pairs\.arrow: cannot be written: No space left on device"):
        write_pairs(tmp_path / "pairs.arrow", pairs())
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_nothing_is_written_in_the_home_directory(files, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    script = (
        "import sys; from pathlib import Path\n"
        "from relattn.translation.config import DataConfig\n"
        "from relattn.translation.data.datamodule import TranslationData\n"
        "config = DataConfig(train_src=sys.argv[1], train_tgt=sys.argv[2], vocab_size=400)\n"
        "data = TranslationData(config, seed=1, cache_dir=Path(sys.argv[3]))\n"
        "data.prepare_data(); data.setup('fit'); print(next(iter(data.train_dataloader())).target_tokens)\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "XDG_"))}
    environment["MPLCONFIGDIR"] = str(tmp_path / "matplotlib")  # Lightning imports it, and it caches its fonts
    command = [sys.executable, "-c", script, files["train_src"], files["train_tgt"], str(tmp_path / "cache")]
    done = subprocess.run(
        command, env={**environment, "HOME": str(home)}, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert int(done.stdout) > 0
    assert list(home.rglob("*")) == []
