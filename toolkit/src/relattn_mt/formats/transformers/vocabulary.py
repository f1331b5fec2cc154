"""Vocabulary of a model of transformers: pieces by id, special tokens and languages."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from relattn_mt.formats.foreign_model import (
    FAIRSEQ_LANGUAGES,
    MARIAN_LANGUAGE,
    NLLB_LANGUAGE,
    languages_of,
    read_json,
    require_setting,
    spm_pieces,
)
from relattn_mt.formats.transformers.directory import DIRECTORY, SHARED_MODEL, TOKENIZER, Settings, optional
from relattn_mt.support.errors import one_line, reading, require, require_at_most
from relattn_mt.support.files import require_files
from relattn_mt.support.types import Fields, PathPair, VocabSizes

_UNUSED = "madeupword"  # start of the names of pieces that no text has
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


def read_vocabulary(settings: Settings, sizes: VocabSizes) -> tuple[Fields, PathPair]:
    """Return fields of a `Vocabulary`, without start and end, and the SentencePiece models of source and target."""
    path = settings.path
    models = (path / SHARED_MODEL, path / SHARED_MODEL)
    end = settings.special_token("eos", "</s>")
    fields: Fields = {
        "unknown": settings.special_token("unk", "<unk>"),
        "source_end": [end],
        "target_begin": [],
    }
    if settings["model_type"] == "marian":
        settings.require_tokenizer("MarianTokenizer", None)
        source = target = _pieces(path, "vocab.json", sizes[0])
        if settings.tokenizer.get("separate_vocabs") is True:
            target = _pieces(path, "target_vocab.json", sizes[1])
        languages = languages_of(source, MARIAN_LANGUAGE)
        fields |= {"source": source, "target": target, "source_begin": [*languages.values()][:1]}
        return {**fields, "languages": languages}, (path / "source.spm", path / "target.spm")
    if settings["model_type"] == "mbart":
        settings.require_tokenizer("MBart50Tokenizer")  # the default is the tokenizer of another model
        languages = {code: code for code in _MBART_50_LANGUAGES.split()}
        if (path / "tokenizer.json").is_file():
            pieces = _pieces(path, "tokenizer.json", sizes[0])
        else:
            require_files(path, SHARED_MODEL, what=DIRECTORY)
            pieces = ["<s>", "<pad>", "</s>", "<unk>", *spm_pieces(models[0])[3:], *languages, "<mask>"]
            pieces = filled(models[0], pieces, sizes[0])
    elif (path / "vocab.json").is_file():
        settings.require_tokenizer("M2M100Tokenizer", None)
        pieces, languages = _m2m_100(settings, sizes[0])
    else:
        settings.require_tokenizer("NllbTokenizer", None)
        pieces = _pieces(path, "tokenizer.json", sizes[0])
        languages = languages_of(pieces, NLLB_LANGUAGE)
        require(languages, f"{path / 'tokenizer.json'}: must have tokens of languages such as eng_Latn, got none")
    token = next(iter(languages.values()))
    is_legacy = settings.tokenizer.get("legacy_behaviour") is True
    around = {"source_end": [end, token]} if is_legacy else {"source_begin": [token]}
    fields |= {"source": pieces, "target": pieces, "languages": languages, "target_begin": [token]}
    return {**fields, **around}, models


def _m2m_100(settings: Settings, size: int) -> tuple[list[str], dict[str, str]]:
    """Return the pieces of M2M-100 by id, and the tokens of its languages by code."""
    file = settings.path / TOKENIZER
    codes = settings.tokenizer.get("language_codes", "m2m100")
    known = isinstance(codes, str) and codes in _M2M_100_LANGUAGES
    require_setting(known, file, "language_codes", "m2m100 or wmt21", codes)
    languages = {code: f"__{code}__" for code in _M2M_100_LANGUAGES[codes].split()}
    pieces = _pieces(settings.path, "vocab.json", size, languages.values())
    return pieces, languages | _add_languages(pieces, settings)


def _pieces(path: Path, name: str, size: int, more: Collection[str] = ()) -> list[str]:
    """Return the pieces in a vocabulary by id.

    Args:
        path: The directory.
        name: The file vocab.json, or tokenizer.json, which contains a vocabulary.
        size: Number of rows of the embedding.
        more: Pieces with the ids that follow; without any, those of added_tokens.json follow a vocab.json.

    Raises:
        InputError: The file is missing or damaged, or its ids are not 0, 1, 2, …
    """
    file = path / name
    require_files(path, name, what=DIRECTORY)
    ids = read_json(file)
    if name == "tokenizer.json":
        with reading(file, "must have model.vocab and added_tokens"):
            added = {token["content"]: token["id"] for token in ids["added_tokens"]}
            vocabulary = ids["model"]["vocab"]
            if isinstance(vocabulary, list):  # with a score of each piece
                vocabulary = {piece: i for i, (piece, _) in enumerate(vocabulary)}
            ids = {**vocabulary, **added}
    elif not more:
        ids |= optional(path / "added_tokens.json")
    are_whole = all(type(number) is int for number in ids.values())
    valid = are_whole and sorted(ids.values()) == [*range(len(ids))]
    require(valid, f"{file}: the ids of its pieces must be 0, 1, 2, …, each once")
    return filled(file, [*sorted(ids, key=ids.__getitem__), *more], size)


def filled(file: Path, pieces: list[str], size: int) -> list[str]:
    """Return pieces by id with further ones, which no text has, for the other rows of the embedding."""
    require_at_most(size, len(pieces), f"{file}, by vocab_size,", "pieces")
    return [*pieces, *(f"{_UNUSED}{number}" for number in range(size - len(pieces)))]


def _add_languages(pieces: list[str], settings: Settings) -> dict[str, str]:
    """Give the languages that were added to M2M-100 their ids among its pieces, and return their tokens by code.

    Raises:
        InputError: An added token is not that of a language, or has an id that the model has for another piece.
    """
    path = settings.path
    added = optional(path / "added_tokens.json")
    with reading(path / TOKENIZER, "added_tokens_decoder must have the content of each id"):
        decoder = dict(settings.tokenizer.get("added_tokens_decoder") or {})
        added |= {token["content"]: int(number) for number, token in decoder.items()}
    new = []
    for token, number in added.items():
        held = pieces[number] if number in range(len(pieces)) else None
        if held == token:
            continue
        name = one_line(repr(token), 40)
        is_language = FAIRSEQ_LANGUAGES[0].fullmatch(token)
        require(is_language, f"{path}: added tokens must be of languages, such as __en__, got {name}")
        is_free = held is not None and held.startswith(_UNUSED)
        require(is_free, f"{path}: the added token {name} must have an id after those of vocab.json, got {number}")
        pieces[number] = token
        new.append(token)
    return languages_of(new, FAIRSEQ_LANGUAGES[0])
