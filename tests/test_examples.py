"""Tests of examples/dependency_graphs.py and examples/translate.c."""

import gzip
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from relattn_mt.bundle import PACKAGED
from relattn_mt.engine import library

from examples import dependency_graphs as example
from examples.dependency_graphs import TAGS, Word
from toolkit.tests.engine.test_decoder import levels

VARIANTS = ("none", "positions", "arcs", "typed arcs")
VOCABULARY, TYPES = {f"w{i}": i for i in range(1, 5)}, {f"t{i}": i for i in range(4)}
SENTENCES = """\
# text = I don't see it.
1	I	I	PRON	PRP	_	3	nsubj	4:nsubj	_
2-3	don't	_	_	_	_	_	_	_	_
2	do	do	AUX	VBP	_	3	aux	4:aux	_
3	see	see	VERB	VB	_	0	root	0:root	_
3.1	see	see	VERB	VB	_	_	_	1:conj	_

# a comment and no words

1	Yes	yes	INTJ	UH	_	0	root	0:root	_
"""
READ = [
    [Word("i", TAGS["PRON"], 3, "nsubj"), Word("do", TAGS["AUX"], 3, "aux"), Word("see", TAGS["VERB"], 0, "root")],
    [Word("yes", TAGS["INTJ"], 0, "root")],
]


def random_sentences(count: int, seed: int, lengths: tuple[int, int] = (1, 7)) -> list[list[Word]]:
    """Build sentences with random trees: the head of each word is an earlier word of a shuffled order."""
    generator, sentences = random.Random(seed), []
    for _ in range(count):
        n = generator.randint(*lengths)
        order = generator.sample(range(1, n + 1), n)
        heads = {word: generator.choice(order[:rank]) if rank else 0 for rank, word in enumerate(order)}
        forms = [generator.randrange(5) for _ in range(n)]
        words = [Word(f"w{form}", form, heads[i], f"t{generator.randrange(4)}") for i, form in enumerate(forms, 1)]
        sentences.append(words)
    return sentences


def tagger(variant: str) -> example.Tagger:
    """Build a tagger with random tables."""
    torch.manual_seed(5)
    model = example.Tagger(variant, 4, 4).eval()
    for layer in model.attention:
        torch.nn.init.normal_(layer.rel_key)
        torch.nn.init.normal_(layer.rel_value)
    return model


def fill(folder: Path, train: str | bytes = SENTENCES) -> Path:
    (folder / "xx-ud-train.conllu").write_bytes(train.encode() if isinstance(train, str) else train)
    (folder / "xx-ud-dev.conllu.gz").write_bytes(gzip.compress(SENTENCES.encode()))
    return folder


def test_files_are_read_and_a_table_is_printed(tmp_path, monkeypatch, capsys):
    fill(tmp_path)
    assert example.read(tmp_path, "train") == example.read(tmp_path, "dev") == READ
    monkeypatch.setattr(sys, "argv", ["x", "--data", str(tmp_path), "--min-count", "1", "--epochs", "2"])
    example.main()
    _, *rows = capsys.readouterr().out.splitlines()
    assert [re.split("  +", row)[0] for row in rows] == ["counts: word", "counts: word and arc", *VARIANTS]
    assert [row.split()[-3] for row in rows[:2]] == ["100.00%"] * 2  # each word of dev is known and has one tag


def test_pairs_are_labelled_by_definition():
    sentences, types = random_sentences(30, seed=1), {"t0": 0, "t1": 1, "t3": 2}  # t2 has no label
    for graph, sentence in zip(example.label_pairs(sentences, types)[:, 0], sentences, strict=True):
        want = torch.full((7, 7), -1)
        for i, word in enumerate(sentence):
            if word.head > 0 and word.arc in types:
                want[i, word.head - 1] = types[word.arc]
                want[word.head - 1, i] = 3 + types[word.arc]
        assert torch.equal(graph, want.to(graph.dtype))


