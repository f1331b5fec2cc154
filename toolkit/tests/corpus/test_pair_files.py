"""One file of pairs: columns, objects and units, and what is refused."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from relattn_mt.corpus.filters import has_known_script
from relattn_mt.corpus.pair_files import read_pairs
from relattn_mt.support.errors import InputError

from tests.support.commands import assert_refused

PAIRS = [("a b", 'x "y"'), ("c, d", "z"), ("", "leer"), ("e", "")]
PARTS = [("a", "b"), ("c", "")]
UNITS = """<?xml version="1.0"?><tmx version="1.4"><header/><body>
<tu><tuv xml:lang="en-US"><seg>a <bpt i="1">&lt;b&gt;</bpt>b<ept i="1"/></seg></tuv>
<tuv xml:lang="de"><seg>x</seg></tuv></tu>
<tu><tuv lang="DE"><seg>y &amp; <hi>z</hi></seg></tuv><tuv lang="EN"><seg>c
d</seg></tuv></tu><tu><tuv xml:lang="fr"><seg>f</seg></tuv><tuv xml:lang="en"><seg>g</seg></tuv></tu>
</body></tmx>"""


def lines(*rows: object) -> str:
    return "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.tsv", lines(*map("\t".join, PAIRS)), PAIRS),
        ("a.TSV", lines("en\tde\tid", "a\tb\t1", "c\td\t2"), [("a", "b"), ("c", "d")]),
        ("a.tsv", lines("id\tde\ten", "1\tb\ta"), [("a", "b")]),
        ("a.tsv", lines("a\tb\t0.9", '"q\td'), [("a", "b"), ('"q', "d")]),
        ("a.jsonl", lines({"translation": {"de": "b", "en": "a"}}, {"translation": {"en": "c", "de": None}}), PARTS),
        ("a.jsonl", lines({"en": "a\tb", "de": "c\nd", "id": 1}), [("a b", "c d")]),
        ("a.jsonl", "\n \t\r\n" + lines({"src": "a", "tgt": "b"}, "", {"src": "c", "tgt": ""}, ""), PARTS),
        ("a.tmx", UNITS, [("a b", "x"), ("c d", "y & z")]),
    ],
)  # fmt: skip
def test_pairs(tmp_path, name, content, expected):
    for suffix, encode in (("", bytes), (".gz", gzip.compress)):
        path = tmp_path / (name + suffix)
        path.write_bytes(encode(content.encode()))
        assert list(read_pairs(str(path), ("en", "de"))) == expected


@pytest.mark.parametrize("rows", [[{"translation": {"de": "b", "en": "a"}}], [{"id": 1, "src": "a", "tgt": "b"}]])
def test_parquet(tmp_path, rows):
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    assert list(read_pairs(str(tmp_path / "a.parquet"), ("en", "de"))) == [("a", "b")]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", "a\tb\n", "pairs must be in a .tsv, .jsonl, .tmx or .parquet file"),
        ("a.tsv", "a\tb\nc\n", "row 2 must have a source and a target"),
        ("a.tsv", "en\tfr\n", "the first row must name en and de"),
        ("a.jsonl", '{"en": "a"}\n', "line 1 must name en and de"),
        ("a.jsonl", '{"en": "a", "de": 1}\n', "line 1 must have texts for en and de"),
        ("a.jsonl", '["a", "b"]\n', "line 1 must have texts for en and de"),
        ("a.jsonl", '\n{"en": "a", "de": "b"}\n{"en": \n', 'line 3 must be JSON, got {"en":'),
        ("a.jsonl", '{"en": "a", "de": "b"}\n\n{"en": "a"}\n', "line 3 must name en and de"),
        ("a.parquet", "a", "not PARQUET"),
        ("a.tmx", UNITS[:-9], "not TMX"),
        ("a.tmx", UNITS.replace("DE", "fr").replace("de", "fr"), "no unit has both en and de"),
    ],
)
def test_refusals(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError) as caught:
        list(read_pairs(str(tmp_path / name), ("en", "de")))
    assert str(caught.value).startswith(f"{tmp_path / name}: {message}")


def test_the_command(relattn, tmp_path, monkeypatch):
    """Pairs that are set aside are not in the training text, and none is lost."""
    monkeypatch.chdir(tmp_path)
    pairs = {(f"one {i} word", f"ein {i} Wort") for i in range(50)}
    Path("p.tsv").write_text("".join(f"{src}\t{tgt}\n" for src, tgt in sorted(pairs)))
    flags = ["--src_lang", "eng", "--tgt_lang", "de", "--pairs", "p.tsv"]
    assert relattn("prepare", *flags, "--out", "o", "--valid", "7").code == 0
    train, valid = (
        list(zip(*(read(f"o/{name}.{code}{suffix}") for code in ("eng", "de")), strict=True))
        for name, suffix, read in (
            ("train", ".gz", unzipped),
            ("valid", "", lambda path: Path(path).read_text().splitlines()),
        )
    )
    assert (len(train), len(valid), {*train, *valid}) == (43, 7, pairs)
    assert_refused(relattn("prepare", *flags, "--out", "o2", "--valid", "50"), "valid must be less than")
    for text, fact in (("p.tsv", "most lines have a tab"), ("same", "got the same text")):
        Path("same").write_text("a\nb\n")
        command = ["--src_lang", "en", "--tgt_lang", "de", "--src", text, "--tgt", text, "--out", "o3"]
        assert_refused(relattn("prepare", *command), fact)
    for name, text in (("header.tsv", "eng\tde\n"), ("blank.jsonl", "\n")):
        Path(name).write_text(text)
        command = [*flags[:4], "--pairs", name, "--out", "o3"]
        assert_refused(relattn("prepare", *command), f"{name}: must have at least one pair")
    result = relattn("prepare", "--src_lang", "xyz", "--tgt_lang", "de", "--pairs", "p.tsv", "--out", "o4")
    assert "script of language xyz is unknown" in result.err


def unzipped(path: str) -> list[str]:
    return gzip.decompress(Path(path).read_bytes()).decode().splitlines()


def test_scripts_of_languages_by_three_letters():
    assert all(map(has_known_script, ("amh", "jpn", "rus", "zho", "deu", "heb", "tha", "kor", "ukr", "ell")))
    assert not any(map(has_known_script, ("xyz", "und")))
