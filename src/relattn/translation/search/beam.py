"""Beam search as a pure function from state to state, over a batch of sentences.

A hypothesis y_1 … y_t has the log-probability log p(y_1 … y_t | x) = Σ log p(y_s | y_<s, x). A step extends every live
hypothesis by every token and keeps the 2·beam best candidates per sentence. Candidates that end with the
end-of-sentence token become finished hypotheses, which are ranked by log p / lp(t) (see `length_penalty`). The best
`beam` of the other candidates stay live. Each hypothesis has one candidate that ends, so at least `beam` of the 2·beam
candidates do not: finished hypotheses never leave the beam short.

A sentence is done when no live hypothesis can still enter its n best finished ones. A log-probability only falls and lp
is monotone, so a live hypothesis with log-probability L scores at most max(L / lp(t + 1), L / lp(limit)), where `limit`
is the length limit of the sentence. At the limit only the end-of-sentence token may be generated, at its true
probability. Every hypothesis returned is therefore a complete sequence with its exact score, and does not depend on the
rest of the batch. Sentences that are done leave the batch at once.

With `early_stopping` a sentence is also done once `beam` of its hypotheses have finished, and an end counts only among
the `beam` best candidates of a step. This is how fairseq and CTranslate2 search. It is faster, and may miss better
translations. With "heuristic", a sentence is done once `beam` of its hypotheses have finished and no live hypothesis of
t tokens has a better L / lp(t). This is the default of transformers.

Translations may have to begin with given tokens, which the model reads in one pass, and then with a given text
(`Spelling`), whose tokens are searched: a hypothesis is extended by the tokens that agree with the rest of the text.
All of them count at their true probability.

Candidates with equal log-probabilities are ranked by beam index, then by token. With a beam of 1, a step keeps a single
candidate, which is greedy decoding: it stops at the first end of sentence.

The model is a function `step(tokens (rows, new), cache) -> (logits (rows, new, vocab), cache)` with one row per live
hypothesis. The method is that of Wu et al. 2016 (section 7) and of Tensor2Tensor, which Shaw et al. 2018 used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from relattn.translation.errors import Diverged
from relattn.translation.search.repetition import restrain
from relattn.translation.search.types import DIVERGED, NEVER, Hypothesis, SearchRules, SearchState, Spelling, Step

CHUNK = 1 << 19  # logits processed at a time on a CPU, 2 MiB, which stay in its cache
BLOCK = 64  # columns of a row of logits whose maximum is computed first
PREFIX_TOKENS = 512  # prefix tokens per pass of the model, which bounds the memory of their logits


def read_prefixes(step: Step, cache: Any, prefixes: Tensor, rules: SearchRules) -> tuple[Tensor, Tensor, Any]:
    """Run the model on the first tokens of each translation.

    Args:
        step: Model.
        cache: Cache before the first token.
        prefixes: (rows, length) tokens; the length may be 0.
        rules: Settings of the search.

    Returns:
        Logits (rows, vocab) of the token after each prefix, log-probabilities (rows,) of the prefixes, and the cache.
    """
    inputs = F.pad(prefixes, (1, 0), value=rules.bos)
    log_prob = torch.zeros(len(prefixes), device=prefixes.device)
    new = max(1, PREFIX_TOKENS // max(1, len(prefixes)))
    for at in range(0, inputs.shape[1], new):
        logits, cache = step(inputs[:, at : at + new], cache)
        following = prefixes[:, at : at + new]
        log_probs = logits[:, : following.shape[1]].float().log_softmax(-1)
        log_prob += log_probs.gather(-1, following[..., None])[:, max(0, rules.given - at) :].sum((1, 2))
    if bool(log_prob.isnan().any()):
        raise Diverged(DIVERGED)
    return logits[:, -1], log_prob, cache


def start(
    limits: Tensor,
    rules: SearchRules,
    prefixes: Tensor,
    log_prob: Tensor,
    spellings: Sequence[Spelling | None] = (),
) -> SearchState:
    """Return the state after the prefixes (sentences, length), with one hypothesis per sentence."""
    live, beam, device = len(prefixes), rules.beam_size, limits.device
    return SearchState(
        sentences=torch.arange(live, device=device),
        limits=limits,
        limit_penalties=torch.tensor([rules.penalty(limit) for limit in limits.tolist()], device=device),
        tokens=prefixes[:, None],
        log_prob=log_prob[:, None],
        slots=torch.zeros(live, 1, dtype=torch.long, device=device),
        left=torch.tensor(sizes(spellings) or [0] * live, device=device)[:, None],
        finished_tokens=torch.zeros(live, beam, 0, dtype=torch.long, device=device),
        finished_scores=torch.full((live, beam), NEVER, device=device),
    )


def advance(
    state: SearchState, logits: Tensor, rules: SearchRules, spellings: Sequence[Spelling | None] = ()
) -> tuple[SearchState, Tensor]:
    """Run one step of the search.

    Args:
        state: State before it.
        logits: (live, width, vocab) logits of the next token, by slot.
        rules: Settings of the search.
        spellings: Texts that are spelled, by sentence of the batch.

    Returns:
        The next state, with the slots of the old one, and the slot (live, new width) of the hypothesis that each new
        live hypothesis extends.
    """
    width, vocab = logits.shape[1:]
    length = state.tokens.shape[-1] + 1
    per_hypothesis = min(rules.candidates, vocab)
    at_limit = (state.limits == length).repeat_interleave(width)
    left = torch.empty_like(state.left).scatter_(1, state.slots, state.left)  # by slot
    spelled = [spellings[i] for i in state.sentences.tolist() for _ in range(width)] if spellings else []
    allowed = allowed_tokens(spelled, left.flatten(), state.limits.repeat_interleave(width) - length, vocab)
    rows = logits.flatten(0, 1)
    if rules.restrains:
        by_slot = state.slots[:, :, None].expand_as(state.tokens)
        tokens_by_slot = torch.zeros_like(state.tokens).scatter_(1, by_slot, state.tokens).flatten(0, 1)
        rows = restrain(rows, tokens_by_slot, rules, None if allowed is None else left.flatten() > 0)
    likeliest = best_tokens(rows, per_hypothesis, at_limit, rules, allowed)
    log_probs, tokens = (_rows(by_slot.unflatten(0, (-1, width)), state.slots) for by_slot in likeliest)
    totals = (state.log_prob[:, :, None] + log_probs).flatten(1)  # (live, width * per_hypothesis)
    log_prob, index = stable_topk(totals, min(rules.candidates, totals.shape[1]))
    parent, token = index // per_hypothesis, tokens.flatten(1).gather(1, index)
    sequences = torch.cat([_rows(state.tokens, parent), token[:, :, None]], dim=-1)  # (live, candidates, length)

    ends = token == rules.eos
    scores = (log_prob / rules.penalty(length)).masked_fill(~ends, NEVER)
    if rules.early_stopping:
        scores[:, rules.beam_size :] = NEVER
    finished_scores, best = stable_topk(torch.cat([state.finished_scores, scores], dim=1), rules.beam_size)
    older = F.pad(state.finished_tokens, (0, length - state.finished_tokens.shape[-1]))
    log_prob, chosen = stable_topk(log_prob.masked_fill(ends, NEVER), min(rules.beam_size, token.shape[1]))
    left = state.left.gather(1, parent).gather(1, chosen)
    if allowed is not None:
        lengths = next(torch.from_numpy(spelling.lengths) for spelling in spelled if spelling is not None)
        left = (left - lengths.to(left.device)[token.gather(1, chosen)]).clamp(min=0)
    state = replace(
        state,
        tokens=_rows(sequences, chosen),
        log_prob=log_prob,
        left=left.masked_fill(log_prob == NEVER, 0),
        finished_tokens=_rows(torch.cat([older, sequences], dim=1), best),
        finished_scores=finished_scores,  # of equal scores the older comes first
    )
    return state, state.slots.gather(1, parent.gather(1, chosen))


def sizes(spellings: Sequence[Spelling | None]) -> list[int]:
    """Return the number of bytes to spell of each sentence."""
    return [0 if spelling is None else spelling.size for spelling in spellings]


def allowed_tokens(spellings: Sequence[Spelling | None], left: Tensor, rooms: Tensor, vocab: int) -> Tensor | None:
    """Return (rows, vocab) True for tokens that may follow; None if there is nothing left to spell.

    Args:
        spellings: Text of each row.
        left: (rows,) bytes of it that are left.
        rooms: (rows,) maximum number of tokens after the next one, end of sentence included.
        vocab: Number of tokens.
    """
    if not spellings or not bool(left.any()):
        return None
    allowed = torch.ones(len(left), vocab, dtype=torch.bool)
    for row, (spelling, bytes_left, room) in enumerate(zip(spellings, left.tolist(), rooms.tolist(), strict=True)):
        if spelling is not None and bytes_left:
            allowed[row] = False
            allowed[row, torch.from_numpy(spelling.allowed(bytes_left, room - 1))] = True
    return allowed.to(left.device)


def best_tokens(
    logits: Tensor, k: int, at_limit: Tensor, rules: SearchRules, allowed: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities of the k likeliest tokens of each row, in falling order, and the tokens.

    Ties are ranked as by `stable_topk`. On a CPU, a few rows are processed at a time, so that their log-probabilities
    stay in the processor's cache.

    Args:
        logits: (rows, vocab).
        k: Number of tokens per row.
        at_limit: (rows,) True if only the end of sentence may follow.
        rules: Settings of the search.
        allowed: (rows, vocab) False for tokens that must not follow; None if all may.
    """
    top_tokens = []
    rows = max(1, CHUNK // logits.shape[1] if logits.is_cpu else len(logits))
    for at, (chunk, must_end) in enumerate(zip(logits.split(rows), at_limit.split(rows), strict=True)):
        log_probs = torch.log_softmax(chunk.float(), dim=-1)
        log_probs[:, list(rules.banned)] = NEVER
        if allowed is not None:
            log_probs.masked_fill_(~allowed[at * rows : (at + 1) * rows], NEVER)
        if bool(must_end.any()):
            is_other_token = torch.arange(chunk.shape[1], device=chunk.device) != rules.eos
            log_probs.masked_fill_(must_end[:, None] & is_other_token, NEVER)
        top_tokens.append(_topk_by_blocks(log_probs, k))
    values, tokens = zip(*top_tokens, strict=True)
    return torch.cat(values), torch.cat(tokens)


def _topk_by_blocks(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return what `stable_topk` returns, faster for long rows: the k largest are in the k blocks of largest maxima."""
    blocks = -(-x.shape[1] // BLOCK)
    if blocks <= 2 * k:
        return stable_topk(x, k)
    x = F.pad(x, (0, blocks * BLOCK - x.shape[1]), value=NEVER).unflatten(1, (blocks, BLOCK))
    maxima, chosen = x.amax(2).topk(k + 1)
    chosen = chosen[:, :k].sort(dim=1).values  # keeps the order of equal values
    values, index = stable_topk(x.gather(1, chosen[:, :, None].expand(-1, -1, BLOCK)).flatten(1), k)
    index = chosen.gather(1, index // BLOCK) * BLOCK + index % BLOCK
    tied = (maxima[:, k] == values[:, k - 1]) & (values[:, k - 1] > NEVER)  # with a block that was not chosen
    if bool(tied.any()):
        values[tied], index[tied] = stable_topk(x[tied].flatten(1), k)
    return values, index


def is_final(state: SearchState, rules: SearchRules) -> Tensor:
    """Return (live,) True for sentences whose n best hypotheses are final. At its limit a sentence is always done."""
    best = state.log_prob.amax(dim=1)
    if rules.early_stopping == "heuristic":
        reached = best / rules.penalty(state.tokens.shape[-1])
        worst = state.finished_scores[:, -1]
        return ((worst > NEVER) & (worst >= reached)) | (best == NEVER)
    bound = torch.maximum(best / rules.penalty(state.tokens.shape[-1] + 1), best / state.limit_penalties)
    final = state.finished_scores[:, rules.n_best - 1] >= bound
    return final | (state.finished_scores[:, -1] > NEVER) if rules.early_stopping else final


def search(
    step: Step,
    cache: Any,
    limits: Tensor,
    rules: SearchRules,
    prefixes: Tensor,
    spellings: Sequence[Spelling | None] = (),
) -> list[list[Hypothesis]]:
    """Search a batch, and return the `rules.n_best` best hypotheses of each sentence, best first.

    A sentence with fewer complete sequences within its limit has fewer hypotheses.

    Args:
        step: Model.
        cache: Cache with one row per sentence.
        limits: (sentences,) maximum number of generated tokens, prefix and end of sentence included. It must leave room
            for the prefix, the tokens that spell the text, and the end of sentence.
        rules: Settings of the search.
        prefixes: (sentences, length) tokens that the hypotheses begin with.
        spellings: Text of each sentence that follows its prefix; empty if no sentence has one.

    Raises:
        Diverged: The model's log-probabilities are NaN, as after training diverged.
    """
    results: list[list[Hypothesis]] = [[]] * len(limits)
    logits, log_prob, cache = read_prefixes(step, cache, prefixes, rules)
    state = start(limits, rules, prefixes, log_prob, spellings)
    while True:
        width = state.tokens.shape[1]
        state, parents = advance(state, logits.unflatten(0, (-1, width)), rules, spellings)
        rows = parents + width * torch.arange(len(parents), device=parents.device)[:, None]  # (live, new width)
        is_finished = is_final(state, rules)
        if is_finished.any():
            finished = state.select(is_finished)
            columns = finished.sentences.tolist(), finished.finished_tokens.tolist(), finished.finished_scores.tolist()
            for sentence, tokens, scores in zip(*columns, strict=True):
                ranked = list(zip(tokens, scores, strict=True))[: rules.n_best]
                results[sentence] = [
                    Hypothesis(row[: row.index(rules.eos)], score) for row, score in ranked if score > NEVER
                ]
            kept_rows = compact_batch(is_finished)
            state, rows = state.select(kept_rows), rows[kept_rows]
        if not len(state.sentences):
            return results
        if state.tokens.shape[-1] >= int(state.limits.min()):
            raise Diverged(DIVERGED)
        slots, cache = assign_slots(cache, rows, width)
        state = replace(state, slots=slots)
        last = torch.empty_like(slots).scatter_(1, slots, state.tokens[:, :, -1])
        logits, cache = step(last.view(-1, 1), cache)
        logits = logits[:, -1]


def compact_batch(is_finished: Tensor) -> Tensor:
    """Return the places (left,) of the sentences that are not done, the last ones moved to places of done ones."""
    remaining = int((~is_finished).sum())
    order = torch.arange(remaining, device=is_finished.device)
    order[is_finished[:remaining]] = remaining + (~is_finished[remaining:]).nonzero()[:, 0]
    return order


def assign_slots(cache: Any, rows: Tensor, width: int) -> tuple[Tensor, Any]:
    """Reorder a cache for new hypotheses, with few copies.

    The first hypothesis that extends a row keeps it. Others take rows of the sentence that no hypothesis extends.

    Args:
        cache: Cache, which must not be used afterwards.
        rows: (live, new width) row that each hypothesis extends.
        width: Number of rows per sentence in the cache.

    Returns:
        The slot (live, new width) of each hypothesis, and the cache.
    """
    active, new = rows.shape
    first = width * torch.arange(active, device=rows.device)[:, None]
    if new != width:
        return torch.arange(new, device=rows.device).expand(active, new), cache.select(rows.flatten())
    slots = rows - first
    is_repeated = (rows[:, :, None] == rows[:, None, :]).tril(-1).any(-1)
    keeps_slot = (slots >= 0) & (slots < width) & ~is_repeated
    is_taken = ((slots[:, :, None] == torch.arange(width, device=rows.device)) & keeps_slot[:, :, None]).any(1)
    slot_order = is_taken.int().argsort(dim=1, stable=True)  # free slots come first
    slots = slots.where(keeps_slot, slot_order.gather(1, ((~keeps_slot).cumsum(1) - 1).clamp(min=0)))
    moves = ~keeps_slot
    return slots, cache.move(rows[moves], (slots + first)[moves], active * width)


def stable_topk(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest values of each row of (rows, n), in falling order, and their indices.

    Of equal values the first come first, which `torch.topk` does not promise. Of -inf, which stands for "no candidate",
    any may be returned.
    """
    values, index = x.topk(min(k + 1, x.shape[1]))
    if values.shape[1] > k:
        at_cut = (values[:, k - 1] == values[:, k]) & (values[:, k] > NEVER)
        if at_cut.any():
            index[at_cut, :k] = _down_to(x[at_cut], values[at_cut, k - 1, None], k)
    index = index[:, :k].sort(dim=1).values
    values, order = x.gather(1, index).sort(dim=1, descending=True, stable=True)
    return values, index.gather(1, order)


def _down_to(x: Tensor, cut: Tensor, k: int) -> Tensor:
    """Return the indices (rows, k) of values above `cut` (rows, 1) and of the first values that equal it, in order.

    Nothing is sorted: in bfloat16, where logits are often equal, sorting would take a third of a search.
    """
    above, equal = x > cut, x == cut
    missing = k - above.sum(dim=1, keepdim=True)
    chosen = above | (equal & (equal.cumsum(dim=1, dtype=torch.int32) <= missing))
    return chosen.nonzero()[:, 1].unflatten(0, (-1, k))


def _rows(x: Tensor, which: Tensor) -> Tensor:
    """Select from x (live, width, length) the rows `which` (live, chosen): (live, chosen, length)."""
    return x.gather(1, which[:, :, None].expand(-1, -1, x.shape[-1]))
