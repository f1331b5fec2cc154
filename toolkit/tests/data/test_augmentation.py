"""Augmentation: what each perturbation does, and that an epoch is a pure function of seed and number."""

import random
import re
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from relattn_mt.config import AugmentConfig, DataConfig, Recipe, StageConfig
from relattn_mt.data.augmentation import MOST_JOINED, NAMES, halves, perturb
from relattn_mt.data.copied_text import draw
from relattn_mt.data.encode import TranslationData, load_data
from relattn_mt.support.errors import InputError
from relattn_mt.tokens.imported_tokenizer import ImportedTokenizer, Vocabulary

from tests.support.foreign_bundles import FIXTURES, bpe_pieces

PAIRS = [(f"a dog no. {i} runs away.", f"Hund Nr. {i} läuft weg!") for i in range(19)]
OTHERS = [("I’m here, “aren't I”…", "Ich bin ‚da‘."), ("?!", "¿"), ("über 3 km", "ＡＢＣ。")]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("upper_case", [("I’M HERE, “AREN'T I”…", "ICH BIN ‚DA‘."), ("?!", "¿"), ("ÜBER 3 KM", "ＡＢＣ。")]),
        ("title_case", [("I’m Here, “Aren't I”…", "Ich Bin ‚Da‘."), ("?!", "¿"), ("Über 3 Km", "ＡＢＣ。")]),
        ("drop_punctuation", [("I’m here, “aren't I”", "Ich bin ‚da‘"), ("?!", "¿"), ("über 3 km", "ＡＢＣ")]),
    ],
)
def test_perturbations_of_one_line(name, expected):
    assert [perturb([name], [pair], 1) for pair in OTHERS] == expected


def test_the_same_text_is_inserted_on_both_sides():
    """It is what a side has more than before, for texts without the letters, spaces and marks of the line."""
    source, target, texts = "abab abab. abab", "baba baba baba.", set()
    for line in range(600):
        changed = perturb(["copy"], [(source, target)], line)
        added = ["".join(x for x in side if x not in "ab .") for side in changed]
        assert added[0] == added[1] != ""
        for before, after in zip((source, target), changed, strict=True):
            kept = iter(after)
            assert all(character in kept for character in before)  # in this order
        assert changed == perturb(["copy"], [(source, target)], line)
        texts.add(added[0])
    assert len(texts) > 500
    assert any(x[0] >= "\U0001f300" for x in texts)
    assert any(x.isdigit() and len(x) > 50 for x in texts)


NAME = "[a-z][A-Za-z0-9_]{1,9}"
KINDS = [  # of texts that programs and people write, each as a pattern
    *(r"\{NAME\}", r"\{\{NAME\}\}", r"%\(NAME\)s", r"%\(NAME\)d", r"\$\{NAME\}", r"\$NAME", "%NAME%", "<NAME>"),
    *("</NAME>", '<x id="NAME"/>', r"\[NAME\]", ":NAME:", "%s", "%d", r"%1\$s", r"%2\$d", r"%\.2f", "%%", r"\{\}"),
    *(r"\{0\}", "&amp;", r"\\n", "@NAME", "#NAME", r"NAME@NAME\.[a-z.]+", r"https://NAME\.[a-z.]+"),
    *(r"www\.NAME\.[a-z.]+/NAME/NAME", r"https://NAME\.[a-z.]+/NAME\?NAME=[0-9]+", "[\U0001f1e6-\U0001f1ff]{2}"),
    *("[\U0001f600-\U0001f64f]\ufe0f", ".\u200d.", *(f"[\U0001f300-\U0001f64f]{{{count}}}" for count in (1, 2, 3))),
    *("★{2,}", "[א-ת]+", "[가-힣]+", "[0-9]{60,}", "[A-Z0-9]{2,}(-[A-Z0-9]{2,}){3}"),
]  # fmt: skip


def test_texts_of_all_kinds_are_copied():
    chance = random.Random(1)
    texts = [draw(chance) for _ in range(20_000)]
    patterns = [re.compile(kind.replace("NAME", NAME)) for kind in KINDS]
    assert [each.pattern for each in patterns if not any(map(each.fullmatch, texts))] == []


def edits(a: str, b: str) -> int:
    """Return the Damerau–Levenshtein distance (optimal string alignment)."""
    table = np.zeros((len(a) + 1, len(b) + 1), dtype=int)
    table[:, 0], table[0] = range(len(a) + 1), range(len(b) + 1)
    for i in range(1, len(a) + 1):
        for j in range(1, len(b) + 1):
            least = [table[i - 1, j] + 1, table[i, j - 1] + 1, table[i - 1, j - 1] + (a[i - 1] != b[j - 1])]
            if i > 1 and j > 1 and a[i - 2 : i] == b[j - 2 : j][::-1]:
                least.append(table[i - 2, j - 2] + 1)
            table[i, j] = min(least)
    return int(table[-1, -1])


