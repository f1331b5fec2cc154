"""Translation with PyTorch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from threading import get_ident
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from relattn.extension.int8 import INT8_KERNELS
from relattn.translation.allocation import return_freed_memory
from relattn.translation.config import SearchConfig
from relattn.translation.data.batching import Batch, collate
from relattn.translation.data.imported_tokenizer import AnyTokenizer
from relattn.translation.data.planning import batch_by_size
from relattn.translation.errors import InputError
from relattn.translation.kernels.decoder import (
    KERNELS,
    MOST_POSITIONS,
    NativeDecoder,
    int8_kernel,
    unsupported_reason,
)
from relattn.translation.model.attention import CrossAttention
from relattn.translation.model.transformer import Transformer
from relattn.translation.model.weights import arrays_of
from relattn.translation.search import beam, constrained
from relattn.translation.search.length_penalty import length_penalty
from relattn.translation.search.sampling import sample
from relattn.translation.search.types import Hypothesis, Request, SearchRules
from relattn.translation.text.alignment import Links, alignment_layer, links
from relattn.translation.translate.glossary import continue_words
from relattn.translation.translate.options import TranslateOptions
from relattn.translation.translate.pipeline import MAX_TOKENS, Translator, cached_sentences


class TorchTranslator(Translator):
    """Translates with a PyTorch model.

    With several `workers`, each thread searches one batch, which on a CPU is faster than all threads sharing each
    matrix product.

    Args:
        model: The model; it is moved to `device` and set to evaluation mode.
        tokenizer: Tokenizer of both sides.
        search: Default beam size, length penalty and length limits.
        device: Device to compute on.
        languages: As in `Translator`.
        pairs: As in `Translator`.
        workers: As in `Translator`.
        int8: Whether to compute in int8, with the compiled decoder. The weights of the model are freed.
        weights: Weights of the model in 8 bits; with `int8`, None quantizes the model.

    Raises:
        InputError: `int8` is not supported for this model.
    """

    is_torch = True
    model: Transformer

    def __init__(
        self,
        model: Transformer,
        tokenizer: AnyTokenizer,
        search: SearchConfig,
        *,
        device: str | torch.device = "cpu",
        languages: tuple[str, str] = ("", ""),
        pairs: Sequence[tuple[str, str]] = (),
        workers: int = 1,
        int8: bool = False,
        weights: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        super().__init__(
            tokenizer,
            search,
            languages=languages,
            pairs=pairs,
            max_length=model.max_length,
            workers=workers,
        )
        self.device = torch.device(device)
        self.model = model.to(self.device).eval()
        dtype = str(model.embedding.dtype).removeprefix("torch.")
        # Why searches run on PyTorch, or None.
        self.pytorch_reason = unsupported_reason(model.config, str(device), dtype)
        self._int8 = int8
        if int8:
            if self.pytorch_reason is not None:
                raise InputError(f"precision int8 requires the compiled decoder: {self.pytorch_reason}")
            self.precision = "int8"
            self._decoder = NativeDecoder(model.config, model.vocab_sizes, weights or arrays_of(model), int8=True)
            for parameter in model.parameters():
                parameter.data = torch.empty(0)
            return_freed_memory()

    def _description(self) -> list[str]:
        dtype = str(next(self.model.parameters()).dtype).removeprefix("torch.")
        precision = f"{dtype if not self._int8 else self.precision} on {self.device}"
        config = self.model.config
        layers = f"{config.encoder_layers} and {config.decoder_layers} layers"
        return [layers, f"dim {config.dim}", f"{config.positions} positions", precision]

    def with_languages(self, src_lang: str = "", tgt_lang: str = "") -> Translator:
        other = super().with_languages(src_lang, tgt_lang)
        if other is not self:
            vars(other)["_decoder"] = self._decoder  # all pairs share the packed weights
        return other

    @property
    def engine(self) -> str:
        """Name of what runs the searches, with the reason if it is PyTorch."""
        if self.pytorch_reason is not None:
            return f"PyTorch ({self.pytorch_reason})"
        assert KERNELS is not None
        if self._int8:
            return f"compiled decoder for {KERNELS.level}, int8 {INT8_KERNELS[int8_kernel()]}"
        return f"compiled decoder for {KERNELS.level}; PyTorch for limits above {MOST_POSITIONS:,} pieces"

    def max_sentences(self, beam_size: int) -> int:
        return cached_sentences(beam_size) if self.pytorch_reason is None else super().max_sentences(beam_size)

    def map_batches(self, work: Callable[[list[Request]], Any], batches: list[list[Request]]) -> Iterator[Any]:
        if min(self.workers, len(batches)) == 1:
            yield from map(work, batches)
            return
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # per worker, which reads this number when it starts
        try:
            with ThreadPoolExecutor(self.workers) as pool:
                yield from pool.map(work, batches)
        finally:
            torch.set_num_threads(threads)

    @torch.inference_mode()
    def search_batch(
        self, requests: list[Request], search: SearchConfig, options: TranslateOptions
    ) -> list[list[Hypothesis]]:
        groups: dict[tuple[int, bool, bool], list[Request]] = defaultdict(list)
        for request in requests:
            groups[len(request.prefix), request.spelling is None, bool(request.phrases)].append(request)
        results: dict[int, list[Hypothesis]] = {}
        for group in groups.values():
            group_results = self._search_group(group, search, options)
            results.update(zip((request.number for request in group), group_results, strict=True))
        return [results[request.number] for request in requests]

    def _search_group(
        self, requests: list[Request], search: SearchConfig, options: TranslateOptions
    ) -> list[list[Hypothesis]]:
        """Search for requests whose prefixes have the same length, and all or none of which have a text or phrases."""
        special = self.tokenizer.special
        given = list(special.tgt_begin)
        if given:  # they are the first tokens of each prefix
            count = len(given)
            requests = [replace(each, prefix=given + each.prefix, limit=each.limit + count) for each in requests]
        longest = max(request.limit for request in requests)
        decoder = self.model if longest > MOST_POSITIONS and not self._int8 else self._decoder
        step = self._step if isinstance(decoder, NativeDecoder) else decoder.step
        rules = SearchRules(
            beam_size=search.beam_size,
            bos=special.bos,
            eos=special.eos,
            banned=special.banned,
            penalty=length_penalty(search.length_penalty, search.alpha),
            n_best=options.n_best if options.sampling is None else 1,
            early_stopping=search.early_stopping,
            no_repeat_ngram=search.no_repeat_ngram,
            repetition_penalty=search.repetition_penalty,
            given=len(given),
        )
        src = [self._tensor([*special.src_begin, *request.src_ids, *special.src_end]) for request in requests]
        src_lengths = self._tensor([len(row) for row in src])
        limits = self._tensor([request.limit for request in requests])
        prefixes = self._tensor([request.prefix for request in requests])
        memory: Any = decoder.encode(pad_sequence(src, batch_first=True, padding_value=special.pad), src_lengths)
        constrains = (
            len(requests[0].prefix) > len(given) or requests[0].spelling or requests[0].phrases or rules.restrains
        )
        is_plain = options.sampling is None and not constrains
        if isinstance(decoder, NativeDecoder) and is_plain:
            return _without(given, decoder.search(memory, src_lengths, limits, rules, given))
        cache = decoder.start(memory, src_lengths, longest)
        spellings = [request.spelling for request in requests] if requests[0].spelling else []
        if options.sampling is not None:
            seeds = [
                [options.sampling.seed, request.number, draw] for request in requests for draw in range(options.n_best)
            ]
            random_numbers = np.stack([np.random.default_rng(seed).random(int(limits.max())) for seed in seeds])
            rows = torch.arange(len(requests), device=self.device).repeat_interleave(options.n_best)
            numbers = torch.from_numpy(random_numbers).to(self.device)
            cache = cache.select(rows)
            spelled = [spelling for spelling in spellings for _ in range(options.n_best)]
            drawn = sample(step, cache, limits[rows], rules, prefixes[rows], options.sampling, numbers, spelled)
            n = options.n_best
            return _without(given, [drawn[i : i + n] for i in range(0, len(drawn), n)])
        if requests[0].phrases:
            return _without(given, constrained.search(step, cache, requests, rules, prefixes, self._continues_word))
        return _without(given, beam.search(step, cache, limits, rules, prefixes, spellings))

    @cached_property
    def _decoder(self) -> Any:
        """Decoder of the searches: the compiled one, whose weights are packed here once, or the model."""
        if self.pytorch_reason is not None:
            return self.model
        return NativeDecoder(self.model.config, self.model.vocab_sizes, arrays_of(self.model), int8=False)

    def _step(self, tokens: Tensor, cache: Any) -> tuple[Tensor, Any]:
        logits, cache = self._decoder.step(tokens, cache)
        return torch.from_numpy(logits), cache

    @cached_property
    def _continues_word(self) -> np.ndarray:
        """(vocab,) bool, True for target pieces that continue a word."""
        return np.array(continue_words(self.tokenizer.vocabularies[1]))

    def _tensor(self, numbers: Sequence[Any]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.long, device=self.device)

    @torch.inference_mode()
    def log_probs(self, src_ids: Sequence[Sequence[int]], tgt_ids: Sequence[Sequence[int]]) -> list[list[float]]:
        scores: list[list[float]] = [[]] * len(src_ids)
        for chosen, batch in self._batches(src_ids, tgt_ids):
            log_probs = self._logits(batch).float().log_softmax(-1)
            by_piece = log_probs.gather(-1, batch.tgt_out[..., None])[..., 0]  # (rows, tgt_len)
            for i, row, length in zip(chosen, by_piece.tolist(), batch.tgt_lengths.tolist(), strict=True):
                scores[i] = row[:length]
        return scores

    def align_batch(self, src_ids: Sequence[Sequence[int]], tgt_ids: Sequence[Sequence[int]]) -> list[Links]:
        (source, target), special = self.tokenizer.vocabularies, self.tokenizer.special
        alignments: list[Links] = [[]] * len(src_ids)
        for chosen, batch in self._batches(src_ids, tgt_ids):
            weights = self._attention(batch).cpu().numpy()
            for i, row, width in zip(chosen, weights, batch.src_lengths.tolist(), strict=True):
                sides = [source[piece] for piece in src_ids[i]], [target[piece] for piece in tgt_ids[i]]
                alignments[i] = links(row[:, :width], *sides, special)
        return alignments

    def _logits(self, batch: Batch) -> Tensor:
        """Return the logits (rows, tgt_len, vocab) of a batch."""
        if not self._int8:
            return batch.logits(self.model)
        return self._step(batch.tgt_in, self._start(batch))[0][:, -batch.tgt_out.shape[1] :]

    @torch.inference_mode()
    def _attention(self, batch: Batch) -> Tensor:
        """Return the attention weights (rows, tgt_len, src_len) that give the alignment."""
        if not self._int8:
            return cross_attention(self.model, batch)
        weights = self._decoder.attention(batch.tgt_in, self._start(batch), alignment_layer(len(self.model.decoder)))
        return torch.from_numpy(weights[:, -batch.tgt_out.shape[1] :])

    def _start(self, batch: Batch) -> Any:
        memory = self._decoder.encode(batch.src, batch.src_lengths)
        return self._decoder.start(memory, batch.src_lengths, batch.tgt_in.shape[1])

    def _batches(
        self, src_ids: Sequence[Sequence[int]], tgt_ids: Sequence[Sequence[int]]
    ) -> Iterator[tuple[list[int], Batch]]:
        """Yield batches of pairs of similar length, each with the indices of its pairs."""
        around = self.tokenizer.special.per_source
        longest = np.maximum([len(ids) + around for ids in src_ids], [len(ids) + 1 for ids in tgt_ids])
        for indices in batch_by_size(np.argsort(longest, kind="stable"), longest, MAX_TOKENS):
            chosen = indices.tolist()
            sides = [src_ids[i] for i in chosen], [tgt_ids[i] for i in chosen]
            yield chosen, collate(*sides, self.tokenizer.special).to(self.device)


def _without(given: Sequence[int], hypotheses: list[list[Hypothesis]]) -> list[list[Hypothesis]]:
    """Return the hypotheses of each sentence without their first tokens, which are given."""
    if not given:
        return hypotheses
    return [[replace(each, tokens=each.tokens[len(given) :]) for each in sentence] for sentence in hypotheses]


@torch.inference_mode()
def cross_attention(model: Transformer, batch: Batch) -> Tensor:
    """Return the mean attention weights (rows, tgt_len, src_len) with which each target piece and the end are read."""
    weights: list[Tensor] = []
    thread = get_ident()

    def record(module: CrossAttention, arguments: tuple[Any, ...]) -> None:
        if get_ident() == thread:  # other threads may use the model at the same time
            weights.append(module.weights(*arguments).mean(1))

    layer: Any = model.decoder[alignment_layer(len(model.decoder))]
    with layer.cross_attention.register_forward_pre_hook(record):
        model(batch.src, batch.src_lengths, batch.tgt_in)
    return weights[0][:, -batch.tgt_out.shape[1] :]
