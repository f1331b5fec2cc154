/* Tests of what is compiled per level: products, 8-bit integers, softmax, powers and logarithms, against plain loops. */

#define _GNU_SOURCE
#include <math.h>

#include "check.h"
#ifdef REAL64
#include "../simd/products.h"
#else
#include "../engine/search.h"
#endif

enum { MOST = 40 };
static const double PRECISION = sizeof(real) == 8 ? 1e-15 : 4e-7;

static void check_close(double found, double expected, double size, const char *what) {
    CHECK(fabs(found - expected) <= 8 * PRECISION * (size + 1e-30), "%s at " LEVEL_NAME ": %.17g, expected %.17g", what,
          found, expected);
}

/* c (m, n) = or += a (m, inner) b (inner, n) in memory of exactly these sizes. */
static void test_product(idx m, idx n, idx inner, int transposed, int add) {
    const idx panels = (n + PANEL - 1) / PANEL;
    real *a = exactly(sizeof(real) * m * inner), *c = exactly(sizeof(real) * m * n), *c0 = exactly(sizeof(real) * m * n);
    real *b = exactly(sizeof(real) * panels * inner * PANEL);
    for (idx i = 0; i < m * inner; i++) a[i] = random_real();
    for (idx i = 0; i < m * n; i++) c0[i] = c[i] = add ? random_real() : NAN;
    for (idx k = 0; k < inner; k++)
        for (idx j = 0; j < n; j++) b[j / PANEL * inner * PANEL + k * PANEL + j % PANEL] = random_real();
    gemm(c, n, a, transposed ? 1 : inner, transposed ? m : 1, b, PANEL, inner * PANEL, m, n, inner, add);
    for (idx i = 0; i < m; i++)
        for (idx j = 0; j < n; j++) {
            double sum = add ? c0[i * n + j] : 0, size = fabs(sum);
            for (idx k = 0; k < inner; k++) {
                const double product = (double)a[transposed ? k * m + i : i * inner + k] *
                                       b[j / PANEL * inner * PANEL + k * PANEL + j % PANEL];
                sum += product, size += fabs(product);
            }
            check_close(c[i * n + j], sum, size, "product");
        }
    free(a), free(b), free(c), free(c0);
}

static void test_powers(void) {
    real *x = exactly(sizeof(real) * LANES);
    for (int i = 0; i < 2000; i++) {
        for (int l = 0; l < LANES; l++) x[l] = (i % 2 ? 1 : 1 - BIAS) * fabs(random_real()) * (i % 3 ? 1 : 40);
        const vec y = vec_exp2(VEC(x));
        for (int l = 0; l < LANES; l++)
            if (x[l] > 1 - BIAS) check_close(y[l], exp2(x[l]), exp2(x[l]), "exp2");
        for (int l = 0; l < LANES; l++) x[l] = exp2(60 * random_real());
        const vec z = vec_log(VEC(x));
        for (int l = 0; l < LANES; l++) check_close(z[l], log(x[l]), 1 + fabs(log(x[l])), "log");
    }
    const real special[] = {-INFINITY, -3e38f, NAN, 0};
    for (size_t i = 0; i < sizeof special / sizeof *special; i++) {
        const real y = vec_exp2(splat(special[i]))[LANES - 1];
        CHECK(isnan(special[i]) ? isnan(y) : y == (special[i] == 0), "exp2(%g) = %g", special[i], y);
    }
    const real odd[] = {NAN, INFINITY, 0, -1, -INFINITY}; /* no result is defined but for the first two */
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        const real y = vec_log(splat(odd[i]))[0];
        CHECK(i > 1 || isnan(y), "log(%g) = %g", odd[i], y);
    }
    free(x);
}

static void test_transposes(void) {
    for (idx row = TRANSPOSE_BLOCK; row < TRANSPOSE_BLOCK + 3; row++) {
        real *from = exactly(sizeof(real) * ((TRANSPOSE_BLOCK - 1) * row + TRANSPOSE_BLOCK)),
             *to = exactly(sizeof(real) * TRANSPOSE_BLOCK * TRANSPOSE_BLOCK);
        for (idx i = 0; i < TRANSPOSE_BLOCK; i++)
            for (idx j = 0; j < TRANSPOSE_BLOCK; j++) from[i * row + j] = 100 * i + j;
        transpose_block(to, TRANSPOSE_BLOCK, from, row);
        for (idx i = 0; i < TRANSPOSE_BLOCK; i++)
            for (idx j = 0; j < TRANSPOSE_BLOCK; j++)
                CHECK(to[j * TRANSPOSE_BLOCK + i] == 100 * i + j, "at %td, %td", i, j);
        free(from), free(to);
    }
}

#ifndef REAL64
static void test_softmax(idx count) {
    const idx padded = round_up(count, LANES);
    real *scores = exactly(sizeof(real) * padded), expected[MOST];
    double sum = 0;
    for (idx j = 0; j < count; j++) scores[j] = 30 * random_real();
    for (idx j = 0; j < count; j++) sum += exp2(expected[j] = scores[j]);
    softmax(scores, count);
    for (idx j = 0; j < count; j++) check_close(scores[j], exp2(expected[j]) / sum, 1, "softmax");
    for (idx j = count; j < padded; j++) CHECK(scores[j] == 0, "padding %td is %g", j, scores[j]);
    free(scores);
}

