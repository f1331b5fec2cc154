/* Beam search for a batch of sentences, over the steps of `step.h`. `search/beam.py` documents the algorithm, and is
   the oracle of the tests.

   Each active sentence has an index in the batch, and `beam` rows of the cache from batch_index * beam on. When a
   sentence is finished, the last active sentence takes its index. */

#ifndef RELATTN_SEARCH_H
#define RELATTN_SEARCH_H

#include "memory.h"
#include "pack.h"
#include "step.h"

typedef struct {
    real log_prob;     /* of the extended hypothesis */
    idx parent, token; /* index of the hypothesis that it extends in its sentence's beam, and the next token */
} candidate;

typedef struct {        /* hypotheses of the active sentences */
    int64_t *sentences; /* (active,) index of each sentence in the request */
    real *log_probs;    /* (active, beam) in falling order; -inf: no hypothesis */
    int64_t *slots;     /* (active, beam) cache row of each hypothesis, relative to its sentence's first row */
    int64_t *parents;   /* (active, beam) slot of the hypothesis that it extends */
    int64_t *tokens;    /* (active, beam, capacity) */
} beams;

typedef struct {
    beams current, next;
    real **blocks, *token_log_probs, *workspace;
    int64_t *input_tokens, *forced_tokens, *candidate_tokens;
    int64_t *old_indices;               /* (active,) index of each sentence before the batch was compacted */
    int64_t *source_rows, *target_rows; /* (beam,) cache rows to copy */
    candidate *sorted_candidates;
    char *is_taken; /* (beam,) whether a hypothesis keeps a cache row */
} search_state;

static void *allocate_large_pages(idx bytes) {
#ifdef MADV_HUGEPAGE
    const idx page = bytes < LARGE_PAGE ? 64 : LARGE_PAGE;
#else
    const idx page = 64;
#endif
    void *memory = aligned_alloc(page, round_up(bytes, page));
    if (memory) advise_large_pages(memory, round_up(bytes, page));
    return memory;
}

/* Sort the best candidates of a sentence, best first. Ties are resolved in favour of the first candidate. Return their
   number, or -1 for NaN. */
static idx select_candidates(const search *a, search_state *s, idx batch_index, idx rows_per_sentence,
                             idx candidates_per_row) {
    const idx max_candidates = a->beam == 1 ? 1 : 2 * a->beam;
    idx count = 0;
    for (idx parent = 0; parent < rows_per_sentence; parent++) {
        const real log_prob = s->current.log_probs[batch_index * a->beam + parent];
        if (!(log_prob > -INFINITY)) continue; /* the content of its cache row is undefined */
        const idx row = batch_index * rows_per_sentence + s->current.slots[batch_index * a->beam + parent];
        for (idx c = 0; c < candidates_per_row; c++) {
            const real sum = log_prob + s->token_log_probs[row * candidates_per_row + c];
            if (sum != sum) return -1;
            if (!(sum > -INFINITY) ||
                (count == max_candidates && !(sum > s->sorted_candidates[max_candidates - 1].log_prob)))
                continue;
            idx i = count < max_candidates ? count++ : max_candidates - 1;
            for (; i > 0 && s->sorted_candidates[i - 1].log_prob < sum; i--)
                s->sorted_candidates[i] = s->sorted_candidates[i - 1];
            s->sorted_candidates[i] = (candidate){sum, parent, s->candidate_tokens[row * candidates_per_row + c]};
        }
    }
    return count;
}

/* Add a hypothesis to the finished ones of its sentence, after all that are at least as good. */
static void add_finished(const search *a, idx sentence, const int64_t *tokens, idx length, real score) {
    real *scores = a->scores + sentence * a->beam;
    int64_t *hypotheses = a->tokens + sentence * a->beam * a->capacity;
    idx i = a->beam - 1;
    if (!(score > scores[i])) return;
    for (; i > 0 && scores[i - 1] < score; i--) {
        scores[i] = scores[i - 1];
        memcpy(hypotheses + i * a->capacity, hypotheses + (i - 1) * a->capacity, sizeof(int64_t) * length);
    }
    scores[i] = score;
    memcpy(hypotheses + i * a->capacity, tokens, sizeof(int64_t) * (length - 1));
    hypotheses[i * a->capacity + length - 1] = a->eos;
}

