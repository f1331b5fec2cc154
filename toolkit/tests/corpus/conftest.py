"""A corpus with pairs to drop for every reason, and a hub with small versions of the known corpora."""

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

from testing.loopback import Hub, Repository

Pairs = list[tuple[str, str]]
HELD_OUT = ["a line that nobody has seen yet", "eine Zeile, die noch keiner sah"]


def random_pairs(count: int, seed: int = 1) -> Pairs:
    """Return short pairs, among them duplicates and pairs that the rules drop."""
    source = random.Random(seed)
    pairs = []
    for _ in range(count):
        line = [f"w{source.randrange(60)}" for _ in range(source.randrange(1, 5))]
        pairs.append((" ".join(line), " ".join(f"v{word[1:]}" for word in reversed(line))))
    dropped = [("", "x"), ("a\0b", "x"), ("x", "y" * 1_000_000), ("x", "w " * 30), ("x", "кот"), ("x", "w " * 9)]
    dropped += [("a copy, of a line", "A copy of a line"), ("x", "\u200b\u00ad")]
    for pair in [*dropped, tuple(HELD_OUT)]:
        pairs.insert(source.randrange(count), pair)
    return pairs


def as_parquet(pairs: Pairs, tgt_lang: str) -> bytes:
    """Return pairs as Parquet in the layout of WMT's data sets, in groups of 7 rows."""
    rows = [{tgt_lang: tgt, "en": src} for src, tgt in pairs]
    struct = pa.struct([(tgt_lang, pa.string()), ("en", pa.string())])
    file = io.BytesIO()
    parquet.write_table(pa.table({"translation": pa.array(rows, type=struct)}), file, row_group_size=7)
    return file.getvalue()


def as_sgml(lines: list[str]) -> str:
    segments = "".join(f'<seg id="{number}">{line}</seg>\n' for number, line in enumerate(lines, start=1))
    return f'<doc docid="d" genre="news" origlang="en">\n{segments}</doc>\n'


@pytest.fixture
def known(server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """A hub with WMT14 English–German (67 pairs in two files) and Multi30k, and a server of sacreBLEU's test sets."""
    files = {
        "README.md": b"# WMT14",
        "de-en/train-00000-of-00002.parquet": as_parquet([*random_pairs(20), ("one\ntwo", "eins\tzwei")], "de"),
        "de-en/train-00001-of-00002.parquet": as_parquet(random_pairs(28, seed=2), "de"),
        "de-en/validation-00000-of-00001.parquet": as_parquet(random_pairs(3), "de"),
        "fr-en/train-00000-of-00001.parquet": as_parquet(random_pairs(3), "fr"),
    }
    lines = {}
    for name, count in (("train", 30), ("val", 4), ("test", 4)):
        rows = [json.dumps({"en": src, "de": tgt}) + "\n" for src, tgt in random_pairs(count)]
        lines[f"{name}.jsonl"] = "".join(rows).encode()
    for name, content in (("wmt/wmt14", files), ("bentrevett/multi30k", lines)):
        server.repositories[f"datasets/{name}"] = Repository()
        server.repositories[f"datasets/{name}"].commit(content)
    texts = {
        "wmt13": (as_sgml([HELD_OUT[0], "one"]), as_sgml([HELD_OUT[1], "eins"])),
        "wmt14/full": (as_sgml(["news"]), as_sgml(["Neues"])),
        "multi30k/2016": ("A man.\n", "Ein Mann.\n"),
    }
    cache = tmp_path / "sacrebleu"
    monkeypatch.setattr(utils, "SACREBLEU_DIR", str(cache))
    for name, sides in texts.items():
        dataset, packed = DATASETS[name], io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            for file, text in zip(dataset.langpairs["en-de"], sides, strict=True):
                member = tarfile.TarInfo(file)
                member.size = len(text.encode())
                archive.addfile(member, io.BytesIO(text.encode()))
        path = f"/files/{dataset.data[0].rpartition('/')[2]}"
        server.files[path] = packed.getvalue()
        monkeypatch.setattr(dataset, "data", [server.url + path])
        monkeypatch.setattr(dataset, "md5", [hashlib.md5(packed.getvalue()).hexdigest()])
        monkeypatch.setattr(dataset, "_outdir", str(cache / name))
        monkeypatch.setattr(dataset, "_rawdir", str(cache / name / "raw"))
    return server
