"""Tokenizers of imported models: ids of their own vocabularies, and SentencePiece models that normalize text."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import sentencepiece
import torch

from relattn.translation.config import ModelConfig, SearchConfig
from relattn.translation.data.batching import TrainingText, collate, eval_batches
from relattn.translation.data.imported_tokenizer import ImportedTokenizer, Vocabulary, tokenizer_in
from relattn.translation.data.mixture import Mixture
from relattn.translation.data.storage import Pairs
from relattn.translation.data.tokenizer import SpecialTokens
from relattn.translation.errors import InputError
from relattn.translation.model.transformer import Transformer
from relattn.translation.translate.torch_translator import TorchTranslator

LINES = ["one apple and two pears", "zwei Birnen und ein Apfel", "17 apples, 4 pears", "17 Äpfel, 4 Birnen"]
MARKS = ["</s>", "<blank>", "<s>", "<unk>", "<to de>"]  # special tokens, at other ids than ours


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("model") / "sp"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES * 5), model_prefix=str(path), vocab_size=60, hard_vocab_limit=False,
        character_coverage=1.0, minloglevel=2,
    )  # fmt: skip
    return path.with_suffix(".model")


def pieces_of(model: Path) -> list[str]:
    loaded = sentencepiece.SentencePieceProcessor(model_file=str(model))
    return [loaded.id_to_piece(i) for i in range(3, loaded.get_piece_size())]


@pytest.fixture
def tokenizer(model) -> ImportedTokenizer:
    pieces = pieces_of(model)
    vocabulary = Vocabulary(
        source=[*pieces[:5], *MARKS, *pieces[5:]],
        target=[*reversed(pieces), *reversed(MARKS)],
        start="<to de>",
        end="</s>",
        unknown="<unk>",
        source_begin=["<s>", "<to de>"],
        source_end=["</s>"],
    )
    return ImportedTokenizer(model.read_bytes(), model.read_bytes(), vocabulary)


def test_pieces_have_the_ids_of_the_vocabulary(tokenizer, model):
    loaded = sentencepiece.SentencePieceProcessor(model_file=str(model))
    source, target = tokenizer.vocabularies
    for line in LINES:
        pieces = loaded.encode(line, out_type=str)
        assert [source[i] for i in tokenizer.encode(line)] == pieces
        assert [target[i] for i in tokenizer.encode_target(line)] == pieces
        assert tokenizer.decode(tokenizer.encode_target(line)) == line
    assert tokenizer.special == SpecialTokens(
        pad=0,
        bos=target.index("<to de>"),
        eos=target.index("</s>"),
        banned=tuple(sorted((target.index("<to de>"), target.index("<blank>")))),
        src_begin=(source.index("<s>"), source.index("<to de>")),
        src_end=(source.index("</s>"),),
    )
    assert tokenizer.vocab_sizes == (len(source), len(target))
    assert tokenizer.unknown_piece == "<unk>"


def test_special_tokens_are_not_decoded(tokenizer):
    ids = tokenizer.encode_target("two pears")
    target = tokenizer.vocabularies[1]
    for mark in ("</s>", "<blank>", "<unk>", "<to de>"):
        assert tokenizer.decode([target.index(mark), *ids, target.index(mark)]) == "two pears"
    assert tokenizer.encode("中") == [tokenizer.vocabularies[0].index(piece) for piece in ("▁", "<unk>")]
    assert tokenizer.decode(tokenizer.encode_target("中")) == ""


def test_start_and_end_may_be_the_same_token(tokenizer):
    vocabulary = replace(tokenizer.vocabulary, start="</s>")
    special = ImportedTokenizer(*list(tokenizer.files.values())[:2], vocabulary).special
    assert special.bos == special.eos
    assert special.eos not in special.banned


def test_batches_have_its_marks(tokenizer):
    special = tokenizer.special
    src, tgt = [[7, 8, 9], [11]], [[3], [4, 5]]
    batch = collate(src, tgt, special)
    begin, end = special.src_begin, special.src_end
    assert batch.src.tolist() == [[*begin, 7, 8, 9, *end], [*begin, 11, *end, 0, 0]]
    assert batch.src_lengths.tolist() == [6, 4]
    assert batch.tgt_in.tolist() == [[special.bos, 3, 0], [special.bos, 4, 5]]
    assert batch.tgt_out.tolist() == [[3, special.eos, 0], [4, 5, special.eos]]
    (again,) = eval_batches(src, tgt, 100, special)
    assert sorted(again.src.tolist()) == sorted(batch.src.tolist())
    text = TrainingText(Pairs(src, tgt, None), ("text",), Mixture((2,), (2,)), special, max_tokens=100, seed=1)
    first = next(text.steps())
    assert sorted(first.micro_batches[0].src.tolist()) == sorted(batch.src.tolist())
    bare = collate(src, tgt, special._replace(src_begin=(), src_end=()))
    assert (bare.src.tolist(), bare.src_lengths.tolist()) == ([[7, 8, 9], [11, 0, 0]], [3, 1])
    rows = [batch.src.numel() for batch in eval_batches([[1]] * 9, [[1]] * 9, 16, special)]
    assert max(rows) == 16  # four sentences of four tokens


def test_a_line_that_normalisation_empties_is_blank(tokenizer):
    assert tokenizer.encode("\u200b") == []  # zero-width space
    config = ModelConfig(dim=8, heads=2, feed_forward_dim=8, encoder_layers=1, decoder_layers=1,
                         shared_embeddings="none", positions="learned", max_positions=9)  # fmt: skip
    torch.manual_seed(1)
    translator = TorchTranslator(
        Transformer(config, *tokenizer.vocab_sizes), tokenizer, SearchConfig(max_length_extra=4)
    )
    assert translator.n_best(["\u200b"])[0][0].tokens == []
    (alone,), _ = translator.n_best(["two", "\u200b"])
    assert alone.tokens
    exact = next(line for n in range(20) if len(tokenizer.encode(line := "pears and apples"[:n])) == 7)
    with pytest.raises(InputError, match=r"line 1 has 7 pieces, but this model reads at most 6$"):
        translator.translate([exact])


def test_drawn_pieces_do_not_depend_on_the_process(tokenizer, tmp_path):
    for name, content in tokenizer.files.items():
        (tmp_path / name).write_bytes(content)
    code = (
        "import pathlib, sys; from relattn.translation.data.imported_tokenizer import tokenizer_in;"
        "print(list(tokenizer_in(pathlib.Path(sys.argv[1])).frequencies()))"
    )
    said = {
        subprocess.run([sys.executable, "-c", code, str(tmp_path)], text=True,
                       env={**os.environ, "PYTHONHASHSEED": seed},
                       capture_output=True, check=True).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(said) == 1


def test_files_round_trip(tokenizer, tmp_path):
    for name, content in tokenizer.files.items():
        (tmp_path / name).write_bytes(content)
    again = tokenizer_in(tmp_path)
    assert (again.vocabularies, again.special, again.digest) == (
        tokenizer.vocabularies, tokenizer.special, tokenizer.digest,
    )  # fmt: skip

    def refused(change: Callable[[dict], object], message: str) -> None:
        content = json.loads(tokenizer.files["vocabulary.json"])
        change(content)
        (tmp_path / "vocabulary.json").write_text(json.dumps(content))
        with pytest.raises(InputError, match=message) as caught:
            tokenizer_in(tmp_path)
        assert str(tmp_path) in str(caught.value)

    refused(lambda c: c.pop("end"), "missing 1 required positional argument: 'end'$")
    refused(lambda c: c.update(end=3), "a vocabulary's end must be a string$")
    refused(lambda c: c.update(source=["<s>", 3]), "a vocabulary's source must be a list of strings$")
    refused(lambda c: c["target"].remove("</s>"), "the target vocabulary must have '</s>'$")
    (tmp_path / "vocabulary.json").write_text("[")
    with pytest.raises(InputError, match=r"vocabulary\.json: not JSON: "):
        tokenizer_in(tmp_path)
    (tmp_path / "vocabulary.json").write_bytes(tokenizer.files["vocabulary.json"])
    (tmp_path / "tokenizer.target.model").write_bytes(b"none")
    with pytest.raises(InputError, match=r"not a SentencePiece model, or a damaged one$"):
        tokenizer_in(tmp_path)
    (tmp_path / "tokenizer.target.model").unlink()
    with pytest.raises(InputError, match=r"tokenizer\.target\.model: cannot be read: No such file"):
        tokenizer_in(tmp_path)