/* Return whether the best hypotheses of a sentence are final. Penalties do not decrease with the length, so the score
   of an unfinished hypothesis is at most its log-probability divided by the penalty at the limit. */
static int is_done(const search *a, idx sentence, real best, idx length) {
    const real *scores = a->scores + sentence * a->beam, worst = scores[a->beam - 1];
    const real max_score = best / a->penalties[a->limits[sentence]];
    if (a->early_stopping == 2)
        return !(best > -INFINITY) || (worst > -INFINITY && worst >= best / a->penalties[length]);
    return scores[a->best - 1] >= max_score || (a->early_stopping && worst > -INFINITY);
}

/* Extend the hypotheses of a sentence to `length` tokens. Return 1 if the sentence is still active, and 0 if it is
   finished. After NaN, it is finished and its first score is NaN. */
static int advance_sentence(const search *a, search_state *s, idx batch_index, idx rows_per_sentence,
                            idx candidates_per_row, idx length) {
    const idx sentence = s->current.sentences[batch_index], first = batch_index * a->beam,
              count = select_candidates(a, s, batch_index, rows_per_sentence, candidates_per_row);
    real *log_probs = s->next.log_probs + first;
    idx num_live = 0;
    if (count < 0) {
        a->scores[sentence * a->beam] = NAN;
        return 0;
    }
    for (idx i = 0; i < count; i++) {
        const candidate *extension = s->sorted_candidates + i;
        const int64_t *tokens = s->current.tokens + (first + extension->parent) * a->capacity;
        if (extension->token == a->eos) {
            if (i < a->beam || !a->early_stopping)
                add_finished(a, sentence, tokens, length, extension->log_prob / a->penalties[length]);
        } else if (num_live < a->beam) {
            int64_t *next_tokens = s->next.tokens + (first + num_live) * a->capacity;
            memcpy(next_tokens, tokens, sizeof(int64_t) * (length - 1));
            next_tokens[length - 1] = extension->token;
            s->next.parents[first + num_live] = s->current.slots[first + extension->parent];
            log_probs[num_live++] = extension->log_prob;
        }
    }
    for (idx w = num_live; w < a->beam; w++) {
        log_probs[w] = -INFINITY;
        s->next.tokens[(first + w) * a->capacity + length - 1] = 0;
        s->next.parents[first + w] = 0;
    }
    s->next.sentences[batch_index] = sentence;
    if (length <= a->given_count) log_probs[0] = 0;
    return !is_done(a, sentence, log_probs[0], length);
}

/* Move the last active sentences to the indices of finished ones. Return the number of active sentences. */
static idx compact_batch(const search *a, search_state *s, const char *is_active, idx num_active, idx length) {
    idx num_left = 0, last = num_active;
    for (idx batch_index = 0; batch_index < num_active; batch_index++) num_left += is_active[batch_index];
    for (idx batch_index = 0; batch_index < num_left; batch_index++) {
        s->old_indices[batch_index] = batch_index;
        if (is_active[batch_index]) continue;
        while (!is_active[--last]) continue;
        const idx to = batch_index * a->beam, from = last * a->beam;
        s->old_indices[batch_index] = last;
        s->next.sentences[batch_index] = s->next.sentences[last];
        memcpy(s->next.log_probs + to, s->next.log_probs + from, sizeof(real) * a->beam);
        memcpy(s->next.parents + to, s->next.parents + from, sizeof(int64_t) * a->beam);
        for (idx w = 0; w < a->beam; w++)
            memcpy(s->next.tokens + (to + w) * a->capacity, s->next.tokens + (from + w) * a->capacity,
                   sizeof(int64_t) * length);
    }
    return num_left;
}

/* Choose cache rows for the hypotheses of a sentence. The first hypothesis that extends a row keeps it; the others get
   rows that no hypothesis extends. Return the number of rows to copy. */
