/* Beam search over the steps of `decoder.c`, for a batch of sentences: the algorithm of `search/beam.py`, which has its
   documentation and is the oracle of its tests.

   Sentences have places, and `beam` rows of the cache from place * beam on. A sentence that is done leaves: the last
   one takes its place. */

#ifndef RELATTN_SEARCH_H
#define RELATTN_SEARCH_H

typedef struct {
    real total;
    idx parent, token; /* place of the hypothesis that it extends, in its sentence */
} candidate;

typedef struct {         /* hypotheses of the sentences that are not done, by place */
    int64_t *sentences;  /* (places,) */
    real *totals;        /* (places, beam) log-probabilities, best first; -inf: no hypothesis */
    int64_t *slots;      /* (places, beam) row of each hypothesis, in its sentence */
    int64_t *parents;    /* (places, beam) slot of the hypothesis that it extends */
    int64_t *tokens;     /* (places, beam, capacity) */
} beams;

typedef struct {
    beams now, next;
    real **blocks, *values, *space;
    int64_t *inputs, *only, *candidates, *places, *from, *to;
    candidate *sorted;
} searching;

static void *large(idx bytes) {
    const idx page = 1 << 21;
    void *memory = aligned_alloc(bytes < page ? 64 : page, round_up(bytes, bytes < page ? 64 : page));
#ifdef MADV_HUGEPAGE
    if (memory && bytes >= page) madvise(memory, round_up(bytes, page), MADV_HUGEPAGE);
#endif
    return memory;
}

/* The best candidates of a sentence, best first; of equal ones the first. Return their number, or -1 for NaN. */
static idx extend(const search *a, searching *s, idx place, idx width, idx per_row) {
    const idx most = a->beam == 1 ? 1 : 2 * a->beam;
    idx count = 0;
    for (idx w = 0; w < width; w++) {
        const real total = s->now.totals[place * a->beam + w];
        if (!(total > -INFINITY)) continue; /* its row of the cache has any content */
        const idx row = place * width + s->now.slots[place * a->beam + w];
        for (idx c = 0; c < per_row; c++) {
            const real sum = total + s->values[row * per_row + c];
            if (sum != sum) return -1;
            if (!(sum > -INFINITY) || (count == most && !(sum > s->sorted[most - 1].total))) continue;
            idx i = count < most ? count++ : most - 1;
            for (; i > 0 && s->sorted[i - 1].total < sum; i--) s->sorted[i] = s->sorted[i - 1];
            s->sorted[i] = (candidate){sum, w, s->candidates[row * per_row + c]};
        }
    }
    return count;
}

/* Add a hypothesis that ends to the finished ones of its sentence, behind those that are at least as good. */
static void finish(const search *a, idx sentence, const int64_t *tokens, idx length, real score) {
    real *scores = a->scores + sentence * a->beam;
    int64_t *found = a->tokens + sentence * a->beam * a->capacity;
    idx i = a->beam - 1;
    if (!(score > scores[i])) return;
    for (; i > 0 && scores[i - 1] < score; i--) {
        scores[i] = scores[i - 1];
        memcpy(found + i * a->capacity, found + (i - 1) * a->capacity, sizeof(int64_t) * length);
    }
    scores[i] = score;
    memcpy(found + i * a->capacity, tokens, sizeof(int64_t) * (length - 1));
    found[i * a->capacity + length - 1] = a->eos;
}

/* Whether the best hypotheses of a sentence are final. Penalties do not fall with the length, so a live hypothesis scores
   at most what it would at the limit. */
static int is_done(const search *a, idx sentence, real best) {
    const real *scores = a->scores + sentence * a->beam;
    const real most = best / a->penalties[a->limits[sentence]];
    return scores[a->best - 1] >= most || (a->early_stopping && scores[a->beam - 1] > -INFINITY);
}

