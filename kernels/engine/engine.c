/* One step of a Transformer decoder for a batch of hypotheses, from their last tokens to the best next ones, and the
   encoder.

   Each row is a hypothesis. The rows of a source sentence are consecutive, and attend to its keys and values together.
   In the encoder, each row is a token of a source sentence. A tile of rows passes through all layers, so that its
   activations stay in the processor's cache. Logits are computed in blocks of columns. Each block updates a row's
   maximum, its sum of exponentials and its best candidates.

   The order of every sum depends on the sizes of the sentence only. So a result does not depend on the other rows, on
   threads or on the alignment of memory.

   Scores are in units of log2(e), so that the softmax needs powers of 2 only. The relative terms of a row are a strip
   with one score per label. The terms of consecutive keys are a contiguous slice of it (see `attention.c`). */

#define _GNU_SOURCE /* MADV_HUGEPAGE */
#include "search.h"

static const relattn_mt_engine engine = {
    .level = LEVEL_NAME,
    .panel = PANEL,
    .int8_kernels = INT8_KERNELS,
    .pack = relattn_pack,
    .space = relattn_space,
    .memory_space = relattn_memory_space,
    .encode = relattn_encode,
    .memory = relattn_memory,
    .step = relattn_step,
    .move = relattn_move,
    .search = relattn_search,
};

const void *const PART = &engine; /* relattn_avx512_float32, for instance; `levels.c` chooses one */