static idx assign_cache_rows(const search *a, search_state *s, idx batch_index, idx rows_per_sentence) {
    const idx first = batch_index * a->beam, old_index = s->old_indices[batch_index];
    const int64_t *parents = s->next.parents + first;
    int64_t *slots = s->next.slots + first;
    idx num_copies = 0;
    char *is_taken = s->is_taken;
    memset(is_taken, 0, a->beam);
    for (idx w = 0; w < a->beam; w++) {
        const int is_reusable =
            batch_index == old_index && rows_per_sentence == a->beam && s->next.log_probs[first + w] > -INFINITY;
        slots[w] = is_reusable && !is_taken[parents[w]] ? parents[w] : -1;
        if (slots[w] >= 0) is_taken[slots[w]] = 1;
    }
    for (idx w = 0, free_slot = 0; w < a->beam; w++) {
        if (slots[w] >= 0) continue;
        while (is_taken[free_slot]) free_slot++;
        slots[w] = free_slot++;
        if (!(s->next.log_probs[first + w] > -INFINITY)) continue;
        s->source_rows[num_copies] = old_index * rows_per_sentence + parents[w];
        s->target_rows[num_copies++] = first + slots[w];
    }
    return num_copies;
}

/* Reorder the rows of the cache. The first step has one row per sentence; after it, each hypothesis gets a separate
   row. Return 1 if memory ran out. */
static int reorder_cache(const search *a, const step_arguments *step, search_state *s, idx rows_per_sentence,
                         idx num_sentences) {
    real *old_block = rows_per_sentence < a->beam ? s->blocks[0] : NULL;
    if (old_block &&
        !(s->blocks[0] = allocate_large_pages(num_sentences * a->beam * cache_row_size(step) * (idx)sizeof(real)))) {
        free(old_block);
        return 1;
    }
    for (idx batch_index = 0; batch_index < num_sentences; batch_index++) {
        const idx num_copies = assign_cache_rows(a, s, batch_index, rows_per_sentence);
        if (old_block)
            copy_cache_rows(s->blocks[0], old_block, s->source_rows, s->target_rows, num_copies, cache_row_size(step));
        else relattn_move(step, s->source_rows, s->target_rows, num_copies);
    }
    free(old_block);
    return 0;
}

/* Return the number of steps, or an error code. */
static idx run_search(const search *a, search_state *s, step_arguments step, char *is_active) {
    idx num_active = a->sentences, rows_per_sentence = 1, length = 1;
    for (idx i = 0; i < num_active; i++) {
        s->current.sentences[i] = i, s->current.log_probs[i * a->beam] = 0, s->current.slots[i * a->beam] = 0,
        s->input_tokens[i] = a->bos;
        for (idx w = 0; w < a->beam; w++) a->scores[i * a->beam + w] = -INFINITY;
    }
    for (; num_active > 0; length++) {
        step.position = length - 1, step.rows = num_active * rows_per_sentence, step.per_source = rows_per_sentence;
        step.sources = s->current.sentences;
        real **block = s->blocks + cache_blocks(&step, length) - 1;
        if (!*block && !(*block = allocate_large_pages(step.rows * cache_row_size(&step) * (idx)sizeof(real))))
            return RELATTN_MT_NO_MEMORY;
        for (idx i = 0; i < step.rows; i++)
            s->forced_tokens[i] = length <= a->given_count ? a->given[length - 1]
                                : a->limits[s->current.sentences[i / rows_per_sentence]] == length ? a->eos : -1;
        relattn_step(&step);
        for (idx batch_index = 0; batch_index < num_active; batch_index++)
            is_active[batch_index] = (char)advance_sentence(a, s, batch_index, rows_per_sentence, step.best, length);
        num_active = compact_batch(a, s, is_active, num_active, length);
        step.position = length; /* positions to copy */
        if (reorder_cache(a, &step, s, rows_per_sentence, num_active)) return RELATTN_MT_NO_MEMORY;
        const beams swapped = s->current;
        s->current = s->next, s->next = swapped;
        rows_per_sentence = a->beam;
        for (idx i = 0; i < num_active * rows_per_sentence; i++)
            s->input_tokens[i / rows_per_sentence * rows_per_sentence + s->current.slots[i]] =
                s->current.tokens[i * a->capacity + length - 1];
    }
    return length - 1;
}

