"""Scores of CTranslate2, to compare exports and imports with."""

from __future__ import annotations

from pathlib import Path

from relattn_mt.formats.ctranslate2.directory import MODEL, read_vocabularies
from relattn_mt.support.errors import InputError, reading, require_installed
from relattn_mt.support.types import IdRows
from relattn_mt.tokens.imported_tokenizer import AnyTokenizer
from relattn_mt.translate.runner import MAX_TOKENS


class CTranslate2Model:
    """A model that CTranslate2 runs on a CPU.

    Args:
        path: The directory.
        tokenizer: Tokenizer of both sides.
        adds: Whether CTranslate2 adds the token before each source, and the one after it.
        threads: Number of threads; None takes CTranslate2's default.
        compute_type: Type that CTranslate2 computes in; "default" is that of the weights.

    Attributes:
        model: The `ctranslate2.Translator`.
        precision: Type that it computes in, which depends on the processor.

    Raises:
        InputError: The vocabulary is not the tokenizer's, ctranslate2 is not installed, or it cannot use the model.
    """

    def __init__(
        self,
        path: Path,
        tokenizer: AnyTokenizer,
        adds: tuple[bool, bool],
        *,
        threads: int | None = None,
        compute_type: str = "default",
    ) -> None:
        for own, its in zip(tokenizer.vocabularies, read_vocabularies(path, tokenizer.unknown_piece), strict=True):
            # an imported model may have one more piece than CTranslate2, which the decoder starts with
            if own[: len(its)] != its or len(own) > len(its) + 1:
                raise InputError(f"{path}: the tokenizer and the vocabulary must have the same pieces")
        self._tokenizer = tokenizer
        self._adds = adds
        require_installed("export", "ctranslate2")
        import ctranslate2

        with reading(path / MODEL, "cannot be used"):
            self.model = ctranslate2.Translator(str(path), intra_threads=threads or 0, compute_type=compute_type)
        self.precision = str(self.model.compute_type)

    def log_probs(self, src_ids: IdRows, tgt_ids: IdRows) -> list[list[float]]:
        """Return the log-probability of each piece of given translations, and of the end, as `Runner.log_probs`."""
        special = self._tokenizer.special
        pieces = self._tokenizer.vocabularies[1]
        sources = self.sources([[*special.src_begin, *ids, *special.src_end] for ids in src_ids])
        targets = [[pieces[i] for i in (*special.tgt_begin, *ids)] for ids in tgt_ids]
        results = self.model.score_batch(
            sources, targets, max_batch_size=MAX_TOKENS, batch_type="tokens", max_input_length=0
        )
        return [result.log_probs[len(special.tgt_begin) :] for result in results]

    def sources(self, sources: IdRows) -> list[list[str]]:
        """Return the pieces of complete sources, without the tokens that CTranslate2 adds."""
        begin, end = self._adds
        pieces = self._tokenizer.vocabularies[0]
        return [[pieces[i] for i in ids[int(begin) : len(ids) - int(end)]] for ids in sources]
