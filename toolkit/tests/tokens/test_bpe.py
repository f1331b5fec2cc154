"""BPE of Moses tokens: what subword-nmt 0.3.8 and sacremoses 0.1.1 made of lines, and codes that are damaged."""

import sys

import pytest
from relattn_mt.support.errors import InputError
from relattn_mt.tokens.bpe import BpeModel
from relattn_mt.tokens.imported_tokenizer import ImportedTokenizer, Vocabulary, marked_pieces

from tests.support.foreign_bundles import FIXTURES, LINES, bpe_pieces

CODES = (FIXTURES / "bpe.model").read_bytes()
OLD = b"p p</w>\ne </w>\n" + CODES.partition(b"\n")[2]  # of version 0.1, where the end of a word is a symbol
CASES = [  # rules, language, codes, line, pieces, text
    ("argos", "de-DE", CODES, "„Birnen“ – 3.5 kg, z. B. Oma’s [nes]…",
     "&quot; Birnen &quot; - 3@@ .@@ 5 k@@ g , z@@ . B@@ . O@@ m@@ a &@@ ap@@ o@@ s@@ ; s &#9@@ 1@@ ; ne@@ s &#9@@ "
     "3@@ ; .@@ .@@ .", "\"Birnen\" - 3.5 kg, z. B. Oma 's [nes]..."),
    ("opus-mt", "en", CODES, "It's “well-known” & <new>:\u200b 5\xa0% apples，too…",
     "I@@ t &apos;s &quot; we@@ l@@ l @@@ -@@ @ k@@ n@@ o@@ w@@ n &quot; &@@ a@@ m@@ p@@ ; &@@ l@@ t@@ ; ne@@ w "
     "&@@ g@@ t@@ ; : 5 % apples , t@@ o@@ o .@@ .@@ .", "It's \"well-known\" & < new >: 5% apples, too..."),
    ("argos", "fr", OLD, "L'apple « and » nes : pears !",
     "L@@ &@@ ap@@ o@@ s; apple &@@ q@@ uot@@ ; a@@ n@@ d &@@ q@@ uot@@ ; ne@@ s : pea@@ r@@ s !",
     "L'apple \"and\" nes : pears !"),
]  # fmt: skip


@pytest.mark.parametrize(("rules", "language", "codes", "line", "pieces", "text"), CASES)
def test_lines(rules, language, codes, line, pieces, text):
    model = BpeModel(codes, rules).with_language(language)
    assert " ".join(model.encode(line)) == pieces
    assert model.decode_pieces(pieces.split(" ")) == text
    assert model.decode_pieces([*pieces.split(" "), "x@@"]).endswith(" x")
    assert model.with_language("cs").decode_pieces(["a'", "-", "li"]) == "a' - li"  # sacremoses fails


def tokenizer(codes: bytes, pieces: list[str], bpe: str = "argos") -> ImportedTokenizer:
    vocabulary = ["<unk>", "</s>", *pieces]
    return ImportedTokenizer(codes, CODES, Vocabulary(vocabulary, vocabulary, "</s>", "</s>", "<unk>", bpe=bpe))


def test_words_of_pieces():
    """Words of a text are separated by spaces, Moses tokens need not be."""
    ours = tokenizer(CODES, bpe_pieces())
    ids = ours.encode("17 apples, 4 pea")
    assert marked_pieces(ours, 0, ids) == ["▁17", "▁apples", ",", "▁4", "▁pe@@", "a"]
    assert [ours.decode(ours.encode_target(line)) for line in LINES] == LINES
    assert ours.target_texts[ids[-1]] == b"a "
    assert ours.target_texts[ids[-2]] == b"pe"


@pytest.mark.parametrize(
    ("codes", "pieces", "rules", "fact"),
    [
        (CODES[:-1], [], "argos", "line 46 must end with a line break: the file is cut off"),
        (b"", [], "argos", "line 1 must end with a line break"),
        (CODES + b"a\n", [], "argos", "line 47 must have two pieces, got 'a'"),
        (b"#version: 0.3\na p\n", [], "argos", "line 1 must be #version: 0.1 or 0.2, got '#version: 0.3'"),
        (CODES + b"\xff \xfe\n", [], "argos", "can't decode byte 0xff"),
        (
            CODES,
            list("abcdefg"),
            "argos",
            "the set of codes is not the source's: 0 of its 45 pieces are in the vocabulary",
        ),
        (CODES, [], "moses", "bpe must be argos or opus-mt, got moses"),
        (CODES, [], "", "not a SentencePiece model, or a damaged one"),
    ],
)
def test_damaged_codes(codes, pieces, rules, fact):
    with pytest.raises(InputError, match=rf"^tokenizer\.model: .*{fact}"):
        tokenizer(codes, pieces, rules)


def test_a_missing_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    with pytest.raises(InputError, match=r'sacremoses cannot be imported: pip install "./toolkit\[bpe\]"'):
        tokenizer(CODES, [])