/* Advance the sentence at a place to `length` tokens. Return 1 if it is not done, 0 if it is, and -1 for NaN. */
static int advance(const search *a, searching *s, idx place, idx width, idx per_row, idx length) {
    const idx sentence = s->now.sentences[place], first = place * a->beam, count = extend(a, s, place, width, per_row);
    real *totals = s->next.totals + first;
    idx live = 0;
    if (count < 0) return -1;
    for (idx i = 0; i < count; i++) {
        const candidate *one = s->sorted + i;
        const int64_t *tokens = s->now.tokens + (first + one->parent) * a->capacity;
        if (one->token == a->eos) {
            if (i < a->beam || !a->early_stopping)
                finish(a, sentence, tokens, length, one->total / a->penalties[length]);
        } else if (live < a->beam) {
            int64_t *copy = s->next.tokens + (first + live) * a->capacity;
            memcpy(copy, tokens, sizeof(int64_t) * (length - 1));
            copy[length - 1] = one->token;
            s->next.parents[first + live] = s->now.slots[first + one->parent];
            totals[live++] = one->total;
        }
    }
    for (idx w = live; w < a->beam; w++) {
        totals[w] = -INFINITY;
        s->next.tokens[(first + w) * a->capacity + length - 1] = 0;
        s->next.parents[first + w] = 0;
    }
    s->next.sentences[place] = sentence;
    return !is_done(a, sentence, totals[0]);
}

/* Move the last sentences that are not done to the places of those that are. Return how many are left. */
static idx close_up(const search *a, searching *s, const char *is_live, idx live, idx length) {
    idx left = 0, last = live;
    for (idx place = 0; place < live; place++) left += is_live[place];
    for (idx place = 0; place < left; place++) {
        s->places[place] = place;
        if (is_live[place]) continue;
        while (!is_live[--last]) continue;
        const idx to = place * a->beam, from = last * a->beam;
        s->places[place] = last;
        s->next.sentences[place] = s->next.sentences[last];
        memcpy(s->next.totals + to, s->next.totals + from, sizeof(real) * a->beam);
        memcpy(s->next.parents + to, s->next.parents + from, sizeof(int64_t) * a->beam);
        for (idx w = 0; w < a->beam; w++)
            memcpy(s->next.tokens + (to + w) * a->capacity, s->next.tokens + (from + w) * a->capacity,
                   sizeof(int64_t) * length);
    }
    return left;
}

/* Choose rows for the hypotheses at a place. The first that extends a row of this place keeps it; others take rows that
   none extends. Return the number of rows to copy. */
static idx assign_slots(const search *a, searching *s, idx place, idx width) {
    const idx first = place * a->beam, before = s->places[place];
    const int64_t *parents = s->next.parents + first;
    int64_t *slots = s->next.slots + first;
    idx moves = 0;
    char taken[a->beam];
    memset(taken, 0, a->beam);
    for (idx w = 0; w < a->beam; w++) {
        const int stays = place == before && width == a->beam && s->next.totals[first + w] > -INFINITY;
        slots[w] = stays && !taken[parents[w]] ? parents[w] : -1;
        if (slots[w] >= 0) taken[slots[w]] = 1;
    }
    for (idx w = 0, free = 0; w < a->beam; w++) {
        if (slots[w] >= 0) continue;
        while (taken[free]) free++;
        slots[w] = free++;
        if (!(s->next.totals[first + w] > -INFINITY)) continue;
        s->from[moves] = before * width + parents[w];
        s->to[moves++] = first + slots[w];
    }
    return moves;
}

/* Reorder the rows of the cache. In the first step, hypotheses get rows of their own. Return 1 if memory ran out. */
static int reorder(const search *a, const arguments *step, searching *s, idx width, idx left) {
    real *narrow = width < a->beam ? s->blocks[0] : NULL;
    if (narrow && !(s->blocks[0] = large(left * a->beam * row_size(step) * (idx)sizeof(real)))) {
        free(narrow);
        return 1;
    }
    for (idx place = 0; place < left; place++) {
        const idx moves = assign_slots(a, s, place, width);
        if (narrow) copy_rows(s->blocks[0], narrow, s->from, s->to, moves, row_size(step));
        else relattn_move(step, s->from, s->to, moves);
    }
    free(narrow);
    return 0;
}

