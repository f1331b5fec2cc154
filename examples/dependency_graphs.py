"""Attention over labelled graphs: part-of-speech tags from words and the arcs of their dependency trees.

In Shaw et al. 2018 (section 3.1) a label for every pair of inputs picks aK_ij and aV_ij, rows of the tables wK and wV:

    e_ij = scale · q_i · (k_j + aK_ij)        α_i = softmax_j e_ij        z_i = Σ_j α_ij (v_j + aV_ij)

Here the inputs are the words of a sentence. Where word j is the head of word i by an arc of type t (nsubj, obj, det,
… T types), the pair (i, j) has the label t and the pair (j, i) has T + t. All other pairs, n² − 2(n − 1) of a sentence
of n words, have −1: no term. An encoder that sees these labels tags every word; it is trained with less, too, from the
same start (zeros in the tables) on the same batches:

    none           no relations and no positions: a bag of words
    positions      clipped distances −16 … 16, `relative_attention`
    arcs           two labels: "is my head" and "is my dependent"
    typed arcs     all 2T

The arcs are the annotators', not a parser's, and an arc's type says much about the tags at its ends. So two tables of
counts stand beside the models: the commonest tag of a word, and of a word with the type of the arc to its head. Words
are in lower case; those seen fewer than `--min-count` times in training are one unknown word, with a column of its own.

Data: Universal Dependencies English EWT, CC BY-SA 4.0; put `en_ewt-ud-train.conllu` and `en_ewt-ud-dev.conllu` of
github.com/UniversalDependencies/UD_English-EWT, gzipped or not, under data/ud_english_ewt. Then:

    OMP_NUM_THREADS=1 python examples/dependency_graphs.py --data data/ud_english_ewt --epochs 3 --seed 0
"""

import argparse
import gzip
import itertools
import random
import re
import time
import zlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from relattn import relation_attention, relative_attention

UPOS = "ADJ ADP ADV AUX CCONJ DET INTJ NOUN NUM PART PRON PROPN PUNCT SCONJ SYM VERB X"
TAGS = {tag: index for index, tag in enumerate(UPOS.split())}
NO_TAG = -100  # of padding: `cross_entropy` passes over it


class Word(NamedTuple):
    form: str  # in lower case
    tag: int  # in TAGS
    head: int  # the number of the word it hangs on, counted from 1; 0 for the root
    arc: str  # the type of the arc to its head


class Batch(NamedTuple):
    words: Tensor  # (batch, n) in [0, vocabulary]; 0 is the unknown word, and padding
    lengths: Tensor  # (batch,)
    relations: Tensor  # (batch, 1, n, n) in [−1, 2T): one graph for all heads
    tags: Tensor  # (batch, n), NO_TAG in padding


def read(folder: Path, split: str) -> list[list[Word]]:
    """The sentences of a split, a CoNLL-U file, gzipped or not; ValueError says in one line what is wrong and where."""
    paths = [*folder.glob(f"*-{split}.conllu"), *folder.glob(f"*-{split}.conllu.gz")]
    if len(paths) != 1:
        raise ValueError(f"{folder}: {len(paths)} files *-{split}.conllu or *-{split}.conllu.gz, where one is read")
    path = paths[0]
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
            groups = itertools.groupby(enumerate(file, start=1), key=lambda line: line[1].isspace())
            sentences = [read_sentence(path, lines) for blank, lines in groups if not blank]
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {error}") from error
    if not any(sentences):
        raise ValueError(f"{path}: no words in it")
    return [sentence for sentence in sentences if sentence]


