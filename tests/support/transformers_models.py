"""Small models of transformers with random weights, and their tokenizers, in the files that their authors publish."""

import json
from pathlib import Path
from typing import Any

import sentencepiece
import torch
import transformers
from transformers.models.m2m_100.tokenization_m2m_100 import FAIRSEQ_LANGUAGE_CODES

from tests.support.foreign_bundles import LINES

transformers.logging.disable_progress_bar()

SIZES = {
    **{"d_model": 24, "encoder_layers": 2, "decoder_layers": 1, "max_position_embeddings": 64},
    **{f"{stack}_attention_heads": 3 for stack in ("encoder", "decoder")},
    **{f"{stack}_ffn_dim": 20 for stack in ("encoder", "decoder")},
}
NLLB_LANGUAGES = ["deu_Latn", "eng_Latn", "fra_Latn"]


def train_sentencepiece(path: Path, kind: str, size: int, lines: list[str], **options: Any) -> list[str]:
    """Write a SentencePiece model, and return its pieces."""
    with open(path, "wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines * 5), model_writer=file, model_type=kind, vocab_size=size,
            hard_vocab_limit=False, character_coverage=1.0, minloglevel=2, **options,
        )  # fmt: skip
    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return [model.id_to_piece(i) for i in range(model.get_piece_size())]


def marian(
    path: Path, *, languages: tuple[str, ...] = (), separate: bool = False, generation: dict[str, Any] | None = None,
    lines: list[str] = LINES, vocab: int = 60, fill: int = 0, draw: tuple[float, float] = (0.25, 3.0), **config: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """Write a MarianMT model with the vocabulary of OPUS-MT: end, unknown, pieces of both sides, padding.

    `vocab` pieces are learned per side. Further ones, which no text has, fill a vocabulary up to `fill` pieces.
    """
    path.mkdir(parents=True)
    sides = [
        train_sentencepiece(path / name, kind, vocab, lines)[3:]
        for name, kind in (("source.spm", "unigram"), ("target.spm", "bpe"))
    ]
    before = ["</s>", "<unk>", *(f">>{code}<<" for code in languages)]
    both = [*before, *dict.fromkeys(sides[0] + sides[1])]
    vocabularies = [[*both, *(f"filling{i}" for i in range(fill - len(both) - 1)), "<pad>"]]
    if separate:  # of equal sizes, because padding has one id
        size = min(map(len, sides))
        vocabularies = [[*before, *side[:size], "<pad>"] for side in sides]
    files = {"source_spm": path / "source.spm", "target_spm": path / "target.spm", "vocab": path / "vocab.json"}
    files |= {"target_vocab_file": path / "target_vocab.json"} if separate else {}
    for file, pieces in zip(list(files.values())[2:], vocabularies, strict=True):
        file.write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}))
    languages_of = {"source_lang": "en", "target_lang": "de"}
    tokenizer = transformers.MarianTokenizer(
        **{name: str(file) for name, file in files.items()}, separate_vocabs=separate, **languages_of
    )
    last = len(vocabularies[0]) - 1
    ids = {"pad_token_id": last, "decoder_start_token_id": last, "eos_token_id": 0}
    sizes = {"vocab_size": len(vocabularies[0]), "share_encoder_decoder_embeddings": not separate}
    settings = {**SIZES, "activation_function": "swish", "scale_embedding": True, **config}
    torch.manual_seed(1)
    model = transformers.MarianMTModel(transformers.MarianConfig(**ids, **sizes, **settings, forced_eos_token_id=None))
    search = {"num_beams": 4, "max_length": 40, "bad_words_ids": [[ids["pad_token_id"]]], "forced_eos_token_id": 0}
    return save(path, model, tokenizer, {**ids, **search, **(generation or {})}, draw)


def m2m_100(
    path: Path, *, generation: dict[str, Any] | None = None, lines: list[str] = LINES, vocab: int = 60,
    fill: int = 0, end: float = 5.5, **config: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """Write an M2M-100 model with its 100 languages. Rows without a piece fill its embedding up to `fill` rows."""
    path.mkdir(parents=True)
    spm = path / "sentencepiece.bpe.model"
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *train_sentencepiece(spm, "bpe", vocab, lines)[3:]]
    (path / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}))
    languages = [f"__{code}__" for code in FAIRSEQ_LANGUAGE_CODES["m2m100"]]
    tokenizer = transformers.M2M100Tokenizer(str(path / "vocab.json"), str(spm), additional_special_tokens=languages)
    return fairseq_model(path, tokenizer, max(fill, len(pieces) + 100 + 8), generation, config, end)