/* Return the number of steps, -1 if log-probabilities are NaN, or -2 if memory ran out. */
static int run_search(const search *a, searching *s, arguments step, char *is_live) {
    idx live = a->sentences, width = 1, length = 1;
    for (idx i = 0; i < live; i++) {
        s->now.sentences[i] = i, s->now.totals[i * a->beam] = 0, s->now.slots[i * a->beam] = 0, s->inputs[i] = a->bos;
        for (idx w = 0; w < a->beam; w++) a->scores[i * a->beam + w] = -INFINITY;
    }
    for (; live > 0; length++) {
        step.position = length - 1, step.rows = live * width, step.per_source = width;
        step.sources = s->now.sentences;
        step.signal = a->signals ? a->signals + step.position * step.dim : NULL;
        step.rotation = a->rotations ? a->rotations + step.position * 2 * step.rotary_dim : NULL;
        real **block = s->blocks + step.position / BLOCK;
        if (!*block && !(*block = large(step.rows * row_size(&step) * (idx)sizeof(real)))) return -2;
        for (idx i = 0; i < step.rows; i++)
            s->only[i] = a->limits[s->now.sentences[i / width]] == length ? a->eos : -1;
        relattn_step(&step);
        for (idx place = 0; place < live; place++) {
            const int more = advance(a, s, place, width, step.best, length);
            if (more < 0) return -1;
            is_live[place] = (char)more;
        }
        live = close_up(a, s, is_live, live, length);
        step.position = length; /* those to copy */
        if (reorder(a, &step, s, width, live)) return -2;
        const beams before = s->now;
        s->now = s->next, s->next = before;
        width = a->beam;
        for (idx i = 0; i < live * width; i++)
            s->inputs[i / width * width + s->now.slots[i]] = s->now.tokens[i * a->capacity + length - 1];
    }
    return (int)length - 1;
}

/* Search, write the finished hypotheses of each sentence, and return what `run_search` does. */
int relattn_search(const search *a) {
    const idx rows = a->sentences * a->beam, most = a->beam == 1 ? 1 : 2 * a->beam;
    const idx blocks = round_up(a->capacity, BLOCK) / BLOCK;
    arguments step = a->step;
    step.best = most < step.vocab ? most : step.vocab;
    step.position = a->capacity - 1;
    step.rows = a->sentences, step.per_source = 1;
    const idx narrow = relattn_space(&step);
    step.rows = rows, step.per_source = a->beam;
    const idx wide = relattn_space(&step), space = narrow > wide ? narrow : wide;
    searching s = {0};
    char *is_live;
    const struct {
        void *field;
        idx bytes;
    } pieces[] = {
        {&s.now.sentences, 8 * a->sentences}, {&s.next.sentences, 8 * a->sentences},
        {&s.now.totals, sizeof(real) * rows}, {&s.next.totals, sizeof(real) * rows},
        {&s.now.slots, 8 * rows}, {&s.next.slots, 8 * rows},
        {&s.now.parents, 8 * rows}, {&s.next.parents, 8 * rows},
        {&s.now.tokens, 8 * rows * a->capacity}, {&s.next.tokens, 8 * rows * a->capacity},
        {&s.blocks, sizeof(real *) * blocks}, {&s.values, sizeof(real) * rows * step.best},
        {&s.candidates, 8 * rows * step.best}, {&s.inputs, 8 * rows}, {&s.only, 8 * rows},
        {&s.places, 8 * a->sentences}, {&s.from, 8 * a->beam}, {&s.to, 8 * a->beam},
        {&s.sorted, sizeof(candidate) * most}, {&is_live, a->sentences}, {&s.space, sizeof(real) * space},
    };
    const idx count = sizeof pieces / sizeof *pieces;
    idx total = 0;
    for (idx i = 0; i < count; i++) total += round_up(pieces[i].bytes, 64);
    char *memory = aligned_alloc(64, total), *left = memory; /* often much more than is used */
    if (!memory) return -2;
    for (idx i = 0; i < count; left += round_up(pieces[i++].bytes, 64)) memcpy(pieces[i].field, &left, sizeof left);
    memset(s.blocks, 0, sizeof(real *) * blocks);
    step.blocks = s.blocks, step.tokens = s.inputs, step.only = s.only, step.logits = NULL, step.space = s.space;
    step.values = s.values, step.candidates = s.candidates;
    const int result = run_search(a, &s, step, is_live);
    for (idx i = 0; i < blocks; i++) free(s.blocks[i]);
    free(memory);
    return result;
}

#endif
