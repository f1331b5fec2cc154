"""Settings of a search of transformers, as ours."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from relattn_mt.config import SearchConfig
from relattn_mt.formats.foreign_model import read_json, require_setting, typed
from relattn_mt.formats.transformers.directory import GENERATION, Settings
from relattn_mt.support.errors import naming, one_line, require
from relattn_mt.support.types import Fields

_ZEROS = ["min_length", "min_new_tokens", "diversity_penalty", "encoder_no_repeat_ngram_size", "penalty_alpha"]
_OTHER_SETTINGS: dict[str, Collection[Any]] = {  # settings that may change translations, with the values that do not
    "do_sample": (False,),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
    **dict.fromkeys(_ZEROS, (0,)),
    **dict.fromkeys(("num_beam_groups", "encoder_repetition_penalty", "guidance_scale"), (1,)),
    **dict.fromkeys(("sequence_bias", "exponential_decay_length_penalty", "constraints", "force_words_ids"), ()),
    **dict.fromkeys(("dola_layers", "stop_strings", "max_time", "watermarking_config"), ()),
}


class Generation:
    """Settings of a search, in generation_config.json or, in old models, in config.json."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.file = settings.file
        self.content: Fields = settings.config
        own = settings.path / GENERATION
        if own.is_file():
            self.file = own
            self.content = read_json(own)

    def _number(self, name: str, default: Any, kind: type[int] | type[float] = int) -> Any:
        value = self.content.get(name)
        return default if value is None else typed(self.file, name, value, kind)

    def token(self, name: str) -> int:
        """Return the id of a special token; a list must have one."""
        value = self.content.get(name)
        if value is None:
            value = self.settings[name]
        if isinstance(value, list) and len(value) == 1:
            (value,) = value
        return typed(self.file, name, value, int)

    def piece(self, name: str, pieces: Sequence[str]) -> str:
        """Return the piece of a special token."""
        number = self.token(name)
        valid = 0 <= number < len(pieces)
        require(valid, f"{self.settings.path}: special tokens must have ids below {len(pieces):,}, got {number}")
        return pieces[number]

    def removes(self, token: int) -> bool:
        """Return whether a forbidden token has no probability: those of the others are computed without it."""
        return self.content.get("renormalize_logits") is True and [token] in self._bad_words

    @property
    def _bad_words(self) -> list[Any]:
        """Sequences of tokens that are not generated."""
        words = self.content.get("bad_words_ids")
        valid = words is None or isinstance(words, list)
        require_setting(valid, self.file, "bad_words_ids", "a list", words)
        return words or []

    def search(self, begin_count: int, banned: Collection[int]) -> tuple[SearchConfig, list[str]]:
        """Return our search, for `begin_count` first tokens, and notes about settings with another effect."""
        beam = self._number("num_beams", 1)
        alpha = self._number("length_penalty", 1.0, float)
        early = self.content.get("early_stopping")
        ngram = self._number("no_repeat_ngram_size", 0)
        penalty = self._number("repetition_penalty", 1.0, float)
        longest = self._number("max_new_tokens", None)
        longest = self._number("max_length", None) if longest is None else longest + 1
        end = self.content.get("forced_eos_token_id")
        if longest is not None and end is None:  # a translation of this length has no end; here, an end follows
            longest += 1
        limits: Fields = {}
        if longest is not None:
            limits = {"max_length_ratio": 0.0, "max_length_extra": max(1, longest - 1 - begin_count)}
        notes = []
        changed = [name for name, none in _OTHER_SETTINGS.items() if self.content.get(name) not in (None, *none)]
        words = self._bad_words
        if any(word not in [[token] for token in banned] for word in words):
            changed.append("bad_words_ids other than padding")
        if end is not None and end not in (self.token("eos_token_id"), [self.token("eos_token_id")]):
            changed.append("forced_eos_token_id")
        if not 0 <= alpha <= 5:
            changed.append(f"length_penalty {alpha}")
            alpha = 1.0
        if early not in (None, True, False, "never"):
            changed.append(f"early_stopping {one_line(early, 20)}")
        if changed:
            notes.append(f"not taken from {self.file.name}: {', '.join(changed)}")
        if ngram or penalty != 1.0:
            notes.append("no_repeat_ngram and repetition_penalty change logits here, and log-probabilities there")
        with naming(self.file):
            search = SearchConfig(
                beam_size=beam,
                length_penalty="average",
                alpha=alpha,
                early_stopping=True if early is True else False if early == "never" else "heuristic",
                no_repeat_ngram=ngram,
                repetition_penalty=penalty,
                **limits,
            )
        return search, notes
