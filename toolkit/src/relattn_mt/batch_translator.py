"""Translate a column of a table, batch by batch, as libraries for tables call a function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

from relattn_mt.support.errors import InputError, one_line, require
from relattn_mt.translate import Precision
from relattn_mt.translate.options import DEFAULTS, TranslateOptions
from relattn_mt.translate.output_formats import columns
from relattn_mt.translate.translation import Translation
from relattn_mt.translate.translator import Translator

_loaded: WeakValueDictionary[tuple[Any, ...], Translator] = WeakValueDictionary()  # of this process, by arguments


class BatchTranslator:
    """Translates a column of text: a function for `map` of datasets, `map_batches` of Ray Data, and others.

    It is picklable. The first call in a process loads the model, once for all equal arguments. Processes that are
    forked after a call share the memory of its weights.

    Args:
        bundle: Directory of a bundle, or name of a bundle on the hub, as in `load`.
        options: Options of all calls, with an `n_best` of 1.
        column: Name of the column of text.
        device: As in `load`.
        precision: As in `load`.
        threads: As in `load`.
        src_lang: As in `load`.
        tgt_lang: As in `load`.

    Raises:
        InputError: `options.n_best` is not 1.
    """

    def __init__(
        self,
        bundle: str,
        options: TranslateOptions = DEFAULTS,
        *,
        column: str = "text",
        device: str = "cpu",
        precision: Precision | None = None,
        threads: int | None = None,
        src_lang: str = "",
        tgt_lang: str = "",
    ) -> None:
        require(options.n_best == 1, f"n_best must be 1 for a table, got {options.n_best}")
        self.options, self.column = options, column
        self._arguments = str(bundle), device, precision, threads, src_lang, tgt_lang
        self._translator: Translator | None = None

    def __repr__(self) -> str:
        bundle, device, precision, threads, src_lang, tgt_lang = self._arguments
        values = {"column": self.column, "device": device, "precision": precision, "threads": threads}
        values |= {"src_lang": src_lang, "tgt_lang": tgt_lang}
        return f"BatchTranslator({', '.join([repr(bundle), *(f'{k}={v!r}' for k, v in values.items() if v)])})"

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_translator": None}

    @property
    def translator(self) -> Translator:
        """The translator, which is loaded on first use. Raises InputError as `load` does."""
        if self._translator is None:
            self._translator = _loaded.get(self._arguments)
        if self._translator is None:
            from relattn_mt.loading import load

            bundle, device, precision, threads, src_lang, tgt_lang = self._arguments
            self._translator = _loaded[self._arguments] = load(
                bundle, device=device, precision=precision, threads=threads, src_lang=src_lang, tgt_lang=tgt_lang
            )
        return self._translator

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the columns of a batch and those of its translations.

        Args:
            batch: Columns by name. That of the text is a NumPy or Arrow array, a pandas series or a list, without
                nulls.

        Returns:
            The given columns, and as lists: `score` and `confidence` with four digits, `translation`, `warnings` as
            names that are separated by spaces and, with `options.align`, `alignment` in Pharaoh format.

        Raises:
            InputError: The column is missing, a value is not text, a column has the name of a new one, the model cannot
                be loaded, or a line cannot be translated. Lines are numbered from 1 within the batch.
        """
        if not isinstance(batch, Mapping):
            raise InputError(f"a batch must be a dict of columns, got {type(batch).__name__}")
        require_column(list(batch), self.column, self.options, "a batch")
        values = batch[self.column]
        convert = getattr(values, "to_pylist", None) or getattr(values, "tolist", None)
        lines = list(values) if convert is None else convert()
        for number, line in enumerate(lines, start=1):
            require_text(line, f"line {number}", self.column)
        results = self.translator.n_best(lines, self.options)
        return {**batch, **new_columns([best for best, *_ in results], self.options)}


def new_columns(translations: Sequence[Translation], options: TranslateOptions) -> dict[str, list[Any]]:
    """Return the columns that translations add to a table, by name."""
    rows = [columns(each, align=options.align) for each in translations]
    return {name: [row[name] for row in rows] for name in columns(Translation("", 0.0, []), align=options.align)}


def require_column(names: Sequence[str], column: str, options: TranslateOptions, where: str) -> None:
    """Raise an InputError unless a table has a column once, and none with the name of one that translations add."""
    given = one_line(", ".join(map(str, names)) or "none", 200)
    require(column in names, f"{where} must have a column {one_line(column, 40)!r}, got {given}")
    require(list(names).count(column) == 1, f"{where} must have the column {one_line(column, 40)!r} only once")
    taken = [name for name in new_columns([], options) if name in names]
    require(not taken, f"{where} must not have a column {', '.join(taken)}, because translations add it; rename it")


def require_text(value: object, where: str, column: str) -> None:
    """Raise an InputError unless a value of a column is text."""
    kind = "null" if value is None else type(value).__name__
    require(isinstance(value, str), f"{where}: column {one_line(column, 40)!r} must be text, got {kind}")