def nllb(
    path: Path, *, legacy: bool = False, generation: dict[str, Any] | None = None, lines: list[str] = LINES,
    vocab: int = 60, end: float = 5.5, **config: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """Write an NLLB model with three languages."""
    path.mkdir(parents=True)
    train_sentencepiece(path / "sentencepiece.bpe.model", "bpe", vocab, lines)
    options = {"legacy_behaviour": legacy, "extra_special_tokens": NLLB_LANGUAGES}
    tokenizer = transformers.NllbTokenizer.from_pretrained(path, **options)
    return fairseq_model(path, tokenizer, len(tokenizer), generation, config, end)


def mbart_50(
    path: Path, *, is_new: bool = False, generation: dict[str, Any] | None = None, lines: list[str] = LINES,
    vocab: int = 60, end: float = 5.5, **config: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """Write an mBART-50 model with its 52 languages, with the file tokenizer.json if it `is_new`."""
    path.mkdir(parents=True)
    train_sentencepiece(path / "sentencepiece.bpe.model", "unigram", vocab, lines)
    tokenizer = transformers.MBart50Tokenizer.from_pretrained(path)
    published = {"normalize_before": True, "normalize_embedding": True, "tokenizer_class": "MBart50Tokenizer"}
    config, classes = {"scale_embedding": True, **published, **config}, ("MBartConfig", "MBartForConditionalGeneration")
    made = fairseq_model(path, tokenizer, len(tokenizer), generation, config, end, classes=classes)
    if not is_new:
        (path / "tokenizer.json").unlink()
    return made


def fairseq_model(
    path: Path, tokenizer: Any, vocab_size: int, generation: dict[str, Any] | None, config: dict[str, Any], end: float,
    *, classes: tuple[str, str] = ("M2M100Config", "M2M100ForConditionalGeneration"),
) -> tuple[Any, Any]:  # fmt: skip
    """Write a model of M2M-100's class, or of another one."""
    torch.manual_seed(1)
    made, model = (getattr(transformers, name) for name in classes)
    model = model(made(vocab_size=vocab_size, **{**SIZES, **config}))
    search = {"num_beams": 4, "max_length": 40, "early_stopping": True}
    ids = {"pad_token_id": 1, "decoder_start_token_id": 2, "eos_token_id": 2}
    return save(path, model, tokenizer, {**ids, **search, **(generation or {})}, (0.3, end))


def save(
    path: Path, model: Any, tokenizer: Any, generation: dict[str, Any], draw: tuple[float, float]
) -> tuple[Any, Any]:
    """Give a model random weights, and write it with its tokenizer."""
    randomize(model, generation["eos_token_id"], *draw)
    model.generation_config = transformers.GenerationConfig(**generation)
    model.eval().save_pretrained(path)
    tokenizer.save_pretrained(path)
    return model, tokenizer


def randomize(model: Any, eos: int, deviation: float, end: float) -> None:
    """Draw all weights at random, biases and norms included. Padding keeps its embedding of zeros.

    Args:
        model: The model.
        eos: End of sentence.
        deviation: Standard deviation that is added to the initial weights.
        end: Number that is added to the logit of the end of sentence, so that some translations end by themselves.
    """
    decoder, pad = model.model.decoder, model.config.pad_token_id
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                parameter += deviation * torch.randn(parameter.shape)
                if "embed_tokens" in name or "shared" in name:
                    parameter[pad] = 0
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias[0, :pad] += 0.4 * torch.randn(pad)
        for embedded in (model.model.encoder, decoder) if hasattr(decoder, "layernorm_embedding") else ():
            embedded.embed_positions.weight += deviation * torch.randn(embedded.embed_positions.weight.shape)
        norm = decoder.layer_norm if hasattr(decoder, "layer_norm") else decoder.layers[-1].final_layer_norm
        direction = model.lm_head.weight[eos]
        norm.bias += end * direction / direction.norm() ** 2


def t5(
    path: Path, *, kind: str = "T5", tied: bool = True, languages: tuple[str, ...] = (), vocab: int = 60,
    lines: list[str] = LINES, generation: dict[str, Any] | None = None, shards: str = "50GB", end: float = 1.5,
    draw: float = 0.2, **config: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """Write a model of T5's kinds, with the settings of published ones: an output of its own unless it is tied.

    Languages are pieces such as <2de>, as in MADLAD-400, whose special tokens have other ids than T5's.
    """
    path.mkdir(parents=True)
    ids = (
        {"unk_id": 0, "bos_id": 1, "eos_id": 2} if languages else {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
    )
    symbols = {"user_defined_symbols": [f"<2{code}>" for code in languages]}
    train_sentencepiece(path / "spiece.model", "unigram", vocab, lines, **ids, **symbols)
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(path / "spiece.model"))
    special = {"pad_token": pieces.id_to_piece(1)} if languages else {}
    tokenizer = transformers.T5Tokenizer.from_pretrained(path, extra_ids=0, **special)
    numbers = {"pad_token_id": int(bool(languages)), "eos_token_id": pieces.eos_id(), "decoder_start_token_id": 0}
    sizes = {"d_model": 24, "d_kv": 10, "d_ff": 20, "num_layers": 2, "num_decoder_layers": 1, "num_heads": 3}
    settings = {**numbers, **sizes, "vocab_size": pieces.get_piece_size() + 8, "dropout_rate": 0.1, **config}
    torch.manual_seed(1)
    made = getattr(transformers, f"{kind}Config")(**settings, tie_word_embeddings=tied)
    model = getattr(transformers, f"{kind}ForConditionalGeneration")(made)
    if not tied:
        model.lm_head.weight = torch.nn.Parameter(0.3 * torch.randn_like(model.lm_head.weight))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += draw * torch.randn(parameter.shape)
        model.lm_head.weight[numbers["eos_token_id"]] *= end  # so that some translations end by themselves
    model.generation_config = transformers.GenerationConfig(
        **numbers, **{"num_beams": 4, "max_length": 40, "early_stopping": True, **(generation or {})}
    )
    model.save_pretrained(path, max_shard_size=shards)
    tokenizer.save_pretrained(path)
    published = json.loads((path / "config.json").read_text()) | {"tie_word_embeddings": tied}
    published.pop("scale_decoder_outputs", None)  # of transformers 5
    (path / "config.json").write_text(json.dumps(published))
    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()  # about an output of its own
    read = type(model).from_pretrained(path).eval()
    transformers.logging.set_verbosity(level)
    return read, tokenizer
