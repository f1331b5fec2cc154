"""Vocabulary of a model of transformers: pieces by id, special tokens and languages."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from relattn_mt.formats.foreign_model import (
    FAIRSEQ_LANGUAGES,
    MARIAN_LANGUAGE,
    NLLB_LANGUAGE,
    languages_of,
    read_json,
    spm_pieces,
)
from relattn_mt.formats.transformers.directory import DIRECTORY, SHARED_MODEL, TOKENIZER, Settings, optional
from relattn_mt.support.errors import one_line, reading, require
from relattn_mt.support.files import require_files
from relattn_mt.support.types import VocabSizes

UNUSED = "madeupword"  # start of the names of pieces that no text has
_M2M_100_LANGUAGES = {  # by the setting language_codes of the tokenizer, in the order of their ids
    "m2m100": "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr "
    "ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps "
    "pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu",
    "wmt21": "en ha is ja cs ru zh de",
}
_MBART_50_LANGUAGES = (
    "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV my_MM ne_NP nl_XX "
    "ro_RO ru_RU si_LK tr_TR vi_VN zh_CN af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN "
    "pl_PL ps_AF pt_XX sv_SE sw_KE ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI"
)


def read_vocabulary(
    path: Path, kind: str, sizes: VocabSizes, settings: Settings
) -> tuple[dict[str, Any], tuple[Path, Path]]:
    """Return fields of a `Vocabulary`, without start and end, and the SentencePiece models of source and target."""
    tokenizer = optional(path / TOKENIZER)
    end, unknown = (special_token(tokenizer, name, default) for name, default in (("eos", "</s>"), ("unk", "<unk>")))
    common: dict[str, Any] = {"unknown": unknown, "source_end": [end], "source_begin": [], "target_begin": []}
    _require_known_tokenizer(path, kind, settings)
    if kind == "marian":
        source = _pieces(path / "vocab.json", sizes[0])
        separate = tokenizer.get("separate_vocabs") is True
        target = _pieces(path / "target_vocab.json", sizes[1]) if separate else source
        languages = languages_of(source, MARIAN_LANGUAGE)
        begin = [next(iter(languages.values()))] if languages else []
        fields = {"source": source, "target": target, "languages": languages, "source_begin": begin}
        return {**common, **fields}, (path / "source.spm", path / "target.spm")
    models = (path / SHARED_MODEL, path / SHARED_MODEL)
    if kind == "mbart":
        languages = {code: code for code in _MBART_50_LANGUAGES.split()}
        file = path / ("tokenizer.json" if (path / "tokenizer.json").is_file() else SHARED_MODEL)
        pieces = _pieces(file, sizes[0], [*languages, "<mask>"])
    elif (path / "vocab.json").is_file():
        codes = tokenizer.get("language_codes", "m2m100")
        known = isinstance(codes, str) and codes in _M2M_100_LANGUAGES
        require(known, f"{path / TOKENIZER}: language_codes must be m2m100 or wmt21, got {one_line(repr(codes), 40)}")
        languages = {code: f"__{code}__" for code in _M2M_100_LANGUAGES[codes].split()}
        pieces = _pieces(path / "vocab.json", sizes[0], [*languages.values()])
        languages |= _add_languages(pieces, path, tokenizer)
    else:
        pieces = _pieces(path / "tokenizer.json", sizes[0])
        languages = languages_of(pieces, NLLB_LANGUAGE)
        require(languages, f"{path / 'tokenizer.json'}: must have tokens of languages such as eng_Latn, got none")
    fields = {"source": pieces, "target": pieces, "languages": languages}
    token = next(iter(languages.values()))
    if tokenizer.get("legacy_behaviour") is True:
        return {**common, **fields, "source_end": [end, token], "target_begin": [token]}, models
    return {**common, **fields, "source_begin": [token], "target_begin": [token]}, models


def _require_known_tokenizer(path: Path, kind: str, settings: Settings) -> None:
    """Raise an InputError if the tokenizer is of a class that may put other tokens around a text."""
    if kind == "m2m_100":
        expected = "M2M100Tokenizer" if (path / "vocab.json").is_file() else "NllbTokenizer"
    else:
        expected = "MarianTokenizer" if kind == "marian" else "MBart50Tokenizer"
    # The default of mBART is the tokenizer of another model.
    require_tokenizer_class(path, settings, expected, *([] if kind == "mbart" else [None]))


def require_tokenizer_class(path: Path, settings: Settings, expected: str, *others: str | None) -> None:
    """Raise an InputError unless the tokenizer has one of these classes. None stands for a tokenizer without one."""
    tokenizer = optional(path / TOKENIZER)
    name = tokenizer.get("tokenizer_class") or settings["tokenizer_class"]
    known = name in (expected, f"{expected}Fast", *others)
    require(known, f"{path / TOKENIZER}: tokenizer_class must be {expected}, got {one_line(repr(name), 40)}")
    for file, own in ((path / TOKENIZER, tokenizer.get("auto_map")), (settings.file, settings["auto_map"])):
        require(not own, f"{file}: must have no auto_map, which names code, got {one_line(repr(own), 80)}")


def _pieces(file: Path, size: int, more: Collection[str] = ()) -> list[str]:
    """Return the pieces in a vocabulary by id.

    Args:
        file: The file vocab.json, tokenizer.json, which contains a vocabulary, or a SentencePiece model of fairseq.
        size: Number of rows of the embedding; further pieces get names that no text has.
        more: Pieces with the ids that follow.

    Raises:
        InputError: The file is missing or damaged, or its ids are not 0, 1, 2, …
    """
    require_files(file.parent, file.name, what=DIRECTORY)
    content: dict[str, Any] = {} if file.name == SHARED_MODEL else read_json(file)
    if file.name == SHARED_MODEL:
        content = {piece: i for i, piece in enumerate(("<s>", "<pad>", "</s>", "<unk>", *spm_pieces(file)[3:]))}
    elif file.name == "tokenizer.json":
        with reading(file, "must have model.vocab and added_tokens"):
            added = {token["content"]: token["id"] for token in content["added_tokens"]}
            vocabulary = content["model"]["vocab"]
            if isinstance(vocabulary, list):  # with a score of each piece
                vocabulary = {piece: i for i, (piece, _) in enumerate(vocabulary)}
            content = {**vocabulary, **added}
            more = ()
    elif not more:
        content = {**content, **optional(file.parent / "added_tokens.json")}
    whole = all(type(number) is int for number in content.values())
    ids = sorted(content.values()) if whole else []
    require(ids == [*range(len(content))], f"{file}: the ids of its pieces must be 0, 1, 2, …, each once")
    pieces = [*sorted(content, key=content.__getitem__), *more]
    require(len(pieces) <= size, f"{file}: must have at most {size:,} pieces, the vocab_size, got {len(pieces):,}")
    return [*pieces, *(f"{UNUSED}{number}" for number in range(size - len(pieces)))]


def _add_languages(pieces: list[str], path: Path, tokenizer: Mapping[str, Any]) -> dict[str, str]:
    """Give the languages that were added to M2M-100 their ids among its pieces, and return their tokens by code.

    Raises:
        InputError: An added token is not that of a language, or has an id that the model has for another piece.
    """
    added = optional(path / "added_tokens.json")
    with reading(path / TOKENIZER, "added_tokens_decoder must have the content of each id"):
        decoder = dict(tokenizer.get("added_tokens_decoder") or {})
        added |= {token["content"]: int(number) for number, token in decoder.items()}
    new = []
    for token, number in added.items():
        held = pieces[number] if number in range(len(pieces)) else None
        if held == token:
            continue
        name = one_line(repr(token), 40)
        is_language = FAIRSEQ_LANGUAGES[0].fullmatch(token)
        require(is_language, f"{path}: added tokens must be of languages, such as __en__, got {name}")
        is_free = held is not None and held.startswith(UNUSED)
        require(is_free, f"{path}: the added token {name} must have an id after those of vocab.json, got {number}")
        pieces[number] = token
        new.append(token)
    return languages_of(new, FAIRSEQ_LANGUAGES[0])


def piece_of(pieces: list[str], number: int, path: Path) -> str:
    """Return the piece with an id."""
    require(0 <= number < len(pieces), f"{path}: special tokens must have ids below {len(pieces):,}, got {number}")
    return pieces[number]


def special_token(tokenizer: Mapping[str, Any], name: str, default: str) -> str:
    """Return a special token in tokenizer_config.json, which is text or has a content."""
    value = tokenizer.get(f"{name}_token") or default
    value = value.get("content", default) if isinstance(value, dict) else value
    return value if isinstance(value, str) else default
