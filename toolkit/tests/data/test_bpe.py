"""BPE of Moses tokens: what subword-nmt 0.3.8 and sacremoses 0.1.1 made of lines, and codes that are damaged."""

import sys

import pytest
from relattn_mt.data.bpe import BpeModel
from relattn_mt.data.imported_tokenizer import ImportedTokenizer, Vocabulary, marked_pieces
from relattn_mt.support.errors import InputError

from testing.foreign_bundles import FIXTURES, LINES, bpe_pieces

CODES = (FIXTURES / "bpe.model").read_bytes()
OLD = b"p p</w>\ne </w>\n" + CODES.partition(b"\n")[2]  # of version 0.1, where the end of a word is a symbol
CASES = [  # rules, language, codes, line, pieces, text
    ("argos", "en", CODES, "It's \"well-known\" & [new]: 5 % of apples…",
     "I@@ t &apos;s &quot; we@@ l@@ l@@ -@@ k@@ n@@ o@@ w@@ n &quot; &@@ a@@ m@@ p@@ ; &#9@@ 1@@ ; ne@@ w &#9@@ 3@@ ; "
     ": 5 % o@@ f apples .@@ .@@ .",
     "It's \"well-known\" & [new]: 5% of apples..."),
    ("argos", "de-DE", CODES, "„Birnen“ – 3.5 kg, z. B. Oma’s …",
     "&quot; Birnen &quot; - 3@@ .@@ 5 k@@ g , z@@ . B@@ . O@@ m@@ a &@@ ap@@ o@@ s@@ ; s .@@ .@@ .",
     "\"Birnen\" - 3.5 kg, z. B. Oma 's..."),
    ("opus-mt", "en", CODES, "It's “well-known” & <new>:\u200b 5\xa0% apples，too…",
     "I@@ t &apos;s &quot; we@@ l@@ l @@@ -@@ @ k@@ n@@ o@@ w@@ n &quot; &@@ a@@ m@@ p@@ ; &@@ l@@ t@@ ; ne@@ w "
     "&@@ g@@ t@@ ; : 5 % apples , t@@ o@@ o .@@ .@@ .",
     "It's \"well-known\" & < new >: 5% apples, too..."),
    ("argos", "fr", OLD, "L'apple « and » two : pears !",
     "L@@ &@@ ap@@ o@@ s; apple &@@ q@@ uot@@ ; a@@ n@@ d &@@ q@@ uot@@ ; t@@ w@@ o : pea@@ r@@ s !",
     "L'apple \"and\" two : pears !"),
    ("argos", "en", OLD, "two  apples", "t@@ w@@ o appl@@ e@@ s", "two apples"),
]  # fmt: skip


@pytest.mark.parametrize(("rules", "language", "codes", "line", "pieces", "text"), CASES)
def test_lines(rules, language, codes, line, pieces, text):
    model = BpeModel(codes, rules).with_language(language)
    assert " ".join(model.encode(line)) == pieces
    assert model.decode_pieces(pieces.split(" ")) == text
    assert model.decode_pieces([*pieces.split(" "), "x@@"]).endswith(" x")


def test_text_that_sacremoses_fails_at():
    model = BpeModel(CODES, "opus-mt").with_language("cs")
    assert model.decode_pieces(["a'", "-", "li"]) == "a' - li"
    assert model.encode("\u200b \x00") == []


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
    ("codes", "pieces", "fact"),
    [
        (CODES[:-7], ["a"], "line 45 must have two pieces, got '& '$"),
        (CODES.replace(b"a p\n", b"a p q\n"), ["a"], "line 2 must have two pieces, got 'a p q'$"),
        (b"", ["a"], "line 1 must have two pieces, got ''$"),
        (b"#version: 0.3\na p", ["a"], "line 1 must be #version: 0.1 or 0.2, got '#version: 0.3'$"),
        (CODES + b"\xff \xfe", ["a"], "can't decode byte 0xff"),
        (
            CODES,
            [f"▁{i}" for i in range(99)],
            "the set of codes is not the source's: 0 of its 45 pieces are in the vocabulary",
        ),
    ],
)
def test_damaged_codes(codes, pieces, fact):
    with pytest.raises(InputError, match=rf"^tokenizer\.model: .*{fact}"):
        tokenizer(codes, pieces)


def test_unknown_rules_and_missing_packages(monkeypatch):
    with pytest.raises(InputError, match=r"bpe must be argos or opus-mt, got moses$"):
        tokenizer(CODES, [], "moses")
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    with pytest.raises(InputError, match=r'sacremoses cannot be imported: pip install "relattn-mt\[bpe\]"'):
        tokenizer(CODES, [])
