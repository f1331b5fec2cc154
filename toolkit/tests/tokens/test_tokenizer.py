"""Tokenizers that are trained here: any text comes back, and damaged models are refused."""

import io
import random

import pytest
import sentencepiece
from hypothesis import example, given
from hypothesis import strategies as st
from relattn_mt.support.errors import InputError
from relattn_mt.tokens.tokenizer import Tokenizer, word_indices

LINES = ["the cat sat on 1,204 mats", "die Katze saß auf 1.204 Matten", "a dog runs", "ein Hund läuft"] * 20
TEXTS = [
    *(" the  cat   ", "\t the\tcat\r", "▁", "a▁b ▁ ▁▁", "the cat\u00a0sat\u202fon\u2028mats\u0085", "\ufeffthe cat"),
    *("e\u0301 é ﬁ ½ Ⅷ ﷺ", "😀 👩\u200d👩\u200d👧 中文 שלום \u200fعربي", "\x00 a\x00b \x7f", "1204 ١٢ ²"),
    *("<s> </s> <unk> <pad> <0x41> \\n", "\ufffd \uffff \U0010ffff \U0010fffe"),
]
BASIC_PLANE = "".join(chr(code) for code in range(0x10000) if not 0xD800 <= code < 0xE000 and code != 0x0A)
TOKENIZER = Tokenizer.train(LINES, 340, seed=1)
BY_RULE = {
    "nfc": TOKENIZER,
    **{rule: Tokenizer.train(LINES, 340, seed=1, normalization=rule) for rule in ("nmt_nfkc", "identity")},
}


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n")))
def test_any_line_comes_back_as_it_is_normalized(text):
    for rule, tokenizer in BY_RULE.items():
        ids, read = tokenizer.encode(text), tokenizer.normalize(text)
        assert tokenizer.decode(ids) == read
        assert rule != "identity" or read == text
        assert all(4 <= i < tokenizer.vocab_size for i in ids)
        (pair,) = tokenizer.encode_pairs([(text, f"{text} x")])
        assert pair == (ids, tokenizer.encode_target(f"{text} x"))


for each in (*TEXTS, BASIC_PLANE):
    test_any_line_comes_back_as_it_is_normalized = example(each)(test_any_line_comes_back_as_it_is_normalized)


@given(st.lists(st.sampled_from([0x41, 0xC3, 0xA9, 0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0x98, 0x80, 0xEF, 0xBF, 0xBD])))
def test_bytes_that_form_no_character_are_left_out(content):
    ids = [TOKENIZER.vocabularies[0].index(f"<0x{byte:02X}>") for byte in content]
    text = TOKENIZER.decode(ids)
    assert text == bytes(content).decode("utf-8", "ignore")
    words = {word for word in word_indices([TOKENIZER.vocabularies[0][i] for i in ids]) if word is not None}
    assert len(words) == len(text.split())


def test_pieces():
    """Each digit is a piece. Decoding drops special tokens, and never breaks a line."""
    assert len(TOKENIZER.encode("on 1204 mats")) >= len(TOKENIZER.encode("on mats")) + 4
    assert TOKENIZER.encode("1204")[-4:] == TOKENIZER.encode("91204")[-4:]
    ids, line_break = TOKENIZER.encode("the cat"), TOKENIZER.vocabularies[0].index("<0x0A>")
    assert TOKENIZER.decode([1, *ids, 3, 2, 0]) == "the cat"
    decoded = TOKENIZER.decode([*ids, line_break, *ids[:1]])
    assert decoded.startswith("the cat ")
    assert "\n" not in decoded


def test_training_is_deterministic_and_the_bytes_are_the_model(tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(Tokenizer.train(LINES, 340, seed=1).files["tokenizer.model"])
    restored = Tokenizer.load(tmp_path / "tokenizer.model")
    assert (restored.files, restored.vocab_size) == (TOKENIZER.files, TOKENIZER.vocab_size)
    assert list(map(restored.encode, LINES)) == list(map(TOKENIZER.encode, LINES))


def without_special_ids():
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES), model_writer=written, vocab_size=40, minloglevel=2
    )
    return written.getvalue()


def without_space_mark():
    """SentencePiece loads it, but decodes a different text than it encoded."""
    piece = b"\n\x03\xe2\x96\x81\x15"
    assert TOKENIZER.files["tokenizer.model"].count(piece) == 1
    return TOKENIZER.files["tokenizer.model"].replace(piece, b"\n\x03\xe2\x96\x83\x15")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: None, "cannot be read: No such file"),
        (lambda: b"", "not a SentencePiece model, or a damaged one"),
        (lambda: b"junk", "not a SentencePiece model, or a damaged one"),
        (
            lambda: TOKENIZER.files["tokenizer.model"][: len(TOKENIZER.files["tokenizer.model"]) // 2],
            "not a SentencePiece model",
        ),
        (without_special_ids, "pad, bos, eos, unk at 0, 1, 2, 3, got"),
        (without_space_mark, "not a SentencePiece model as this toolkit trains them"),
    ],
)
def test_damaged_models_are_refused_by_name(tmp_path, make, message):
    content = make()
    if content is not None:
        (tmp_path / "tokenizer.model").write_bytes(content)
    with pytest.raises(InputError, match=rf"tokenizer\.model: .*{message}"):
        Tokenizer.load(tmp_path / "tokenizer.model")


def lines_with_an_error():
    yield from LINES
    raise InputError("text.en: not UTF-8 at byte 17")


@pytest.mark.parametrize(
    ("lines", "size", "message"),
    [
        ([], 300, "no text to train a tokenizer on"),
        (LINES, 100, r"vocab_size must be at least \d+ for the characters of this text, got 100"),
        (lines_with_an_error(), 340, r"^text\.en: not UTF-8 at byte 17"),  # SentencePiece hides such errors
    ],
)
def test_errors_of_training(lines, size, message):
    with pytest.raises(InputError, match=message):
        Tokenizer.train(lines, size, seed=1)


def test_long_lines_and_small_texts():
    """A small text gives fewer pieces. By default, SentencePiece ignores lines of more than 4,192 bytes."""
    assert 4 + 256 < Tokenizer.train(["hello"] * 3, 8000, seed=1).vocab_size < 8000
    long = "the cat sat on жж " * 400
    for lines in ([long], [*LINES, long]):
        assert len(Tokenizer.train(lines, 300, seed=1).encode("ж")) == 2  # a space and a letter, not its two bytes


def test_a_vocabulary_is_learned_from_a_sample_of_lines():
    """Lines are drawn from the whole text and depend on the seed. Only the last lines have Cyrillic letters."""
    random_ = random.Random(1)
    lines = [" ".join(random_.choice(LINES).split()[::-1]) for _ in range(2000)] + ["жук и уж"] * 100
    drawn = Tokenizer.train(lines, 330, seed=1, max_lines=500)
    assert Tokenizer.train(lines, 330, seed=1, max_lines=500).digest == drawn.digest
    assert Tokenizer.train(lines, 330, seed=2, max_lines=500).digest != drawn.digest
    assert Tokenizer.train(lines, 330, seed=1).digest != drawn.digest
    assert any("ж" in piece for piece in drawn.frequencies())
