"""Beam search as a pure function from state to state, over a batch of sentences at once.

A hypothesis y_1 … y_t carries log p(y_1 … y_t | x) = Σ log p(y_s | y_<s, x). A step extends every live hypothesis of a
sentence by every token, keeps the best 2·beam candidates, moves those that end in the end-of-sentence token to the
finished ones (ranked by log p / lp(t), see `scoring`), and lets the best `beam` of the others live on. A hypothesis
contributes one candidate that ends, so 2·beam candidates hold at least `beam` that do not: finishing never starves the
beam.

A sentence is over when no live hypothesis can beat the finished ones asked for. A log-probability only falls, and
lp is monotone, so a live hypothesis of log-probability L can at best score max(L / lp(t + 1), L / lp(limit)), where
`limit` is the sentence's own length limit. At the limit only the end-of-sentence token may be generated, at its true
probability. So every hypothesis returned is a complete sequence with its exact score, and nothing returned depends on
what else was in the batch. Sentences that are over leave the batch at once.

With `early_stopping` a sentence is over, too, once `beam` hypotheses of it have finished, and an end counts only among
the best `beam` candidates of a step. So fairseq and CTranslate2 search: sooner over, and what is returned may be less
likely than what would have come.

A sentence may have a prefix that its translations begin with: as long as it lasts, only its next token may be
generated, at its true probability too.

Candidates that tie are ranked by beam index, then by token id. A beam of 1 takes a single candidate a step, which is
greedy decoding: it stops at the first end of sentence.

The model is a function: `step(tokens (rows,), cache) -> (logits (rows, vocab), cache)`, one row a live hypothesis.
The method is that of Wu et al. 2016 (section 7) and of Tensor2Tensor, which the paper used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from relattn.translation.errors import Diverged
from relattn.translation.search.types import DIVERGED, FREE, NEVER, C, Hypothesis, SearchRules, SearchState

CHUNK = 1 << 19  # logits that are processed at a time on a CPU, 2 MiB
BLOCK = 64  # columns of a row of logits whose maximum is taken first


def start(limits: Tensor, rules: SearchRules, prefixes: Tensor | None = None) -> SearchState:
    """The state before the first step: one empty hypothesis a sentence. `limits` is (sentences,) and at least 1."""
    (live,) = limits.shape
    prefixes = limits.new_empty(live, 0) if prefixes is None else prefixes
    if live and int(limits.min()) < 1:
        raise ValueError(f"the shortest length limit is {int(limits.min())}; a hypothesis has at least one token")
    if live and bool(((prefixes != FREE).sum(1) >= limits).any()):
        raise ValueError("a prefix leaves no room within its sentence's limit")
    beam, device = rules.beam_size, limits.device
    return SearchState(
        sentences=torch.arange(live, device=device),
        limits=limits,
        prefixes=prefixes,
        tokens=torch.zeros(live, 1, 0, dtype=torch.long, device=device),
        log_prob=torch.zeros(live, 1, device=device),
        slots=torch.zeros(live, 1, dtype=torch.long, device=device),
        finished_tokens=torch.zeros(live, beam, 0, dtype=torch.long, device=device),
        finished_lengths=torch.zeros(live, beam, dtype=torch.long, device=device),
        finished_scores=torch.full((live, beam), NEVER, device=device),
    )


def advance(state: SearchState, logits: Tensor, rules: SearchRules) -> tuple[SearchState, Tensor]:
    """One step: `logits` (live, width, vocab) of the next token, by slots -> the next state, but for its slots.

    The second result is (live, new width): the slots of the hypotheses that the new live ones extend.
    """
    width, vocab = logits.shape[1:]
    length = state.tokens.shape[-1] + 1
    each = min(rules.candidates, vocab)  # of a hypothesis
    only = permitted(length, state.limits, state.prefixes, rules).repeat_interleave(width)
    found = best_tokens(logits.flatten(0, 1), each, only, rules.banned)
    log_probs, likely = (_rows(of_slots.unflatten(0, (-1, width)), state.slots) for of_slots in found)
    totals = (state.log_prob[:, :, None] + log_probs).flatten(1)  # (live, width * each)
    log_prob, index = stable_topk(totals, min(rules.candidates, width * each))
    parent, token = index // each, likely.flatten(1).gather(1, index)
    tokens = torch.cat([_rows(state.tokens, parent), token[:, :, None]], dim=-1)  # (live, candidates, length)

    ends = token == rules.eos
    lengths = torch.full_like(token, length)
    scores = (log_prob / rules.penalty(lengths)).masked_fill(~ends, NEVER)
    if rules.early_stopping:
        scores[:, rules.beam_size :] = NEVER
    state = _merge_finished(state, tokens, lengths, scores)
    log_prob, chosen = stable_topk(log_prob.masked_fill(ends, NEVER), min(rules.beam_size, token.shape[1]))
    state = replace(state, tokens=_rows(tokens, chosen), log_prob=log_prob)
    return state, state.slots.gather(1, parent.gather(1, chosen))


def permitted(length: int, limits: Tensor, prefixes: Tensor, rules: SearchRules) -> Tensor:
    """(live,) the one token that may stand at a length, counted from 1, or FREE: the end at a limit, or a prefix's own.

    Args:
        length: of the hypotheses with it.
        limits: (live,)
        prefixes: (live, longest)
        rules: of the search.
    """
    only = torch.where(limits == length, rules.eos, FREE)
    if length > prefixes.shape[1]:
        return only
    return torch.where(prefixes[:, length - 1] == FREE, only, prefixes[:, length - 1])


def best_tokens(logits: Tensor, k: int, only: Tensor, banned: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The log-probabilities of the k likeliest tokens of each row, in falling order, and the tokens; as `stable_topk`.

    On a CPU rows are taken a few at a time, so that what is made of them stays in the processor's cache.

    Args:
        logits: (rows, vocab)
        k: how many.
        only: (rows,) the one token that may come, or FREE.
        banned: tokens that may not come.
    """
    found = []
    rows = max(1, CHUNK // logits.shape[1] if logits.is_cpu else len(logits))
    for part, allowed in zip(logits.split(rows), only.split(rows), strict=True):
        log_probs = torch.log_softmax(part.float(), dim=-1)
        log_probs[:, list(banned)] = NEVER
        if bool((allowed != FREE).any()):
            others = torch.arange(part.shape[1], device=part.device) != allowed[:, None]
            log_probs.masked_fill_((allowed != FREE)[:, None] & others, NEVER)
        found.append(_topk_by_blocks(log_probs, k))
    values, tokens = zip(*found, strict=True)
    return torch.cat(values), torch.cat(tokens)


def _topk_by_blocks(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """`stable_topk` for long rows: the k largest of a row are in the k blocks with the largest maxima."""
    blocks = -(-x.shape[1] // BLOCK)
    if blocks <= 2 * k:
        return stable_topk(x, k)
    x = F.pad(x, (0, blocks * BLOCK - x.shape[1]), value=NEVER).unflatten(1, (blocks, BLOCK))
    maxima, chosen = x.amax(2).topk(k + 1)
    chosen = chosen[:, :k].sort(dim=1).values  # so that equal values stay in their order
    values, index = stable_topk(x.gather(1, chosen[:, :, None].expand(-1, -1, BLOCK)).flatten(1), k)
    index = chosen.gather(1, index // BLOCK) * BLOCK + index % BLOCK
    tied = (maxima[:, k] == values[:, k - 1]) & (values[:, k - 1] > NEVER)  # with a block that was left out
    if bool(tied.any()):
        values[tied], index[tied] = stable_topk(x[tied].flatten(1), k)
    return values, index


def over(state: SearchState, rules: SearchRules) -> Tensor:
    """(live,) True where no live hypothesis can still enter the sentence's n best, or is waited for.

    Past its limit nothing is live.
    """
    best = state.log_prob.amax(dim=1)
    next_length = torch.full_like(state.limits, state.tokens.shape[-1] + 1)
    bound = torch.maximum(best / rules.penalty(next_length), best / rules.penalty(state.limits))
    settled = state.finished_scores[:, rules.n_best - 1] >= bound
    return settled | (state.finished_scores[:, -1] > NEVER) if rules.early_stopping else settled


def search(
    step: Callable[[Tensor, C], tuple[Tensor, C]],
    cache: C,
    limits: Tensor,
    rules: SearchRules,
    prefixes: Tensor | None = None,
) -> list[list[Hypothesis]]:
    """Search a batch to its end: for each sentence its best `rules.n_best` hypotheses, best first.

    `cache` has one row per sentence; `limits` (sentences,) are the most tokens each may generate; `prefixes`
    (sentences, longest) are tokens that its hypotheses begin with, and FREE after them. Fewer than n_best are returned
    for a sentence that has fewer complete sequences within its limit.

    Raises:
        Diverged: the model's log-probabilities are not numbers, as those of a diverged model are.
    """
    results: list[list[Hypothesis]] = [[] for _ in range(limits.shape[0])]
    state = start(limits, rules, prefixes)
    last = torch.full_like(limits, rules.bos)
    while len(state.sentences):
        logits, cache = step(last, cache)
        width = state.tokens.shape[1]
        state, parents = advance(state, logits.unflatten(0, (-1, width)), rules)
        rows = parents + width * torch.arange(len(parents), device=parents.device)[:, None]  # (live, new width)
        ended = over(state, rules)
        if ended.any():
            _collect(state.select(ended), rules.n_best, results)
            places = close_up(ended)
            state, rows = state.select(places), rows[places]
        if len(state.sentences):
            if state.tokens.shape[-1] >= int(state.limits.min()):
                raise Diverged(DIVERGED)
            slots, cache = settle(cache, rows, width)
            state = replace(state, slots=slots)
            last = torch.empty_like(slots).scatter_(1, slots, state.tokens[:, :, -1]).flatten()
    return results


def close_up(ended: Tensor) -> Tensor:
    """(left,) the sentences that go on, by place: the last come forward into the places of those that `ended`."""
    left = int((~ended).sum())
    order = torch.arange(left, device=ended.device)
    order[ended[:left]] = left + (~ended[left:]).nonzero()[:, 0]
    return order


def settle(cache: C, rows: Tensor, width: int) -> tuple[Tensor, C]:
    """Each hypothesis's slot, (live, new width), and the cache with their rows in that order.

    The first to extend a row of its sentence keeps it, and the others take those that nothing extends, so that little
    is moved.

    Args:
        cache: given up.
        rows: (live, new width) the rows that hypotheses extend.
        width: rows of each sentence in the cache.
    """
    live, new = rows.shape
    first = width * torch.arange(live, device=rows.device)[:, None]
    if new != width:
        return torch.arange(new, device=rows.device).expand(live, new), cache.select(rows.flatten())
    slots = rows - first
    again = (rows[:, :, None] == rows[:, None, :]).tril(-1).any(-1)
    stays = (slots >= 0) & (slots < width) & ~again
    taken = ((slots[:, :, None] == torch.arange(width, device=rows.device)) & stays[:, :, None]).any(1)
    free = taken.int().argsort(dim=1, stable=True)  # those that are free come first
    slots = slots.where(stays, free.gather(1, ((~stays).cumsum(1) - 1).clamp(min=0)))
    moved = ~stays
    return slots, cache.move(rows[moved], (slots + first)[moved], live * width)


def stable_topk(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row of (rows, n) in falling order, and their indices; of equal values the first come first.

    `torch.topk` leaves the order of equal values open, and which of them make the cut. Of -inf, which stands for
    nothing at all, any may make the cut.
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
    """(rows, k) places of the values above `cut` (rows, 1) and of the first that equal it, from left to right.

    It is looked for without sorting: in bfloat16, whose logits are often equal, sorts would be a third of a search.
    """
    above, equal = x > cut, x == cut
    missing = k - above.sum(dim=1, keepdim=True)
    chosen = above | (equal & (equal.cumsum(dim=1, dtype=torch.int32) <= missing))
    return chosen.nonzero()[:, 1].unflatten(0, (-1, k))


def _rows(tokens: Tensor, which: Tensor) -> Tensor:
    """(live, width, length) tokens, (live, chosen) places in the width -> (live, chosen, length)."""
    return tokens.gather(1, which[:, :, None].expand(-1, -1, tokens.shape[-1]))


def _merge_finished(state: SearchState, tokens: Tensor, lengths: Tensor, scores: Tensor) -> SearchState:
    """The state with the best of its finished hypotheses and of new ones; of equal scores the older is kept."""
    old_tokens = F.pad(state.finished_tokens, (0, tokens.shape[-1] - state.finished_tokens.shape[-1]))
    scores, best = stable_topk(torch.cat([state.finished_scores, scores], dim=1), state.finished_scores.shape[1])
    return replace(
        state,
        finished_scores=scores,
        finished_lengths=torch.cat([state.finished_lengths, lengths], dim=1).gather(1, best),
        finished_tokens=_rows(torch.cat([old_tokens, tokens], dim=1), best),
    )


def _collect(state: SearchState, n_best: int, results: list[list[Hypothesis]]) -> None:
    """Write the n best finished hypotheses of a state's sentences into their places in the results."""
    for sentence, tokens, lengths, scores in zip(
        state.sentences.tolist(),
        state.finished_tokens.tolist(),
        state.finished_lengths.tolist(),
        state.finished_scores.tolist(),
        strict=True,
    ):
        results[sentence] = [
            Hypothesis(row[: length - 1], score)
            for row, length, score in zip(tokens[:n_best], lengths[:n_best], scores[:n_best], strict=True)
            if score > NEVER
        ]
