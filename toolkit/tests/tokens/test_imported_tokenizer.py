"""Tokenizers of imported models: ids of their own vocabularies, and SentencePiece models that normalize text."""

import json
from dataclasses import replace

import pytest
import sentencepiece
import torch
from relattn_mt.config import ModelConfig, SearchConfig
from relattn_mt.model.transformer import Transformer
from relattn_mt.support.errors import InputError
from relattn_mt.tokens.imported_tokenizer import ImportedTokenizer, Vocabulary, tokenizer_in
from relattn_mt.tokens.tokenizer import SpecialTokens

from tests.support.bundles import LINES
from tests.support.engines import translator_of
from tests.support.foreign_bundles import require_no_tokens_from_text
from tests.support.transformers_models import train_sentencepiece

MARKS = ["</s>", "<blank>", "<s>", "<unk>", "<to de>"]  # special tokens, at other ids than ours


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Return a SentencePiece model."""
    path = tmp_path_factory.mktemp("model") / "sp"
    settings = {"vocab_size": 60, "hard_vocab_limit": False, "character_coverage": 1.0, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(LINES * 5), model_prefix=str(path), **settings)
    return sentencepiece.SentencePieceProcessor(model_file=f"{path}.model")


@pytest.fixture(scope="module")
def tokenizer(model):
    pieces = [model.id_to_piece(i) for i in range(3, model.get_piece_size())]
    sides = [*pieces[:5], *MARKS, *pieces[5:]], [*reversed(pieces), *reversed(MARKS)]
    vocabulary = Vocabulary(*sides, "<to de>", "</s>", "<unk>", source_begin=["<s>", "<to de>"], source_end=["</s>"])
    content = model.serialized_model_proto()
    return ImportedTokenizer(content, content, vocabulary)


def test_pieces_have_the_ids_of_the_vocabulary(tokenizer, model):
    source, target = tokenizer.vocabularies
    for line in LINES:
        pieces = model.encode(line, out_type=str)
        assert [source[i] for i in tokenizer.encode(line)] == pieces
        assert [target[i] for i in tokenizer.encode_target(line)] == pieces
        assert tokenizer.decode(tokenizer.encode_target(line)) == line
        (pair,) = tokenizer.encode_pairs([(line, line)])
        assert pair == (tokenizer.encode(line), tokenizer.encode_target(line))
    before, after = (source.index("<s>"), source.index("<to de>")), (source.index("</s>"),)
    bos, eos, blank = map(target.index, ("<to de>", "</s>", "<blank>"))
    assert tokenizer.special == SpecialTokens(bos, eos, tuple(sorted((bos, blank))), before, after)
    assert (tokenizer.vocab_sizes, tokenizer.unknown_piece) == ((len(source), len(target)), "<unk>")
    frequencies = list(tokenizer.frequencies())  # in an order that does not depend on the process
    assert frequencies == sorted(set(source) & set(target) - set(MARKS))
    for mark in ("</s>", "<blank>", "<unk>", "<to de>"):  # is not decoded
        assert tokenizer.decode([target.index(mark), *tokenizer.encode_target("two"), target.index(mark)]) == "two"
    assert tokenizer.encode("中") == [source.index(piece) for piece in ("▁", "<unk>")]
    assert tokenizer.decode(tokenizer.encode_target("中")) == ""
    same = replace(tokenizer.vocabulary, start="</s>")  # the start may be the end, which is not banned
    special = ImportedTokenizer(*list(tokenizer.files.values())[:2], same).special
    assert special.bos == special.eos not in special.banned


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_names_of_tokens_in_a_text_are_spelled(kind, tmp_path):
    """Including tokens that are user-defined pieces of the SentencePiece model, as in MADLAD-400."""
    names = ["<2de>", ">>deu<<", "__de__", "deu_Latn", "de_DE", "<blank>"]
    lines = [*LINES, *(" ".join(name) for name in names)]
    pieces = train_sentencepiece(tmp_path / "model", kind, 90, lines, user_defined_symbols=names)
    languages = {str(i): name for i, name in enumerate(names[:-1])}
    vocabulary = Vocabulary(pieces, pieces, "<s>", "</s>", "<unk>", ["<2de>"], ["</s>"], ["deu_Latn"], languages)
    content = (tmp_path / "model").read_bytes()
    tokenizer = ImportedTokenizer(content, content, vocabulary)
    require_no_tokens_from_text(tokenizer)
    for name in names:
        assert tokenizer.decode(tokenizer.encode_target(f"two{name} pears")) == f"two{name} pears"


def test_lengths_of_lines_are_those_after_normalization(tokenizer):
    """A zero-width space is nothing. The special tokens count for the longest source."""
    assert tokenizer.encode("\u200b") == []
    size = {"dim": 8, "heads": 2, "feed_forward_dim": 8, "encoder_layers": 1, "decoder_layers": 1}
    config = ModelConfig(**size, shared_embeddings="none", positions="learned", max_positions=9)
    torch.manual_seed(1)
    network = Transformer(config, *tokenizer.vocab_sizes)
    translator = translator_of(network, tokenizer, SearchConfig(max_length_extra=4))
    (alone,), (nothing,) = translator.n_best(["two", "\u200b"])
    assert alone.tokens
    assert nothing.tokens == []
    line = next(line for n in range(20) if len(tokenizer.encode(line := "pears and apples"[:n])) == 7)
    with pytest.raises(InputError, match=r"line 1 has 7 pieces, but this model reads at most 6 pieces"):
        translator.translate([line])


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("", None, None),
        ("vocabulary.json", lambda v: v.pop("end"), "'end'"),
        ("vocabulary.json", lambda v: v.update(end=3), "a vocabulary's end must be a string"),
        ("vocabulary.json", lambda v: v.update(source=["<s>", 3]), "a vocabulary's source must be a list of strings"),
        ("vocabulary.json", lambda v: v["target"].remove("</s>"), "the target vocabulary must have '</s>'$"),
        ("vocabulary.json", lambda v: v["source"].append("<s>"), "the source vocabulary must have '<s>' only once"),
        ("vocabulary.json", lambda v: v.update(source=[*MARKS, "￭a"]), "not the source's: 0 of its .* joined pieces"),
        ("vocabulary.json", b"[", r"vocabulary\.json: not JSON: "),
        ("tokenizer.target.model", b"none", "not a SentencePiece model, or a damaged one"),
        ("tokenizer.target.model", None, r"tokenizer\.target\.model: cannot be read: No such file"),
    ],
)
def test_files_round_trip_or_are_refused(tokenizer, tmp_path, name, change, message):
    files = dict(tokenizer.files)
    if callable(change):
        vocabulary = json.loads(files[name])
        change(vocabulary)
        change = json.dumps(vocabulary).encode()
    files[name] = change
    for file, content in files.items():
        if content is not None:
            (tmp_path / file).write_bytes(content)
    if message is None:
        again = tokenizer_in(tmp_path)
        for attribute in ("vocabularies", "special", "digest"):
            assert getattr(again, attribute) == getattr(tokenizer, attribute)
        return
    with pytest.raises(InputError, match=f"^{tmp_path}.*{message}"):
        tokenizer_in(tmp_path)