/* Run the search and write the finished hypotheses of each sentence. The return values are those of `run_search`. */
static idx relattn_search(const search *a) {
    const idx rows = a->sentences * a->beam, max_candidates = a->beam == 1 ? 1 : 2 * a->beam;
    const idx blocks = cache_blocks(&a->step, a->capacity);
    step_arguments step = a->step;
    step.best = max_candidates < step.vocab ? max_candidates : step.vocab;
    step.position = a->capacity - 1;
    step.rows = a->sentences, step.per_source = 1;
    const idx first_step_space = relattn_space(&step);
    step.rows = rows, step.per_source = a->beam;
    const idx step_space = relattn_space(&step),
              workspace_len = first_step_space > step_space ? first_step_space : step_space;
    search_state s = {0};
    char *is_active;
    const struct {
        void *address;
        idx bytes;
    } buffers[] = {
        {&s.current.sentences, 8 * a->sentences},
        {&s.next.sentences, 8 * a->sentences},
        {&s.current.log_probs, sizeof(real) * rows},
        {&s.next.log_probs, sizeof(real) * rows},
        {&s.current.slots, 8 * rows},
        {&s.next.slots, 8 * rows},
        {&s.current.parents, 8 * rows},
        {&s.next.parents, 8 * rows},
        {&s.current.tokens, 8 * rows * a->capacity},
        {&s.next.tokens, 8 * rows * a->capacity},
        {&s.blocks, sizeof(real *) * blocks},
        {&s.token_log_probs, sizeof(real) * rows * step.best},
        {&s.candidate_tokens, 8 * rows * step.best},
        {&s.input_tokens, 8 * rows},
        {&s.forced_tokens, 8 * rows},
        {&s.old_indices, 8 * a->sentences},
        {&s.source_rows, 8 * a->beam},
        {&s.target_rows, 8 * a->beam},
        {&s.sorted_candidates, sizeof(candidate) * max_candidates},
        {&is_active, a->sentences},
        {&s.is_taken, a->beam},
        {&s.workspace, sizeof(real) * workspace_len},
    };
    const idx count = sizeof buffers / sizeof *buffers;
    idx total = 0;
    for (idx i = 0; i < count; i++) total += round_up(buffers[i].bytes, 64);
    char *memory = aligned_alloc(64, total), *next = memory; /* often much more than the search uses */
    if (!memory) return RELATTN_MT_NO_MEMORY;
    for (idx i = 0; i < count; next += round_up(buffers[i++].bytes, 64)) memcpy(buffers[i].address, &next, sizeof next);
    memset(s.blocks, 0, sizeof(real *) * blocks);
    char *selected = NULL; /* the maps of the shortlists, then their weights */
    if (step.shortlist) {
        const int64_t *begins = step.shortlist_begins;
        const idx maps = round_up(a->sentences * (idx)sizeof(map), 64), depth = panel_rows_of(&step.output),
                  most = begins[a->sentences] + a->sentences * PANEL; /* outputs, with those that complete panels */
        if (!(selected = allocate_large_pages(maps + 4 * depth * most + 3 * (4 * most + 64 * a->sentences)))) {
            free(memory);
            return RELATTN_MT_NO_MEMORY;
        }
        char *to = selected + maps;
        for (idx i = 0; i < a->sentences; i++)
            ((map *)selected)[i] =
                select_outputs(&step.output, step.shortlist + begins[i], begins[i + 1] - begins[i], &to);
        step.short_outputs = (map *)selected;
    }
    step.blocks = s.blocks, step.tokens = s.input_tokens, step.only = s.forced_tokens, step.logits = NULL,
    step.log_sums = NULL, step.space = s.workspace;
    step.values = s.token_log_probs, step.candidates = s.candidate_tokens;
    const idx result = run_search(a, &s, step, is_active);
    for (idx i = 0; i < blocks; i++) free(s.blocks[i]);
    free(selected);
    free(memory);
    return result;
}

#endif
