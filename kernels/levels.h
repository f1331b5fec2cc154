/* The processor levels, best first within a machine. Another processor is one line here and one file, `simd/LEVEL.h`:

       MACHINE(level, dtypes, requirement, name with DOTS or "", requirement of DOTS, flags of GCC and Clang)

   EXACT means float32 and float64, BFLOAT16 calls in bfloat16, which use the level of float32 where the processor has no other.
   TILES means BFLOAT16 for attention, and float32 with products of 8 bits in matrix tiles for the engine.
   `levels.c` evaluates the requirements, and `build.py` reads the lines. WebAssembly has no line: `simd/wasm.h` becomes two
   files, and the page chooses. */

#ifndef RELATTN_LEVELS_H
#define RELATTN_LEVELS_H

enum { LEVEL_FLOAT32, LEVEL_FLOAT64, LEVEL_BFLOAT16 }; /* what kernels compute in */
enum { FLOAT, GENERIC, PAIRS, DOTS };                  /* kernels of linear layers, see `int8.h` */

/* Return the kernels of this library for a dtype and this processor, or NULL and an error in `message`, which has at least
   256 bytes; it is empty if there are none for the dtype. `value` replaces RELATTN_LEVEL unless it is NULL. */
const void *relattn_choose(int dtype, const char *value, int *has_dots, char *message);

#endif

#ifdef X86_64
X86_64(amx, TILES, AVX512 && AVX512_BF16 && AMX, "amx_vnni", AVX512_VNNI, "-march=x86-64-v4 -mavx512bf16 -mamx-tile -mamx-bf16 -mamx-int8")
X86_64(avx512_bf16, BFLOAT16, AVX512 && AVX512_BF16, "", 0, "-march=x86-64-v4 -mavx512bf16")
X86_64(avx512, EXACT, AVX512, "avx512_vnni", AVX512_VNNI, "-march=x86-64-v4")
X86_64(avx2, EXACT, AVX2, "avx2_vnni", AVX_VNNI, "-march=x86-64-v3")
X86_64(plain, EXACT, 1, "", 0, "-march=x86-64")
AARCH64(sve256, EXACT, SVE_BYTES == 32, "sve256_dotprod", DOTPROD, "-mcpu=generic+sve -msve-vector-bits=256")
AARCH64(neon, EXACT, 1, "neon_dotprod", DOTPROD, "")
OTHER(plain, EXACT, 1, "", 0, "")
#endif
