"""Tests of examples/dependency_graphs.py: reading, labels, models, baselines, output and error messages."""

from __future__ import annotations

import gzip
import os
import random
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest
import torch

from examples import dependency_graphs as example
from examples.dependency_graphs import NO_TAG, TAGS, Word

ROOT = Path(__file__).parents[1]
VARIANTS = ("positions", "arcs", "typed arcs")

SENTENCES = """\
# text = I don't see it.
1	I	I	PRON	PRP	_	4	nsubj	4:nsubj	_
2-3	don't	_	_	_	_	_	_	_	_
2	do	do	AUX	VBP	_	4	aux	4:aux	_
3	n't	not	PART	RB	_	4	advmod	4:advmod	_
4	see	see	VERB	VB	_	0	root	0:root	_
4.1	see	see	VERB	VB	_	_	_	1:conj	_
5	it	it	PRON	PRP	_	4	obj	4:obj	SpaceAfter=No
6	.	.	PUNCT	.	_	4	punct	4:punct	_

# a comment and no words

1	Yes	yes	INTJ	UH	_	0	root	0:root	_
"""
FIRST = [
    Word("i", TAGS["PRON"], 4, "nsubj"),
    Word("do", TAGS["AUX"], 4, "aux"),
    Word("n't", TAGS["PART"], 4, "advmod"),
    Word("see", TAGS["VERB"], 0, "root"),
    Word("it", TAGS["PRON"], 4, "obj"),
    Word(".", TAGS["PUNCT"], 4, "punct"),
]
SECOND = [Word("yes", TAGS["INTJ"], 0, "root")]


def random_sentences(count: int, seed: int, forms: int = 5, types: int = 4) -> list[list[Word]]:
    """Build sentences with random trees: the head of each word is an earlier word of a shuffled order."""
    generator = random.Random(seed)
    sentences = []
    for _ in range(count):
        n = generator.randint(1, 7)
        order = generator.sample(range(1, n + 1), n)
        heads = {word: generator.choice(order[:rank]) if rank else 0 for rank, word in enumerate(order)}
        sentences.append(
            [
                Word(
                    f"w{generator.randrange(forms)}",
                    generator.randrange(len(TAGS)),
                    heads[word],
                    f"t{generator.randrange(types)}",
                )
                for word in range(1, n + 1)
            ]
        )
    return sentences


def fill(folder: Path, train: str | bytes = SENTENCES, dev: str = SENTENCES) -> Path:
    (folder / "xx-ud-train.conllu").write_bytes(train.encode() if isinstance(train, str) else train)
    (folder / "xx-ud-dev.conllu.gz").write_bytes(gzip.compress(dev.encode()))
    return folder


