import io
import random

import pytest
import sentencepiece

from relattn.translation.data.tokenizer import Tokenizer
from relattn.translation.errors import InputError

LINES = ["the cat sat on 1,204 mats", "die Katze saß auf 1.204 Matten", "a dog runs", "ein Hund läuft"] * 20
TEXTS = [
    "",
    " ",
    "   ",
    " the  cat   ",
    "\t the\tcat\r",
    "▁",
    "a▁b ▁ ▁▁",
    "the cat\u00a0sat\u202fon\u2028mats\u0085",
    "\ufeffthe cat",
    "e\u0301 é ﬁ ½ Ⅷ ﷺ",
    "😀 👩\u200d👩\u200d👧 中文 שלום \u200fعربي",
    "\x00 a\x00b \x7f",
    "<s> </s> <unk> <pad> <0x41> \\n",
    "\ufffd \uffff \U0010ffff \U0010fffe",
    "1204 ١٢ ²",
]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(LINES, 340, seed=1)


@pytest.mark.parametrize("text", TEXTS)
def test_any_line_comes_back_unchanged(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert not set(ids) & set(range(4))
    assert max(ids, default=0) < tokenizer.vocab_size


def test_every_character_of_the_basic_plane_comes_back(tokenizer):
    for start in range(0, 0x10000, 0x100):
        codes = [code for code in range(start, start + 0x100) if not 0xD800 <= code < 0xE000 and code != 0x0A]
        text = "".join(map(chr, codes))
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_each_digit_is_a_piece(tokenizer):
    plain = tokenizer.encode("on mats")
    assert len(tokenizer.encode("on 1204 mats")) >= len(plain) + 4
    assert tokenizer.encode("1204")[-4:] == tokenizer.encode("91204")[-4:]


def test_decode_drops_special_ids_and_never_breaks_a_line(tokenizer):
    ids = tokenizer.encode("the cat")
    assert tokenizer.decode([1, *ids, 3, 2, 0]) == "the cat"
    line_break = [tokenizer.vocabularies[0].index("<0x0A>")]
    assert tokenizer.decode([*ids, *line_break, *ids[:1]]).startswith("the cat ")
    assert "\n" not in tokenizer.decode([*ids, *line_break])


def test_training_is_deterministic_and_the_bytes_are_the_model(tokenizer):
    again = Tokenizer.train(LINES, 340, seed=1)
    assert again.model_bytes == tokenizer.model_bytes
    restored = Tokenizer(tokenizer.model_bytes)
    assert list(map(restored.encode, LINES)) == list(map(tokenizer.encode, LINES))
    assert restored.vocab_size == tokenizer.vocab_size


def test_a_small_text_has_a_smaller_vocabulary():
    small = Tokenizer.train(["hello"] * 3, 8000, seed=1)
    assert 4 + 256 < small.vocab_size < 8000


def test_load_reads_what_was_written(tokenizer, tmp_path):
    path = tmp_path / "tokenizer.model"
    path.write_bytes(tokenizer.model_bytes)
    assert Tokenizer.load(path).encode("the cat") == tokenizer.encode("the cat")


@pytest.mark.parametrize("content", [b"", b"junk", "half"])
def test_a_damaged_model_is_refused_by_name(tokenizer, tmp_path, content):
    path = tmp_path / "tokenizer.model"
    path.write_bytes(tokenizer.model_bytes[: len(tokenizer.model_bytes) // 2] if content == "half" else content)
    with pytest.raises(InputError, match=r"tokenizer\.model: not a SentencePiece model, or a damaged one"):
        Tokenizer.load(path)


def test_a_missing_model_is_refused_by_name(tmp_path):
    with pytest.raises(InputError, match=r"none\.model: cannot be read: No such file"):
        Tokenizer.load(tmp_path / "none.model")


def test_a_model_with_other_special_ids_is_refused():
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES), model_writer=written, vocab_size=40, minloglevel=2
    )
    with pytest.raises(InputError, match="pad, bos, eos, unk at 0, 1, 2, 3, got"):
        Tokenizer(written.getvalue())


def test_impossible_vocabularies_are_explained():
    with pytest.raises(InputError, match="no text to train a tokenizer on"):
        Tokenizer.train([], 300, seed=1)
    with pytest.raises(InputError, match=r"vocab_size must be at least \d+ for the characters of this text, got 100"):
        Tokenizer.train(LINES, 100, seed=1)


def test_errors_in_reading_keep_their_message():
    def lines():
        yield from LINES
        raise InputError("text.en: not UTF-8 at byte 17: invalid start byte")

    with pytest.raises(InputError, match=r"^text\.en: not UTF-8 at byte 17"):
        Tokenizer.train(lines(), 340, seed=1)


def test_a_flipped_bit_is_found_or_does_no_harm(tokenizer):
    """A damaged model is refused, or encodes every text. Wrong scores are found by the digest of a bundle."""
    source, texts = random.Random(1), [*LINES[:4], *TEXTS]
    refused = 0
    for _ in range(300):
        damaged = bytearray(tokenizer.model_bytes)
        at = source.randrange(8 * len(damaged))
        damaged[at // 8] ^= 1 << at % 8
        try:
            taken = Tokenizer(bytes(damaged))
        except InputError:
            refused += 1
            continue
        ids = list(map(taken.encode, texts))
        assert max(map(max, filter(None, ids))) < taken.vocab_size == tokenizer.vocab_size
        assert [taken.decode(row) for row in ids] == texts
    assert refused > 150


def test_a_vocabulary_that_has_lost_its_space_is_refused(tokenizer):
    """SentencePiece loads it, but decodes a different text than it encoded."""
    piece = b"\n\x03\xe2\x96\x81\x15"
    assert tokenizer.model_bytes.count(piece) == 1
    damaged = tokenizer.model_bytes.replace(piece, b"\n\x03\xe2\x96\x83\x15")
    with pytest.raises(InputError, match="not a SentencePiece model as this toolkit trains them, or a damaged one"):
        Tokenizer(damaged)


def test_a_long_line_is_learned_from():
    """By default, SentencePiece ignores lines of more than 4,192 bytes."""
    long = "the cat sat on жж " * 400
    assert len(Tokenizer.train([long], 300, seed=1).encode("ж")) == 2  # a space and a letter, not its two bytes
    assert len(Tokenizer.train([*LINES, long], 300, seed=1).encode("ж")) == 2


def test_a_vocabulary_is_learned_from_a_sample_of_lines():
    """Lines are drawn from the whole text and depend on the seed. Only the last lines have Cyrillic letters."""
    random_ = random.Random(1)
    lines = [" ".join(random_.choice(LINES).split()[::-1]) for _ in range(5000)] + ["жук и уж"] * 200
    drawn = Tokenizer.train(lines, 330, seed=1, max_lines=1000)
    assert Tokenizer.train(lines, 330, seed=1, max_lines=1000).digest == drawn.digest
    assert Tokenizer.train(lines, 330, seed=2, max_lines=1000).digest != drawn.digest
    assert Tokenizer.train(lines, 330, seed=1).digest != drawn.digest
    assert any("ж" in piece for piece in drawn.frequencies())