/* A linear layer in 8 bits: sums are exact, so results are those of the codes to the last bit but for two roundings. */
static void test_int8(idx kernel, idx m, idx inputs, idx outputs) {
    const idx padded = round_up(outputs, PANEL), limit = kernel == PAIRS ? LARGEST_PAIRS : 127;
    int8_t *codes = exactly(outputs * inputs);
    real *x = exactly(sizeof(real) * m * inputs), *c = exactly(sizeof(real) * m * padded);
    for (idx i = 0; i < outputs * inputs; i++) codes[i] = (int8_t)(random_below(2 * limit + 1) - limit);
    for (idx i = 0; i < m * inputs; i++) x[i] = random_below(255) - 127;
    for (idx i = 0; i < m; i++) x[i * inputs] = 127; /* so that scales are 1 */
    float *scales = exactly(sizeof(float) * outputs), *bias = exactly(sizeof(float) * outputs);
    for (idx o = 0; o < outputs; o++) scales[o] = 1, bias[o] = (float)random_below(100);
    relattn_mt_packing p = {codes, bias, scales, NULL, inputs, outputs, kernel, 0, {0}};
    p.buffer = exactly_aligned(relattn_pack(&p));
    CHECK(relattn_pack(&p) > 0 && p.map.kernel == kernel, "kernel %td", p.map.kernel);
    uint8_t *row_codes = exactly(round_up(m, CODE_ROWS) * round_up(inputs, GROUP));
    real *row_scales = exactly(sizeof(real) * 2 * m);
    const linear_input input = operand_of(x, inputs, &p.map, m, row_codes, row_scales);
    for (idx j = 0; j < outputs; j += PANEL) int8_panel(c + j, padded, &input, &p.map, j, MICRO_VECS, m, 0);
    for (idx i = 0; i < m; i++)
        for (idx o = 0; o < outputs; o++) {
            int32_t sum = 0;
            for (idx k = 0; k < inputs; k++) sum += (int32_t)x[i * inputs + k] * codes[o * inputs + k];
            CHECK(c[i * padded + o] == (float)sum + bias[o], "kernel %td, (%td, %td, %td): %g, expected %d", kernel, m,
                  inputs, outputs, c[i * padded + o], sum);
        }
    free(codes), free(x), free(c), free(scales), free(bias), free(p.buffer), free(row_codes), free(row_scales);
}

/* All bytes of packed arrays are set: gaps are zero, or the number that is added to codes. */
static void test_gaps(idx kernel, idx inputs, idx outputs) {
    int8_t *codes = calloc(outputs * inputs, 4);
    float *scales = calloc(outputs, sizeof(float));
    relattn_mt_packing p = {codes, NULL, kernel == FLOAT ? NULL : scales, NULL, inputs, outputs, kernel, 0, {0}};
    const idx bytes = relattn_pack(&p);
    char *buffer = p.buffer = exactly_aligned(bytes);
    CHECK(relattn_pack(&p) == bytes, "%td", bytes);
    const int offset = kernel == PAIRS ? WEIGHT_OFFSET : 0;
    for (idx i = 0; i < bytes; i++)
        CHECK(buffer[i] == 0 || buffer[i] == offset, "byte %td of %td, kernel %td: %d", i, bytes, kernel, buffer[i]);
    free(codes), free(scales), free(buffer);
}
#endif

static void run_tests(int has_dots) {
    configure_matrix_tiles();
    for (idx m = 1, turn = 0; m <= MOST; m++)
        for (idx inner = 1; inner <= MOST; inner++, turn++) {
            const idx n = LANES * (1 + turn % (round_up(MOST, LANES) / LANES + MICRO_VECS));
            test_product(m, n, inner, turn % 2, turn / 2 % 2);
        }
    test_powers();
    test_transposes();
#ifndef REAL64
    for (idx count = 1; count <= MOST; count++) test_softmax(count);
    for (idx kernel = GENERIC; kernel <= DOTS; kernel++) {
        if (!(INT8_KERNELS >> kernel & 1) || (kernel == DOTS && !has_dots)) continue;
        for (idx m = 1; m <= MOST; m++) test_int8(kernel, m, 1 + m * 7 % MOST, 1 + m * 11 % MOST);
        for (idx m = 1; m <= MOST; m++) test_int8(kernel, m, 64 * (1 + m % 3), 1 + m * 11 % MOST);
        for (idx inputs = 1; inputs <= MOST; inputs++) test_int8(kernel, 1 + inputs % 7, inputs, 5);
        for (idx outputs = 1; outputs <= MOST; outputs++) test_int8(kernel, 1 + outputs % 7, 33, outputs);
    }
    for (idx kernel = FLOAT; kernel <= DOTS; kernel++)
        for (idx size = 1; size <= MOST; size += 3) test_gaps(kernel, size, 1 + size * 7 % MOST);
#endif
    release_matrix_tiles();
    (void)has_dots;
    printf(LEVEL_NAME ", %d bits: ok\n", 8 * (int)sizeof(real));
}

static void (*const tests)(int) = run_tests;
const void *const PART = &tests;