@pytest.mark.parametrize("variant", VARIANTS)
def test_padding_and_what_a_variant_does_not_read_change_nothing(variant):
    sentences = sorted(random_sentences(20, seed=11), key=len)
    model, (batch,) = tagger(variant), example.batches(sentences, VOCABULARY, TYPES)
    with torch.no_grad():
        for logits, sentence in zip(model(batch), sentences, strict=True):
            (single,) = example.batches([sentence], VOCABULARY, TYPES)
            torch.testing.assert_close(logits[: len(sentence)], model(single)[0], rtol=1e-4, atol=1e-5)
        (batch,) = example.batches(random_sentences(20, seed=8, lengths=(7, 7)), VOCABULARY, TYPES)
        labels, reverse = batch.relations, torch.arange(6, -1, -1)
        changes = {
            "types": batch._replace(relations=torch.where(labels < 0, -1, labels ^ 1)),  # swaps 0 and 1, 2 and 3, …
            "arcs": batch._replace(relations=torch.where(labels < 0, -1, (labels + 4) % 8)),  # swaps heads, dependents
            "order": batch._replace(words=batch.words[:, reverse], relations=labels[:, :, reverse][..., reverse]),
        }
        outputs = {name: model(other) for name, other in changes.items()}
        outputs["order"] = outputs["order"].flip(1)
        read = {name for name, output in outputs.items() if not torch.allclose(output, model(batch), 1e-4, 1e-5)}
    wants = {"none": set(), "positions": {"order"}, "arcs": {"arcs"}, "typed arcs": {"arcs", "types"}}
    assert read == wants[variant]


PYTHON = """
import sys
from relattn_mt import load
from relattn_mt.bundle import read_bundle
from relattn_mt.search.types import Request
translator, lines = load("everyday-en-de"), ["hello", "I would like a cup of tea, please.", "Where is the station?"]
special = translator.tokenizer.special
for line in lines:
    ids = [*special.src_begin, *translator.tokenizer.encode(line), *special.src_end]
    request = Request(1, ids, translator.preparation.limit(len(ids), translator.search), list(special.tgt_begin))
    ((best,),) = translator.runner.search([request], translator.search, [1])
    print(*ids, file=sys.stderr)
    print(f"{best.score:.9g}", *best.tokens)
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """Path of the compiled example in C."""
    path, source = tmp_path_factory.mktemp("program") / "program", Path(example.__file__).parent / "translate.c"
    options = ["-std=gnu11", "-Werror", f"-I{library.FOLDER}", source, "-ldl", "-lm", "-o", path]
    subprocess.run(["cc", *options], check=True)
    return path


@pytest.mark.parametrize("level", levels())
def test_a_program_in_c_finds_what_python_finds(level, program, tmp_path):
    """Tokens, and scores to the bit, on every processor level."""
    environment = {**os.environ, "RELATTN_LEVEL": level}

    def run(*command: object, **options: Any) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*map(str, command)], env=environment, capture_output=True, text=True, check=False, **options
        )
        assert done.returncode == 0, done.stderr
        return done

    expected, examples = run(sys.executable, "-c", PYTHON), Path(example.__file__).parent
    model, engine = tmp_path / "model", library.FOLDER / "relattn_mt.so"
    run(sys.executable, examples / "flat_model.py", PACKAGED / "everyday-en-de", model)
    assert run(program, engine, model, input=expected.stderr).stdout == expected.stdout
    model.write_bytes(model.read_bytes()[:100])
    refused = subprocess.run([program, engine, model], capture_output=True, text=True)
    assert refused.stderr == f"translate: {model}: must be a file of flat_model.py\n"


@pytest.mark.parametrize("level", [name for name in levels() if name.endswith(("_vnni", "_dotprod"))])
def test_the_program_in_c_refuses_instructions_that_the_processor_lacks(level, program, tmp_path):
    """A level has processors with and without dot products of int8."""
    model, examples = tmp_path / "model", Path(example.__file__).parent
    with_dots = {**os.environ, "RELATTN_LEVEL": level}
    writer = [sys.executable, examples / "flat_model.py", PACKAGED / "everyday-en-de", model]
    subprocess.run(writer, env=with_dots, check=True)
    without = {**os.environ, "RELATTN_LEVEL": level.partition("_")[0].replace("neon", "default")}
    command = [program, library.FOLDER / "relattn_mt.so", model]
    refused = subprocess.run(command, env=without, capture_output=True, text=True, input="")
    assert refused.returncode == 1
    assert refused.stderr == f"translate: {model}: was written for another int8 kernel\n"