def read_sentence(path: Path, lines: Iterable[tuple[int, str]]) -> list[Word]:
    """One sentence of its numbered lines; those of multiword tokens (1-2) and of empty nodes (8.1) are passed over."""
    words: list[Word] = []
    for number, line in lines:
        columns = line.rstrip("\n").split("\t")
        if line.startswith("#") or re.fullmatch(r"\d+[-.]\d+", columns[0]):
            continue
        where = f"{path}, line {number}"
        if len(columns) != 10:
            raise ValueError(f"{where}: {len(columns)} columns between tabs, where a word has 10")
        index, form, _, tag, _, _, head, arc, *_ = columns
        if index != str(len(words) + 1):
            raise ValueError(f"{where}: word number {index!r}, where {len(words) + 1} comes next")
        if tag not in TAGS:
            raise ValueError(f"{where}: tag {tag!r} is none of {UPOS}")
        if not head.isdecimal() or head == index:
            raise ValueError(f"{where}: head {head!r} is neither 0 nor the number of another word")
        words.append(Word(form.lower(), TAGS[tag], int(head), arc))
    if max((word.head for word in words), default=0) > len(words):
        raise ValueError(f"{where}: this sentence of {len(words)} words has a head past them")
    return words


def relate(sentences: list[list[Word]], types: dict[str, int]) -> Tensor:
    """The labels of all pairs of words: (batch, 1, n, n). An arc whose type is not among `types` has none."""
    n = max(len(sentence) for sentence in sentences)
    relations = torch.full((len(sentences), 1, n, n), -1, dtype=torch.int16)
    for graph, sentence in zip(relations[:, 0], sentences, strict=True):
        for i, word in enumerate(sentence):
            if word.head > 0 and word.arc in types:
                graph[i, word.head - 1] = types[word.arc]
                graph[word.head - 1, i] = len(types) + types[word.arc]
    return relations


def batches(sentences: list[list[Word]], vocabulary: dict[str, int], types: dict[str, int]) -> list[Batch]:
    """All sentences in batches of like lengths, of 1,024 words at most, padding included, or of one sentence."""
    groups: list[list[list[Word]]] = [[]]
    for sentence in sorted(sentences, key=len):
        if groups[-1] and (len(groups[-1]) + 1) * len(sentence) > 1024:
            groups.append([])
        groups[-1].append(sentence)
    made = []
    for group in groups:
        words = [torch.tensor([vocabulary.get(word.form, 0) for word in sentence]) for sentence in group]
        tags = [torch.tensor([word.tag for word in sentence]) for sentence in group]
        lengths = torch.tensor([len(sentence) for sentence in group])
        made.append(Batch(pad_sequence(words, True), lengths, relate(group, types), pad_sequence(tags, True, NO_TAG)))
    return made


DIM, HEADS, LAYERS, CLIP, DROPOUT = 128, 4, 2, 16, 0.2


