"""Word alignment of encoded text, on texts whose alignment is known and against its formulas in plain Python."""

import math
from collections import Counter, defaultdict
from itertools import product
from random import Random

import numpy as np
from relattn_mt.text.aligner import DIAGONAL, SURE, UNLINKED, Aligner

VOCAB = 50, 70


def shuffled_text(count: int, seed: int = 1) -> tuple[list[np.ndarray], list[np.ndarray], list[set[tuple[int, int]]]]:
    """Return sources of 4 to 9 of 40 pieces s, targets with pieces s + 10 in another order, and the links.

    Every eighth piece becomes two, s + 10 and 60 + s // 8. Sources may end with 49, and targets begin with 69, which
    have no links.
    """
    random = Random(seed)
    sources, targets, links = [], [], []
    for _ in range(count):
        source = random.sample(range(40), random.randint(4, 9))
        order = list(range(len(source)))
        at = random.randrange(len(order) - 1)
        order[at], order[at + 1] = order[at + 1], order[at]
        target, own = [], set()
        for position in order:
            pieces = (
                [source[position] + 10, 60 + source[position] // 8]
                if source[position] % 8 == 0
                else [source[position] + 10]
            )
            own |= {(position, len(target) + index) for index in range(len(pieces))}
            target += pieces
        if random.random() < 0.3:
            source.append(49)
        if random.random() < 0.3:
            target.insert(0, 69)
            own = {(src, tgt + 1) for src, tgt in own}
        sources.append(np.array(source, dtype=np.uint16))
        targets.append(np.array(target, dtype=np.uint16))
        links.append(own)
    return sources, targets, links


def links_of(aligner: Aligner, sources: list[np.ndarray], targets: list[np.ndarray]) -> list[set[tuple[int, int]]]:
    return [set(zip(src.tolist(), tgt.tolist(), strict=True)) for src, tgt in aligner.links(sources, targets)]


def test_links_of_a_text_whose_alignment_is_known():
    sources, targets, expected = shuffled_text(600)
    found = links_of(Aligner(sources, targets, VOCAB), sources, targets)
    right = sum(len(own & other) for own, other in zip(found, expected, strict=True))
    assert right / sum(map(len, found)) > 0.97
    assert right / sum(map(len, expected)) > 0.97


def test_links_do_not_depend_on_other_pairs_and_unknown_pieces_have_none():
    sources, targets, _ = shuffled_text(200)
    aligner = Aligner(sources, targets, VOCAB)
    together = links_of(aligner, sources, targets)
    alone = [links_of(aligner, [src], [tgt])[0] for src, tgt in zip(sources[:20], targets[:20], strict=True)]
    assert alone == together[:20]
    assert links_of(aligner, [np.array([48, 47])], [np.array([68])]) == [set()]


def test_pieces_that_share_two_pairs_can_be_linked():
    sources, targets, _ = shuffled_text(200)
    for source, target, count in ((45, 65, 1), (46, 66, 2)):
        sources += [np.array([source])] * count
        targets += [np.array([target])] * count
    aligner = Aligner(sources, targets, VOCAB)
    assert links_of(aligner, [np.array([45])], [np.array([65])]) == [set()]
    assert links_of(aligner, [np.array([46])], [np.array([66])]) == [{(0, 0)}]


def expected_links(sources: list[list[int]], targets: list[list[int]], passes: int) -> list[set[tuple[int, int]]]:
    """Return the links by the formulas of the module, one number at a time."""
    pairs = list(zip(sources, targets, strict=True))
    shared = Counter(key for src, tgt in pairs for key in product(set(src), set(tgt)))
    source_counts = Counter(s for src, _ in pairs for s in set(src))
    target_counts = Counter(t for _, tgt in pairs for t in set(tgt))
    dice = {(s, t): 2 * n / (source_counts[s] + target_counts[t]) for (s, t), n in shared.items() if n >= 2}
    reverse = {(t, s): value for (s, t), value in dice.items()}
    sides = [(dice, pairs, VOCAB[1]), (reverse, [(tgt, src) for src, tgt in pairs], VOCAB[0])]
    linked: list[list[dict[tuple[int, int], float]]] = []
    for table, texts, vocab in sides:
        counts = Counter(piece for _, generated in texts for piece in generated)
        total = sum(counts.values()) + vocab
        share = {piece: (counts[piece] + 1) / total for piece in range(vocab)}
        for _ in range(passes):
            found = [probabilities(table, share, states, generated) for states, generated in texts]
            expected: dict[tuple[int, int], float] = defaultdict(float)
            sums: dict[int, float] = defaultdict(float)
            for (states, generated), own in zip(texts, found, strict=True):
                for (i, j), value in own.items():
                    expected[states[i], generated[j]] += value
                    sums[states[i]] += value
            table = {(s, t): expected[s, t] / sums[s] for s, t in table}
        linked.append([probabilities(table, share, states, generated) for states, generated in texts])
    return [
        {(i, j) for (i, j), value in own.items() if math.sqrt(value * other[j, i]) >= SURE}
        for own, other in zip(*linked, strict=True)
    ]


def probabilities(
    table: dict[tuple[int, int], float], share: dict[int, float], states: list[int], generated: list[int]
) -> dict[tuple[int, int], float]:
    """Return how probably each piece comes from each state: p(i | j) by (i, j)."""
    found = {}
    for j, piece in enumerate(generated):
        prior = [
            math.exp(-DIAGONAL * abs((i + 0.5) / len(states) - (j + 0.5) / len(generated))) for i in range(len(states))
        ]
        scores = [
            (1 - UNLINKED) * p / sum(prior) * table.get((state, piece), 0.0)
            for p, state in zip(prior, states, strict=True)
        ]
        for i, score in enumerate(scores):
            found[i, j] = score / (sum(scores) + UNLINKED * share[piece])
    return found


def test_links_are_those_of_the_formulas():
    """On random text, where many pieces are repeated in a sentence, and links are far from sure."""
    random = Random(2)
    sources = [[random.randrange(8) for _ in range(random.randint(1, 7))] for _ in range(40)]
    targets = [[60 + (s + random.randrange(2)) % 8 for s in src if random.random() < 0.8] or [60] for src in sources]
    arrays = [[np.array(ids) for ids in side] for side in (sources, targets)]
    found = links_of(Aligner(*arrays, VOCAB), *arrays)
    assert sum(map(len, found)) > 60
    assert found == expected_links(sources, targets, passes=4)
