"""Part-of-speech tagging with attention over labelled graphs: words, and the arcs of their dependency trees.

In Shaw et al. 2018 (section 3.1) a label for each pair of inputs selects aK_ij and aV_ij, rows of the tables wK and wV:

    e_ij = scale · q_i · (k_j + aK_ij)        α_i = softmax_j e_ij        z_i = Σ_j α_ij (v_j + aV_ij)

Arguments of `relation_attention`: the labels are `relations`, wK is `rel_key` and wV is `rel_value`.

The inputs here are the words of a sentence. If word j is the head of word i by an arc of type t (nsubj, obj, det, …
T types), the pair (i, j) has the label t and the pair (j, i) has T + t. All other pairs, n² − 2(n − 1) in a sentence of
n words, have the label −1, which adds no term. An encoder that reads these labels tags every word. It is compared with
variants that read less. All start from the same weights, with zeros in the tables, and train on the same batches:

    none           no relations and no positions: a bag of words
    positions      distances clipped to −16 … 16, with `relative_attention`
    arcs           two labels: "is my head" and "is my dependent"
    typed arcs     all 2T labels

The arcs come from annotators, not from a parser, and the type of an arc says much about the tags at its ends. The
models are therefore compared with two baselines by counting: the most frequent tag of a word, and of a word together
with the type of the arc to its head. Words are lower-cased. Words that occur fewer than `--min-count` times in training
become one unknown word. The table has a column with the accuracy on unknown words.

Data: Universal Dependencies English EWT, CC BY-SA 4.0. Put `en_ewt-ud-train.conllu` and `en_ewt-ud-dev.conllu` from
github.com/UniversalDependencies/UD_English-EWT, gzipped or not, under data/ud_english_ewt. Then run:

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
from relattn import relation_attention, relative_attention
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

UPOS = "ADJ ADP ADV AUX CCONJ DET INTJ NOUN NUM PART PRON PROPN PUNCT SCONJ SYM VERB X"
TAGS = {tag: index for index, tag in enumerate(UPOS.split())}
NO_TAG = -100  # tag of padding, which `cross_entropy` ignores


class Word(NamedTuple):
    form: str  # lower-cased
    tag: int  # index from TAGS
    head: int  # number of its head, counted from 1; 0 for the root
    arc: str  # type of the arc to its head


class Batch(NamedTuple):
    words: Tensor  # (batch, n) in [0, vocabulary]; 0 is the unknown word and padding
    lengths: Tensor  # (batch,)
    relations: Tensor  # (batch, 1, n, n) in [−1, 2T); one graph for all attention heads
    tags: Tensor  # (batch, n); NO_TAG in padding


def read(folder: Path, split: str) -> list[list[Word]]:
    """Read the sentences of one split from its CoNLL-U file, gzipped or not.

    Raises:
        ValueError: a file is missing or malformed. The message is one line with the place.
    """
    paths = [*folder.glob(f"*-{split}.conllu"), *folder.glob(f"*-{split}.conllu.gz")]
    if len(paths) != 1:
        raise ValueError(f"{folder} must have one file *-{split}.conllu or *-{split}.conllu.gz, got {len(paths)}")
    path = paths[0]
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
            groups = itertools.groupby(enumerate(file, start=1), key=lambda line: line[1].isspace())
            sentences = [read_sentence(path, lines) for blank, lines in groups if not blank]
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {error}") from error
    if not any(sentences):
        raise ValueError(f"{path}: the file must contain words, got none")
    return [sentence for sentence in sentences if sentence]


def read_sentence(path: Path, lines: Iterable[tuple[int, str]]) -> list[Word]:
    """Parse one sentence from its numbered lines. Multiword tokens (1-2) and empty nodes (8.1) are skipped."""
    words: list[Word] = []
    for number, line in lines:
        columns = line.rstrip("\n").split("\t")
        if line.startswith("#") or re.fullmatch(r"\d+[-.]\d+", columns[0]):
            continue
        place = f"{path}, line {number}"
        if len(columns) != 10:
            raise ValueError(f"{place}: a word must have 10 tab-separated columns, got {len(columns)}")
        index, form, _, tag, _, _, head, arc, *_ = columns
        if index != str(len(words) + 1):
            raise ValueError(f"{place}: the word number must be {len(words) + 1}, got {index!r}")
        if tag not in TAGS:
            raise ValueError(f"{place}: the tag must be one of {UPOS}, got {tag!r}")
        if not head.isdecimal() or head == index:
            raise ValueError(f"{place}: the head must be 0 or the number of another word, got {head!r}")
        words.append(Word(form.lower(), TAGS[tag], int(head), arc))
    if (last_head := max((word.head for word in words), default=0)) > len(words):
        raise ValueError(f"{place}: heads must be at most {len(words)}, the number of words, got {last_head}")
    return words


def label_pairs(sentences: list[list[Word]], types: dict[str, int]) -> Tensor:
    """Return the label of each pair of words: (batch, 1, n, n). Arcs with a type that is not in `types` get −1."""
    n = max(len(sentence) for sentence in sentences)
    relations = torch.full((len(sentences), 1, n, n), -1, dtype=torch.int16)
    for graph, sentence in zip(relations[:, 0], sentences, strict=True):
        for i, word in enumerate(sentence):
            if word.head > 0 and word.arc in types:
                graph[i, word.head - 1] = types[word.arc]
                graph[word.head - 1, i] = len(types) + types[word.arc]
    return relations


def batches(sentences: list[list[Word]], vocabulary: dict[str, int], types: dict[str, int]) -> list[Batch]:
    """Group all sentences by length into batches of at most 1,024 words with padding, or of one longer sentence."""
    groups: list[list[list[Word]]] = [[]]
    for sentence in sorted(sentences, key=len):
        if groups[-1] and (len(groups[-1]) + 1) * len(sentence) > 1024:
            groups.append([])
        groups[-1].append(sentence)
    result = []
    for group in groups:
        words = [torch.tensor([vocabulary.get(word.form, 0) for word in sentence]) for sentence in group]
        tags = [torch.tensor([word.tag for word in sentence]) for sentence in group]
        lengths = torch.tensor([len(sentence) for sentence in group])
        result.append(
            Batch(pad_sequence(words, True), lengths, label_pairs(group, types), pad_sequence(tags, True, NO_TAG))
        )
    return result


DIM, HEADS, LAYERS, CLIP, DROPOUT = 128, 4, 2, 16, 0.2


class SelfAttention(nn.Module):
    """Self-attention with the tables wK and wV of a variant, shared by the heads: (batch, n, DIM) to the same shape."""

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
            attended = relative_attention(query, key, value, *tables, clip=CLIP, lengths=batch.lengths)
        else:  # integer division removes the types: the labels become 0 and 1, and −1 stays −1
            labels = batch.relations // self.types if self.variant == "arcs" else batch.relations
            attended = relation_attention(query, key, value, labels, *tables, lengths=batch.lengths)
        return self.out(attended.transpose(1, 2).flatten(-2))


class Tagger(nn.Module):
    """Pre-norm encoder that returns the logits of the tags: (batch, n, tags)."""

    def __init__(self, variant: str, vocabulary: int, types: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary + 1, DIM)
        self.attention = nn.ModuleList(SelfAttention(variant, types) for _ in range(LAYERS))
        self.feed_forward = nn.ModuleList(
            nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.ReLU(), nn.Linear(2 * DIM, DIM)) for _ in range(LAYERS)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(2 * LAYERS + 1))
        self.dropout, self.logits = nn.Dropout(DROPOUT), nn.Linear(DIM, len(TAGS))

    def forward(self, batch: Batch) -> Tensor:
        x = self.dropout(self.embedding(batch.words))
        norms = iter(self.norms)
        for attention, feed_forward in zip(self.attention, self.feed_forward, strict=True):
            x = x + self.dropout(attention(next(norms)(x), batch))
            x = x + self.dropout(feed_forward(next(norms)(x)))
        return self.logits(next(norms)(x))


def fit(model: Tagger, train: list[Batch], epochs: int, seed: int) -> None:
    """Train for `epochs` passes over the batches, each in a random order."""
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-3, total_steps=epochs * len(train))
    order = random.Random(seed)
    for batch in (batch for _ in range(epochs) for batch in order.sample(train, len(train))):
        loss = F.cross_entropy(model(batch).flatten(0, 1), batch.tags.flatten(), ignore_index=NO_TAG)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


def most_frequent_tags(train: list[Batch], dev: list[Batch], vocabulary: int, types: int) -> list[Tensor]:
    """Return the most frequent tag in training for each word and arc type of `dev`: (batch, n) per batch.

    A pair that does not occur in training gets the most frequent tag of the unknown word with the arc type. If `types`
    is 0, the arc type is ignored.
    """

    def words_and_arcs(batch: Batch) -> tuple[Tensor, Tensor]:
        to_head = batch.relations.where(batch.relations < types, -1)
        return batch.words, 1 + to_head.amax((1, 3)).long()  # (batch, n) each; arc 0 is for roots

    counts = torch.zeros(vocabulary + 1, 1 + types, len(TAGS))
    for batch in train:
        real, (word, arc) = batch.tags != NO_TAG, words_and_arcs(batch)
        counts.index_put_((word[real], arc[real], batch.tags[real]), torch.tensor(1.0), accumulate=True)
    counts += counts[0] / (1 + counts[0].sum())  # less than 1, so it only breaks ties
    return [counts[words_and_arcs(batch)].argmax(-1) for batch in dev]


def print_row(name: str, predictions: list[Tensor], dev: list[Batch], seconds: float) -> None:
    """Print one row of the table: the accuracy on all words and on unknown words, and the seconds of training."""
    correct = torch.cat(
        [(tags == batch.tags)[batch.tags != NO_TAG] for tags, batch in zip(predictions, dev, strict=True)]
    )
    unknown = torch.cat([batch.words[batch.tags != NO_TAG] == 0 for batch in dev])
    print(f"{name:24} {correct.float().mean():7.2%} {correct[unknown].float().mean():8.2%} {seconds:8.0f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Tag words with and without the arcs of their dependency trees.")
    parser.add_argument(
        "--data",
        type=Path,
        default=Path("data/ud_english_ewt"),
        help="directory with the CoNLL-U files (default: %(default)s)",
    )
    parser.add_argument(
        "--epochs", type=int, default=3, help="number of passes over the training data (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="random seed of weights and batches (default: %(default)s)")
    minimum = "number of times a word must occur in training to be known (default: %(default)s)"
    parser.add_argument("--min-count", type=int, default=5, help=minimum)
    arguments = parser.parse_args()
    try:
        if arguments.epochs < 1:
            raise ValueError(f"--epochs must be at least 1, got {arguments.epochs}")
        sentences = {split: read(arguments.data, split) for split in ("train", "dev")}
    except ValueError as error:
        parser.exit(2, f"{error}\n")
    forms = Counter(word.form for sentence in sentences["train"] for word in sentence)
    known = sorted(form for form, occurrences in forms.items() if occurrences >= arguments.min_count)
    vocabulary = {form: index for index, form in enumerate(known, start=1)}
    arcs = sorted({word.arc for sentence in sentences["train"] for word in sentence if word.head > 0})
    types = {arc: label for label, arc in enumerate(arcs)}
    train, dev = (batches(sentences[split], vocabulary, types) for split in ("train", "dev"))

    print(f"{'':24} {'dev':>7} {'unknown':>8} {'seconds':>8}")
    for name, counted_types in (("counts: word", 0), ("counts: word and arc", len(types))):
        print_row(name, most_frequent_tags(train, dev, len(known), counted_types), dev, 0)
    for variant in ("none", "positions", "arcs", "typed arcs"):
        torch.manual_seed(arguments.seed)
        started = time.perf_counter()
        model = Tagger(variant, len(known), len(types))
        fit(model, train, arguments.epochs, arguments.seed)
        model.eval()
        with torch.inference_mode():
            predictions = [model(batch).argmax(-1) for batch in dev]
        print_row(variant, predictions, dev, time.perf_counter() - started)


if __name__ == "__main__":
    main()