class SelfAttention(nn.Module):
    """(batch, n, DIM) -> (batch, n, DIM), with the tables wK and wV of a variant, shared by the heads."""

    def __init__(self, variant: str, types: int) -> None:
        super().__init__()
        self.variant, self.types = variant, types
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        rows = {"none": 0, "positions": 2 * CLIP + 1, "arcs": 2, "typed arcs": 2 * types}[variant]
        self.rel_key, self.rel_value = (nn.Parameter(torch.zeros(rows, DIM // HEADS)) for _ in range(2))

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (3, HEADS, DIM // HEADS)).permute(2, 0, 3, 1, 4)
        tables = (None, None) if self.variant == "none" else (self.rel_key, self.rel_value)
        if self.variant == "positions":
            attended = relative_attention(query, key, value, *tables, clip=CLIP, key_lengths=batch.lengths)
        else:  # without its types a label is 0 or 1, and −1 stays −1
            labels = batch.relations // self.types if self.variant == "arcs" else batch.relations
            attended = relation_attention(query, key, value, labels, *tables, key_lengths=batch.lengths)
        return self.out(attended.transpose(1, 2).flatten(-2))


class Tagger(nn.Module):
    """An encoder with layer normalisation before each sub-layer; gives the scores of tags, (batch, n, tags)."""

    def __init__(self, variant: str, vocabulary: int, types: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary + 1, DIM)
        self.attention = nn.ModuleList(SelfAttention(variant, types) for _ in range(LAYERS))
        self.feed_forward = nn.ModuleList(
            nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.ReLU(), nn.Linear(2 * DIM, DIM)) for _ in range(LAYERS)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(2 * LAYERS + 1))
        self.dropout, self.scores = nn.Dropout(DROPOUT), nn.Linear(DIM, len(TAGS))

    def forward(self, batch: Batch) -> Tensor:
        x = self.dropout(self.embedding(batch.words))
        norms = iter(self.norms)
        for attention, feed_forward in zip(self.attention, self.feed_forward, strict=True):
            x = x + self.dropout(attention(next(norms)(x), batch))
            x = x + self.dropout(feed_forward(next(norms)(x)))
        return self.scores(next(norms)(x))


def fit(model: Tagger, train: list[Batch], epochs: int, seed: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-3, total_steps=epochs * len(train))
    order = random.Random(seed)
    for batch in (batch for _ in range(epochs) for batch in order.sample(train, len(train))):
        loss = F.cross_entropy(model(batch).flatten(0, 1), batch.tags.flatten(), ignore_index=NO_TAG)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


def count(train: list[Batch], dev: list[Batch], vocabulary: int, types: int) -> list[Tensor]:
    """The commonest tag of each word and type of its arc, an unknown word's where the two are new; 0 types: any arc."""

    def place(batch: Batch) -> tuple[Tensor, Tensor]:
        to_head = batch.relations.where(batch.relations < types, -1)
        return batch.words, 1 + to_head.amax((1, 3)).long()  # (batch, n) each; row 0 of types is for roots

    counts = torch.zeros(vocabulary + 1, 1 + types, len(TAGS))
    for batch in train:
        real, (word, arc) = batch.tags != NO_TAG, place(batch)
        counts.index_put_((word[real], arc[real], batch.tags[real]), torch.tensor(1.0), accumulate=True)
    counts += counts[0] / (1 + counts[0].sum())  # less than one: it decides where nothing else does
    return [counts[place(batch)].argmax(-1) for batch in dev]


def report(name: str, guesses: list[Tensor], dev: list[Batch], seconds: float) -> None:
    """One line: the share of tags that are right, among all words and among the unknown ones."""
    right = torch.cat([(guess == batch.tags)[batch.tags != NO_TAG] for guess, batch in zip(guesses, dev, strict=True)])
    unknown = torch.cat([batch.words[batch.tags != NO_TAG] == 0 for batch in dev])
    print(f"{name:24} {right.float().mean():7.2%} {right[unknown].float().mean():8.2%} {seconds:8.0f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Tag words by the arcs of their dependency trees, and without them.")
    parser.add_argument("--data", type=Path, default=Path("data/ud_english_ewt"), help="folder with the CoNLL-U files")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--min-count", type=int, default=5, help="words seen fewer times are one unknown word")
    arguments = parser.parse_args()
    try:
        if arguments.epochs < 1:
            raise ValueError(f"--epochs {arguments.epochs}: it is at least 1")
        sentences = {split: read(arguments.data, split) for split in ("train", "dev")}
    except ValueError as error:
        parser.exit(2, f"{error}\n")
    forms = Counter(word.form for sentence in sentences["train"] for word in sentence)
    known = sorted(form for form, times in forms.items() if times >= arguments.min_count)
    vocabulary = {form: index for index, form in enumerate(known, start=1)}
    arcs = sorted({word.arc for sentence in sentences["train"] for word in sentence if word.head > 0})
    types = {arc: label for label, arc in enumerate(arcs)}
    train, dev = (batches(sentences[split], vocabulary, types) for split in ("train", "dev"))

    print(f"{'':24} {'dev':>7} {'unknown':>8} {'seconds':>8}")
    for name, used in (("counts: word", 0), ("counts: word and arc", len(types))):
        report(name, count(train, dev, len(known), used), dev, 0)
    for variant in ("none", "positions", "arcs", "typed arcs"):
        torch.manual_seed(arguments.seed)
        started = time.perf_counter()
        model = Tagger(variant, len(known), len(types))
        fit(model, train, arguments.epochs, arguments.seed)
        model.eval()
        with torch.inference_mode():
            guesses = [model(batch).argmax(-1) for batch in dev]
        report(variant, guesses, dev, time.perf_counter() - started)


if __name__ == "__main__":
    main()
