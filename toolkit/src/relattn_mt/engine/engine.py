"""The compiled engine: encoder, decoder and search in C, on a CPU, in float32 or int8."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from relattn_mt.engine.decoder import BLOCK, NativeDecoder, NativeState, integers
from relattn_mt.engine.packing import address, aligned
from relattn_mt.engine.shortlist import Shortlist
from relattn_mt.search.engine import NextTokens
from relattn_mt.search.types import MOST_POSITIONS, NEVER, Hypotheses, Hypothesis, Request, SearchRules
from relattn_mt.support.errors import InputError
from relattn_mt.support.types import IdRows

INTEGERS = {"tokens", "sources", "src_lengths", "candidates", "banned", "only"}  # names of arrays of 64 bits
INTEGERS |= {"shortlist", "shortlist_begins", "given", "limits"}


class NativeEngine:
    """Runs a model in C. A result does not depend on the rest of a batch, by one bit.

    Args:
        decoder: The packed model.
        shortlist: The pieces that may be generated for a source; None allows all. A search with constraints, steps and
            scores always allow all.

    Attributes:
        alignment: `ModelConfig.alignment`.
    """

    device = "cpu"

    def __init__(self, decoder: NativeDecoder, shortlist: Shortlist | None = None) -> None:
        self._decoder = decoder
        self._shortlist = shortlist
        self.max_length = decoder.spec.max_length
        self.precision = decoder.precision
        self.name = decoder.name
        self.alignment = decoder.config.alignment
        self.knows_alignment = decoder.config.alignment_layer != "assumed"

    def __repr__(self) -> str:
        return f"{self._decoder.config.summary}, {self.precision}"

    def search(self, requests: Sequence[Request], rules: SearchRules) -> Hypotheses:
        groups: dict[bool, list[int]] = {}  # requests by whether they have constraints
        for i, request in enumerate(requests):
            has_text = bool(request.phrases or request.spelling) or len(request.prefix) > rules.given
            groups.setdefault(rules.config.restrains or has_text, []).append(i)
        results: dict[int, list[Hypothesis]] = {}
        for is_constrained, numbers in groups.items():
            group = [requests[i] for i in numbers]
            if is_constrained:
                from relattn_mt.search import beam

                hypotheses = beam.search(self, group, rules)
            else:
                hypotheses = self._search(group, rules)
            results |= zip(numbers, hypotheses, strict=True)
        return [results[i] for i in range(len(requests))]

    def _search(self, requests: Sequence[Request], rules: SearchRules) -> Hypotheses:
        """Search without constraints, in one call of C. Raises MemoryError if the cache does not fit in memory."""
        sentences = len(requests)
        beam = rules.beam_size
        prefix = requests[0].prefix
        limits = integers([request.limit for request in requests])
        capacity = int(limits.max())
        state = self.start([request.src_ids for request in requests], capacity)
        arguments, kept = self._decoder.search_arguments(rules, capacity, state.arguments)
        state.kept += kept
        _point(arguments.step, {"src_lengths": state.src_lengths})
        if self._shortlist is not None:
            needed = rules.eos, *prefix
            shortlists = [self._shortlist.pieces(request.src_ids, needed, rules.banned) for request in requests]
            allowed = integers(np.concatenate(shortlists))
            begins = integers(np.cumsum([0, *map(len, shortlists)]))
            _point(arguments.step, {"shortlist": allowed, "shortlist_begins": begins})
        given = integers(prefix)
        tokens = np.empty((sentences, beam, capacity), np.int64)
        scores = np.empty((sentences, beam), np.float32)
        arrays = {"given": given, "limits": limits, "tokens": tokens, "scores": scores}
        _point(arguments, {**arrays, "given_count": len(given), "sentences": sentences, "capacity": capacity})
        steps = self._decoder.functions["search"](ctypes.addressof(arguments))
        if steps < 0:
            raise MemoryError(f"the cache of a search must fit in memory, got {sentences} sentences and beam {beam}")
        results: Hypotheses = []
        best_tokens = tokens[:, : rules.n_best, :steps].tolist()
        for rows, row_scores in zip(best_tokens, scores[:, : rules.n_best].tolist(), strict=True):
            hypotheses = []
            if row_scores[0] > NEVER:  # else NaN, or no hypothesis
                for row, score in zip(rows, row_scores, strict=True):
                    if score > NEVER:
                        hypotheses.append(Hypothesis(row[: row.index(rules.eos)], score))
            results.append(hypotheses)
        return results

    def start(self, sources: IdRows, capacity: int) -> NativeState:
        if capacity > MOST_POSITIONS:
            raise InputError(f"translations must have at most {MOST_POSITIONS:,} pieces, got a limit of {capacity:,}")
        src, lengths = _padded(sources)
        return self._decoder.start(self._decoder.encode(src, lengths), lengths, capacity)

    def step(
        self, state: NativeState, tokens: Sequence[int], rows: Sequence[int], rules: SearchRules, k: int
    ) -> NextTokens:
        count = len(rows)
        vocab = self._decoder.vocab_size
        k = min(k, vocab)
        values = np.empty((count, k), np.float32)
        best = np.empty((count, k), np.int64)
        log_sums = np.empty(count, np.float32)
        logits = aligned(count, vocab)
        banned = integers(rules.banned)
        self._run(
            state,
            tokens,
            rows,
            values=values,
            candidates=best,
            log_sums=log_sums,
            logits=logits,
            best=k,
            banned=banned,
            banned_count=len(banned),
        )
        return NextTokens(values, best, log_sums, lambda: logits)

    def score(self, sources: IdRows, targets: IdRows) -> list[list[float]]:
        scores: list[list[float]] = [[] for _ in targets]
        for places, state, tokens, following in self._forced(sources, targets):
            values = np.empty((len(places), 1), np.float32)
            candidates = np.empty((len(places), 1), np.int64)
            only = integers(following)
            self._run(state, tokens, range(len(places)), values=values, candidates=candidates, only=only, best=1)
            for place, value in zip(places, values[:, 0].tolist(), strict=True):
                scores[place].append(value)
        return scores

    def align(self, sources: IdRows, targets: IdRows) -> list[np.ndarray]:
        layer, heads = self.alignment
        longest = max(map(len, sources))
        attention: list[list[np.ndarray]] = [[] for _ in targets]
        for places, state, tokens, _ in self._forced(sources, targets):
            rows = range(len(places))
            weights = np.zeros((len(places), longest), np.float32)
            self._run(state, tokens, rows, attention=weights, attention_layer=layer, attention_heads=heads)
            for place, row in zip(places, weights, strict=True):
                attention[place].append(row[: len(sources[place])])
        return [*map(np.stack, attention)]

    def _forced(
        self, sources: IdRows, targets: IdRows
    ) -> Iterator[tuple[list[int], NativeState, list[int], list[int]]]:
        """Yield, for each step over given targets, their places, the state, and their last and their next tokens."""
        places = sorted(range(len(targets)), key=lambda i: -len(targets[i]))
        steps = max(map(len, targets)) - 1
        state = self.start([sources[i] for i in places], steps)
        for at in range(steps):
            places = [i for i in places if len(targets[i]) > at + 1]
            last = [targets[i][at] for i in places]
            following = [targets[i][at + 1] for i in places]
            yield places, state, last, following

    def _run(self, state: NativeState, tokens: Sequence[int], rows: Sequence[int], **outputs: Any) -> None:
        """Run a step with other arguments of the kernel: numbers, and arrays that it gets pointers to."""
        self._reorder(state, np.array(rows))
        if state.length >= state.capacity:
            raise ValueError(f"a state for {state.capacity} positions must not get more")
        if state.length % BLOCK == 0 and not (state.blocks and self._decoder.has_ssru):
            state.blocks.append(aligned(len(rows), self._decoder.cache_row))
        groups, per_source = _grouped(state.sources)
        arguments = self._pointed(state)
        outputs |= {
            "tokens": integers(tokens),
            "sources": groups,
            "src_lengths": state.src_lengths,
            "rows": len(rows),
            "per_source": per_source,
        }
        _point(arguments, outputs)
        self._decoder.call("step", arguments)
        state.length += 1

    def _pointed(self, state: NativeState) -> Any:
        """Return arguments that point to the blocks of a state."""
        arguments = self._decoder.types["step"](**state.arguments, position=state.length)
        addresses = (ctypes.c_void_p * len(state.blocks))(*map(address, state.blocks))
        arguments.blocks = ctypes.cast(addresses, ctypes.c_void_p)
        return arguments

    def _reorder(self, state: NativeState, rows: np.ndarray) -> None:
        """Let the rows of a state be the given ones, in place if no row is needed that another overwrites."""
        changed = np.flatnonzero(rows != np.arange(len(rows)))
        if len(rows) <= len(state.sources) and not np.isin(rows[changed], changed).any():
            if len(changed):
                origins = integers(rows[changed])
                pointed = self._pointed(state)
                addresses = ctypes.addressof(pointed), address(origins, np.int64), address(changed, np.int64)
                self._decoder.functions["move"](*addresses, len(changed))
        else:
            blocks = [aligned(len(rows), self._decoder.cache_row) for _ in state.blocks]
            for block, copy in zip(state.blocks, blocks, strict=True):
                np.take(block, rows, axis=0, out=copy, mode="clip")
            state.blocks = blocks
        state.sources = state.sources[rows]


def _point(arguments: Any, values: Mapping[str, Any]) -> None:
    """Set arguments of the kernel: numbers, and pointers to arrays, which must stay alive."""
    for name, value in values.items():
        if isinstance(value, np.ndarray):
            value = address(value, np.int64 if name in INTEGERS else np.float32)
        setattr(arguments, name, value)


def _padded(sequences: IdRows) -> tuple[np.ndarray, np.ndarray]:
    """Return sequences (rows, length), padded on the right with zeros, and their lengths (rows,)."""
    lengths = np.array([len(sequence) for sequence in sequences], np.int64)
    columns = [*zip_longest(*sequences, fillvalue=0)]
    return np.array(columns, np.int64).reshape(-1, len(sequences)).T, lengths


def _grouped(sources: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the source of each group of rows, and the number of rows in a group. Groups are equally large."""
    begins = np.flatnonzero(np.diff(sources, prepend=-1))
    counts = np.diff(begins, append=len(sources))
    return (sources[begins], int(counts[0])) if len(set(counts.tolist())) == 1 else (sources, 1)
