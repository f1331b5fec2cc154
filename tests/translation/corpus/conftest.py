"""A corpus with pairs to drop for every reason, and a hub with small versions of the known corpora."""

from __future__ import annotations

import hashlib
import io
import json
import random
import tarfile
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet
from sacrebleu import utils
from sacrebleu.dataset import DATASETS

from tests.translation.loopback import Hub, Repository

Pairs = list[tuple[str, str]]
HELD_OUT = ["a line that nobody has seen yet", "eine Zeile, die noch keiner sah"]


def made_up(count: int, seed: int = 1) -> Pairs:
    """Return short pairs, among them duplicates and pairs that the rules drop."""
    source = random.Random(seed)
    pairs = []
    for _ in range(count):
        line = [f"w{source.randrange(60)}" for _ in range(source.randrange(1, 5))]
        pairs.append((" ".join(line), " ".join(word.upper() for word in reversed(line))))
    strange = [("", "x"), ("a\0b", "x"), ("x", "y" * 1_000_000), ("x", "w " * 30), ("x", "кот"), tuple(HELD_OUT)]
    for pair in strange:
        pairs.insert(source.randrange(count), pair)
    return pairs


@pytest.fixture
def corpus(tmp_path: Path) -> tuple[str, str]:
    """Paths of two parallel files with 306 pairs."""
    pairs = made_up(300)
    for side in (0, 1):
        text = "".join(f"{pair[side]}\n" for pair in pairs)
        (tmp_path / f"corpus.{side}").write_text(text, encoding="utf-8")
    return str(tmp_path / "corpus.0"), str(tmp_path / "corpus.1")


def as_parquet(pairs: Pairs, tgt_lang: str) -> bytes:
    """Return pairs as Parquet in the layout of WMT's data sets, in groups of 7 rows."""
    rows = [{tgt_lang: tgt, "en": src} for src, tgt in pairs]
    struct = pa.struct([(tgt_lang, pa.string()), ("en", pa.string())])
    table = pa.table({"translation": pa.array(rows, type=struct)})
    file = io.BytesIO()
    parquet.write_table(table, file, row_group_size=7)
    return file.getvalue()


def as_archive(files: dict[str, str]) -> bytes:
    """Return a .tgz archive, as sacreBLEU downloads them."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, text in files.items():
            about = tarfile.TarInfo(name)
            about.size = len(text.encode())
            archive.addfile(about, io.BytesIO(text.encode()))
    return packed.getvalue()


def as_sgml(lines: list[str]) -> str:
    segments = "".join(f'<seg id="{number}">{line}</seg>\n' for number, line in enumerate(lines, start=1))
    return f'<doc docid="d" genre="news" origlang="en">\n{segments}</doc>\n'


@pytest.fixture
def known(server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """A hub with WMT14 English–German (61 pairs in two files) and Multi30k, and a server of sacreBLEU's test sets."""
    files = {
        "README.md": b"# WMT14",
        "de-en/train-00000-of-00002.parquet": as_parquet([*made_up(20), ("one\ntwo", "eins\tzwei")], "de"),
        "de-en/train-00001-of-00002.parquet": as_parquet(made_up(28, seed=2), "de"),
        "de-en/validation-00000-of-00001.parquet": as_parquet(made_up(3), "de"),
        "fr-en/train-00000-of-00001.parquet": as_parquet(made_up(3), "fr"),
    }
    server.repositories["datasets/wmt/wmt14"] = Repository()
    server.repositories["datasets/wmt/wmt14"].commit(files)
    rows = {name: [{"en": s, "de": t} for s, t in made_up(n)] for name, n in (("train", 30), ("val", 4), ("test", 4))}
    lines = {f"{name}.jsonl": "".join(f"{json.dumps(row)}\n" for row in rows[name]).encode() for name in rows}
    server.repositories["datasets/bentrevett/multi30k"] = Repository()
    server.repositories["datasets/bentrevett/multi30k"].commit(lines)
    texts = {
        "wmt13": (as_sgml([HELD_OUT[0], "one"]), as_sgml([HELD_OUT[1], "eins"])),
        "wmt14/full": (as_sgml(["news"]), as_sgml(["Neues"])),
        "multi30k/2016": ("A man.\n", "Ein Mann.\n"),
    }
    for name, sides in texts.items():
        names = DATASETS[name].langpairs["en-de"]
        put(server, tmp_path, monkeypatch, name, dict(zip(names, sides, strict=True)))
    return server


def put(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, files: dict[str, str]) -> None:
    """Make sacreBLEU download a test set from the loopback server into a temporary cache."""
    dataset, archive = DATASETS[name], as_archive(files)
    path = f"/files/{dataset.data[0].rpartition('/')[2]}"
    hub.files[path] = archive
    cache = tmp_path / "sacrebleu"
    monkeypatch.setattr(utils, "SACREBLEU_DIR", str(cache))
    for field, value in (
        ("data", [hub.url + path]),
        ("md5", [hashlib.md5(archive).hexdigest()]),
        ("_outdir", str(cache / name)),
        ("_rawdir", str(cache / name / "raw")),
    ):
        monkeypatch.setattr(dataset, field, value)