@pytest.mark.whole
def test_output_table(tmp_path):
    command = [sys.executable, ROOT / "examples" / "dependency_graphs.py", "--data", fill(tmp_path), "--min-count", "1"]
    environment = {**os.environ, "PYTHONWARNINGS": "error"}
    done = subprocess.run([*command, "--epochs", "2"], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    head, *rows = done.stdout.splitlines()
    assert head.split() == ["dev", "unknown", "seconds"]
    assert [re.split("  +", row)[0] for row in rows] == ["counts: word", "counts: word and arc", "none", *VARIANTS]
    assert [row.split()[-3] for row in rows[:2]] == ["100.00%"] * 2  # each word of dev is known and has one tag


def test_sentences_are_read_gzipped_or_not(tmp_path):
    fill(tmp_path)
    assert example.read(tmp_path, "train") == example.read(tmp_path, "dev") == [FIRST, SECOND]


def test_pairs_are_labelled_by_definition():
    sentences = random_sentences(30, seed=1)
    types = {"t0": 0, "t1": 1, "t3": 2}  # t2 has no label
    relations = example.label_pairs(sentences, types)
    longest = max(len(sentence) for sentence in sentences)
    assert relations.shape == (30, 1, longest, longest)
    for b, sentence in enumerate(sentences):
        for i in range(longest):
            for j in range(longest):
                expected = -1
                if max(i, j) < len(sentence):
                    if sentence[i].head == j + 1:
                        expected = types.get(sentence[i].arc, -1)
                    elif sentence[j].head == i + 1 and sentence[j].arc in types:
                        expected = 3 + types[sentence[j].arc]
                assert relations[b, 0, i, j] == expected, (b, i, j)


def test_batches_hold_each_sentence_once():
    sentences = random_sentences(700, seed=2)
    vocabulary, types = {"w1": 1, "w3": 2}, {"t0": 0, "t1": 1}
    result = example.batches(sentences, vocabulary, types)
    assert len(result) > 1
    assert all(batch.words.numel() <= 1024 for batch in result)
    found = []
    for batch in result:
        for words, length, tags in zip(batch.words.tolist(), batch.lengths.tolist(), batch.tags.tolist(), strict=True):
            assert tags[length:] == [NO_TAG] * (len(tags) - length)
            found.append((words[:length], tags[:length]))
    expected = [([vocabulary.get(w.form, 0) for w in s], [w.tag for w in s]) for s in sentences]
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize("with_arcs", [False, True])
def test_most_frequent_tags(with_arcs):
    vocabulary = {f"w{index}": index for index in range(1, 5)}
    types = {f"t{index}": index for index in range(3)}  # the fourth type has no label, so its words count as roots
    train, dev = random_sentences(150, seed=3), random_sentences(40, seed=4, forms=7)

    def word_and_arc(word):
        arc = types.get(word.arc, -1) if word.head > 0 else -1
        return vocabulary.get(word.form, 0), arc if with_arcs else -1

    seen = defaultdict(Counter)
    for sentence in train:
        for word in sentence:
            seen[word_and_arc(word)][word.tag] += 1

    def most_frequent_tag(word):
        form, arc = word_and_arc(word)
        return max(range(len(TAGS)), key=lambda tag: (seen[form, arc][tag], seen[0, arc][tag], -tag))

    train_data, dev_data = (example.batches(sentences, vocabulary, types) for sentences in (train, dev))
    predictions = example.most_frequent_tags(train_data, dev_data, 4, len(types) if with_arcs else 0)
    found = [
        tags[: int(length)].tolist()
        for batch_tags, batch in zip(predictions, dev_data, strict=True)
        for tags, length in zip(batch_tags, batch.lengths, strict=True)
    ]
    assert found == [[most_frequent_tag(word) for word in sentence] for sentence in sorted(dev, key=len)]


def tagger(variant: str, types: int) -> example.Tagger:
    torch.manual_seed(5)
    return example.Tagger(variant, 4, types).eval()


@pytest.mark.parametrize("variant", VARIANTS)
def test_all_variants_start_as_the_same_model(variant):
    types = {f"t{index}": index for index in range(4)}
    (batch,) = example.batches(random_sentences(30, seed=6), {f"w{index}": index for index in range(1, 5)}, types)
    with torch.no_grad():
        torch.testing.assert_close(tagger(variant, 4)(batch), tagger("none", 4)(batch), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("variant", ["none", *VARIANTS])
def test_padding_changes_nothing(variant):
    types, vocabulary = {f"t{index}": index for index in range(4)}, {f"w{index}": index for index in range(1, 5)}
    sentences = sorted(random_sentences(20, seed=11), key=len)
    (batch,) = example.batches(sentences, vocabulary, types)
    model = tagger(variant, 4)
    with torch.no_grad():
        for layer in model.attention:
            layer.rel_key.normal_()
            layer.rel_value.normal_()
        batched = model(batch)
        for logits, sentence in zip(batched, sentences, strict=True):
            (single,) = example.batches([sentence], vocabulary, types)
            torch.testing.assert_close(logits[: len(sentence)], model(single)[0], rtol=1e-4, atol=1e-5)


def test_typed_arcs_with_one_row_for_all_types_are_arcs():
    types = {f"t{index}": index for index in range(4)}
    (batch,) = example.batches(random_sentences(30, seed=7), {f"w{index}": index for index in range(1, 5)}, types)
    arcs, typed = tagger("arcs", 4), tagger("typed arcs", 4)
    with torch.no_grad():
        before = arcs(batch)
        for layer, typed_layer in zip(arcs.attention, typed.attention, strict=True):
            for table, typed_table in ((layer.rel_key, typed_layer.rel_key), (layer.rel_value, typed_layer.rel_value)):
                typed_table.copy_(table.normal_().repeat_interleave(4, dim=0))
        torch.testing.assert_close(typed(batch), arcs(batch), rtol=1e-4, atol=1e-5)
        assert not torch.allclose(arcs(batch), before, atol=0.1)


def changed(batch: example.Batch) -> dict[str, example.Batch]:
    """Return copies of the batch with other arc types, other arcs, or another order of words."""
    relations = batch.relations
    backwards = torch.arange(relations.shape[-1] - 1, -1, -1)
    return {
        "types": batch._replace(relations=torch.where(relations < 0, -1, relations ^ 1)),  # swaps 0 and 1, 2 and 3, …
        "arcs": batch._replace(
            relations=torch.where(relations < 0, -1, (relations + 4) % 8)
        ),  # swaps heads and dependents
        "order": batch._replace(words=batch.words[:, backwards], relations=relations[:, :, backwards][..., backwards]),
    }


@pytest.mark.parametrize(
    ("variant", "inputs"),
    [("none", set()), ("positions", {"order"}), ("arcs", {"arcs"}), ("typed arcs", {"arcs", "types"})],
)
def test_each_variant_depends_on_its_inputs_only(variant, inputs):
    """Tables are random. Sentences have seven words each, so reversing the order does not move padding."""
    sentences = [sentence for sentence in random_sentences(100, seed=8) if len(sentence) == 7]
    vocabulary, types = (
        {f"{letter}{index}": index for index in range(low, low + 4)} for letter, low in (("w", 1), ("t", 0))
    )
    (batch,) = example.batches(sentences, vocabulary, types)
    model = tagger(variant, 4)
    with torch.no_grad():
        for layer in model.attention:
            layer.rel_key.normal_()
            layer.rel_value.normal_()
        plain = model(batch)
        for change, other in changed(batch).items():
            output = model(other)
            output = output.flip(1) if change == "order" else output
            assert torch.allclose(output, plain, rtol=1e-4, atol=1e-5) == (change not in inputs), change


@pytest.mark.sampled(3)
@pytest.mark.parametrize("variant", VARIANTS)
def test_training_fits_a_small_data_set(variant):
    """Each word has one tag, so all tags can be learned. The tables, which start at zero, change."""
    types = {f"t{index}": index for index in range(4)}
    vocabulary = {f"w{index}": index for index in range(1, 5)}
    sentences = [
        [word._replace(tag=vocabulary.get(word.form, 0)) for word in sentence]
        for sentence in random_sentences(20, seed=9)
    ]
    data = example.batches(sentences, vocabulary, types)
    model = tagger(variant, 4).train()
    example.fit(model, data, epochs=50, seed=0)
    with torch.inference_mode():
        predictions = [model.eval()(batch).argmax(-1) for batch in data]
    for tags, batch in zip(predictions, data, strict=True):
        real = batch.tags != NO_TAG
        assert torch.equal(tags[real], batch.tags[real])
    assert all(layer.rel_key.any() and layer.rel_value.any() for layer in model.attention)


def row(*columns: object) -> str:
    return "\t".join(str(column) for column in columns) + "\n"


GOOD = row(1, "Go", "go", "VERB", "VB", "_", 0, "root", "_", "_")
BROKEN = {
    "columns": (GOOD + "2\tnow\n", "line 2: a word must have 10 tab-separated columns, got 2"),
    "spaces": (GOOD.replace("\t", "    "), "line 1: a word must have 10 tab-separated columns, got 1"),
    "number": (GOOD + GOOD, "line 2: the word number must be 2, got '1'"),
    "tag": (GOOD.replace("VERB", "VB"), "line 1: the tag must be one of ADJ"),
    "no head": (GOOD.replace("\t0\t", "\t_\t"), "line 1: the head must be 0 or the number of another word, got '_'"),
    "own head": (GOOD.replace("\t0\t", "\t1\t"), "line 1: the head must be 0 or the number of another word, got '1'"),
    "head out of range": (
        GOOD.replace("\t0\t", "\t2\t"),
        "line 1: heads must be at most 1, the number of words, got 2",
    ),
    "empty": ("", "the file must contain words"),
    "comments": ("# nothing\n\n", "the file must contain words"),
    "not text": (b"\xff\xfe\n", "can't decode byte 0xff"),
}


def fails(arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """Run the command with wrong arguments and return its error message, which must be one line."""
    monkeypatch.setattr(sys, "argv", ["dependency_graphs.py", *arguments])
    with pytest.raises(SystemExit) as stopped:
        example.main()
    output, error = capsys.readouterr()
    assert (stopped.value.code, output, error.count("\n")) == (2, "", 1)
    return error


@pytest.mark.parametrize("broken", BROKEN)
def test_a_malformed_file_is_reported_in_one_line(broken, tmp_path, monkeypatch, capsys):
    text, message = BROKEN[broken]
    error = fails(["--data", str(fill(tmp_path, train=text))], monkeypatch, capsys)
    assert error.startswith(f"{tmp_path / 'xx-ud-train.conllu'}")
    assert message in error


def test_a_truncated_or_invalid_gzip_file_is_reported_in_one_line(tmp_path, monkeypatch, capsys):
    path = fill(tmp_path) / "xx-ud-dev.conllu.gz"
    whole = path.read_bytes()
    for content in (whole[:-20], b"plain text\n", whole[:30] + bytes(40) + whole[70:]):
        path.write_bytes(content)
        assert fails(["--data", str(tmp_path)], monkeypatch, capsys).startswith(f"{path}: ")


def test_other_user_errors_are_reported_in_one_line(tmp_path, monkeypatch, capsys):
    assert "must have one file *-train.conllu" in fails(["--data", str(tmp_path / "nowhere")], monkeypatch, capsys)
    (fill(tmp_path) / "yy-ud-train.conllu").write_text(SENTENCES)
    assert "got 2" in fails(["--data", str(tmp_path)], monkeypatch, capsys)
    assert "--epochs must be at least 1, got 0" in fails(
        ["--data", str(tmp_path), "--epochs", "0"], monkeypatch, capsys
    )