def test_typing_errors():
    """One edit in one of ten words, which keeps the first letter; not in numbers, short words and targets."""
    words = [f"{letter * 4}xy{letter}" for letter in "abcdefghijklmnopqrstuvw"]
    wrong = []
    for line in range(200):
        source = " ".join([*words[: 1 + line % 23], "12345", "of"])
        changed, target = perturb(["typos"], [(source, "Ziel")], line)
        pairs = list(zip(source.split(), changed.split(), strict=True))
        each = [edits(one, other) for one, other in pairs]
        assert max(each) <= 1
        assert sum(each) <= -(-len(pairs) // 10)
        assert (each[-2:], target) == ([0, 0], "Ziel")
        assert all(one[0] == other[0] for one, other in pairs)
        wrong.append(sum(each) / -(-len(pairs) // 10))
    assert np.mean(wrong) > 0.7  # two equal letters may change places


def test_joined_lines():
    joined = [perturb(["join_lines"], PAIRS[line : line + MOST_JOINED], line) for line in range(len(PAIRS))]
    counts = []
    for line, (src, tgt) in enumerate(joined):
        counts.append(src.count("away."))
        following = PAIRS[line : line + counts[-1]]
        assert (src, tgt) == tuple(" ".join(side) for side in zip(*following, strict=True))
    assert set(counts[:-3]) == {2, 3, MOST_JOINED}
    assert counts[-1] == 1


@given(
    st.lists(st.tuples(st.text(min_size=1), st.text(min_size=1)), min_size=1, max_size=4),
    st.sets(st.sampled_from(NAMES)),
)
def test_no_side_becomes_empty(pairs, names):
    changed = perturb(sorted(names), pairs, 1)
    assert all(changed)
    assert changed == perturb(sorted(names), pairs, 1)
    assert names or changed == pairs[0]


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """load(augment, stages): data of two corpora, of the pairs but one and of the rest, encoded once."""
    directory = tmp_path_factory.mktemp("text")
    for name, pairs in (("a", PAIRS[:13]), ("b", PAIRS[13:])):
        for side, lines in zip(("src", "tgt"), zip(*pairs, strict=True), strict=True):
            (directory / f"{name}.{side}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (directory / "list").write_text("a.src\ta.tgt\nb.src\tb.tgt\n")
    config = DataConfig(train_list=str(directory / "list"), vocab_size=300, max_tokens=300)
    load_data(Recipe(out=str(directory / "run"), data=config))

    def load(augment=AugmentConfig(), stages=(), seed=1, directory=directory / "run", **settings) -> TranslationData:  # noqa: B008
        changed = replace(config, augment=augment, **settings)
        return load_data(Recipe(out=str(directory), seed=seed, data=changed, stages=stages))

    return load


def pairs_of(data, steps):
    """Return the text of the pairs of each step."""
    batches = [
        [row for b in step.micro_batches for row in zip(b.src.tolist(), b.tgt_out.tolist(), strict=True)]
        for step in steps
    ]
    return [[tuple(map(data.tokenizer.decode, row)) for row in rows] for rows in batches]


def test_an_epoch_is_brute_force(load):
    """Each row has its drawn perturbations; joined lines stay within their corpus; lengths are those of the pieces."""
    data = load(AugmentConfig(join_lines=0.5, upper_case=0.5, typos=1.0))
    encode = data.tokenizer.encode
    for epoch in range(3):
        plan = data.train.epoch(epoch)
        for row in range(len(PAIRS)):
            names = [name for bit, name in enumerate(NAMES) if plan.pairs.changes[row] >> bit & 1]
            corpus = PAIRS[row:13] if row < 13 else PAIRS[row:]
            pieces = plan.pairs.row(row)
            text = perturb(names, corpus[:MOST_JOINED], 1, epoch, row)
            assert tuple(map(list, pieces)) == tuple(map(encode, text))
            assert [len(side) + 1 for side in pieces] == [lengths[row] for lengths in plan.lengths]


def test_shares_are_drawn_anew_for_every_epoch(load):
    data = load(AugmentConfig(join_lines=0.25, upper_case=0.5))
    masks = np.array([data.train.epoch(epoch).pairs.changes for epoch in range(200)])
    rates = [(masks >> bit & 1).mean() for bit in range(len(NAMES))]
    assert rates == pytest.approx([0.25, 0, 0, 0, 0.5, 0, 0], abs=0.02)
    assert len({mask.tobytes() for mask in masks}) == len(masks)
    assert (load(AugmentConfig(upper_case=0.5), seed=2).train.epoch(0).pairs.changes != masks[0]).any()


def test_sources_are_split_into_shorter_pieces_of_the_same_text(load):
    """One piece in ten is split of those that can be. Rows without the change have the pieces of the tokenizer."""
    data = load(AugmentConfig(split_pieces=0.5))
    tokenizer = data.tokenizer
    pieces = tokenizer.vocabularies[0]
    can_be_split = [
        any(piece[:end] in pieces and piece[end:] in pieces for end in range(1, len(piece)))
        for piece in pieces
    ]  # fmt: skip
    whole = load().train.epoch(0).pairs
    before = after = expected = 0
    for epoch in range(60):
        plan = data.train.epoch(epoch)
        for row in range(len(PAIRS)):
            source, target = map(list, whole.row(row))
            src, tgt = map(list, plan.pairs.row(row))
            assert tgt == target
            assert tokenizer.decode(src) == tokenizer.decode(source)
            assert len(src) + 1 == plan.lengths[0][row]
            assert src == list(plan.pairs.row(row)[0])
            if plan.pairs.changes[row]:
                before += len(source)
                after += len(src)
                expected += 0.1 * sum(can_be_split[piece] for piece in source)
            else:
                assert src == source
    assert 0.8 * expected < after - before < 1.3 * expected


def test_pieces_of_subword_nmt_are_not_split():
    """Two of them would be two words."""
    codes = (FIXTURES / "bpe.model").read_bytes()
    vocabulary = ["<unk>", "</s>", *bpe_pieces()]
    tokenizer = ImportedTokenizer(
        codes, codes, Vocabulary(vocabulary, vocabulary, "</s>", "</s>", "<unk>", bpe="argos")
    )  # fmt: skip
    with pytest.raises(InputError, match="split_pieces requires pieces that consist of two others"):
        halves(tokenizer)


def test_the_vocabulary_has_words_in_upper_case(tmp_path, load):
    """They are learned from the largest shares of all stages, and from no other text."""
    plain = load().tokenizer
    half = StageConfig(steps=1, augment=AugmentConfig(upper_case=0.5)), StageConfig()
    upper = load(directory=tmp_path, stages=half, vocab_size=330).tokenizer
    assert len(upper.encode("RUNS AWAY")) < len(plain.encode("RUNS AWAY"))
    assert len(upper.encode("runs away")) < len("runs away")
    assert load(directory=tmp_path / "b", vocab_size=330).tokenizer.digest != upper.digest


def test_too_long_pairs_stay_as_they_are(load):
    whole = load(AugmentConfig(upper_case=1.0)).train.epoch(0)
    longest = int(max(map(max, whole.lengths))) - 1
    data = load(AugmentConfig(upper_case=1.0), max_length=longest - 1)
    plan = data.train.epoch(0)
    kept = [row for row in range(len(PAIRS)) if not plan.pairs.changes[row]]
    assert 0 < len(kept) < len(PAIRS)
    assert all(max(lengths[row] for lengths in whole.lengths) - 1 == longest for row in kept)


STAGES = (
    StageConfig(steps=3, weights=(1.0, 0.0)),
    StageConfig(steps=2, weights=(0.0, 2.0), augment=AugmentConfig(upper_case=1.0)),
    StageConfig(weights=(0.5, 1.0), augment=AugmentConfig(typos=0.5, join_lines=0.5)),
)


def test_stages(load):
    """Each stage begins with a new epoch of its own mixture and augmentation, and a stream resumes in any of them."""
    data = load(stages=STAGES)
    steps = list(islice(data.train.steps(), 16))
    texts = pairs_of(data, steps)
    assert [step.stage for step in steps] == [0] * 3 + [1] * 2 + [2] * 11
    numbers = [(step.epoch, step.index) for step in steps]
    assert numbers[3] == (numbers[2][0] + 1, 0)
    assert numbers[5] == (numbers[4][0] + 1, 0)
    assert all(pair in PAIRS[:13] for step in texts[:3] for pair in step)
    assert all(pair in [(a.upper(), b.upper()) for a, b in PAIRS[13:]] for step in texts[3:5] for pair in step)
    for done in range(16):
        epoch, index = (numbers[done - 1][0], numbers[done - 1][1] + 1) if done else (0, 0)
        rest = list(islice(data.train.steps((epoch, index), done=done), 16 - done))
        assert [(step.epoch, step.index, step.stage) for step in rest] == [
            (step.epoch, step.index, step.stage) for step in steps[done:]
        ]
        assert pairs_of(data, rest) == texts[done:]


def test_wrong_number_of_weights(load):
    with pytest.raises(InputError, match="must be 2, one per corpus, got 3"):
        load(stages=(StageConfig(weights=(1.0, 1.0, 1.0)),))
