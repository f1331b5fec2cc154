/* Features of this processor that the system supports too, by the names in `levels.h`. */

#ifndef RELATTN_PROCESSOR_H
#define RELATTN_PROCESSOR_H

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#if defined(__x86_64__)
#include <cpuid.h>

enum { EAX, EBX, ECX, EDX };

static int cpuid_bit(unsigned leaf, unsigned subleaf, int at, int bit) {
    unsigned registers[4];
    if (!__get_cpuid_count(leaf, subleaf, &registers[EAX], &registers[EBX], &registers[ECX], &registers[EDX])) return 0;
    return registers[at] >> bit & 1;
}

/* Return whether the system keeps the registers of a mask when it switches between processes. */
static int keeps_registers(unsigned mask) {
    unsigned low = 0, high;
    if (!cpuid_bit(1, 0, ECX, 27)) return 0; /* OSXSAVE */
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & mask) == mask;
}

/* Ask Linux for permission to use the matrix tiles in this process. Return whether it is granted. */
static int may_use_matrix_tiles(void) {
#if defined(__linux__)
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM */
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
    return 0;
#endif
}

#define CPUID(leaf, subleaf, at, bit) cpuid_bit(leaf, subleaf, at, bit)
/* AVX2 and AVX512 are all that compilers may use for x86-64-v3 and x86-64-v4. A virtual machine may lack some of it. */
#define AVX2                                                                                                           \
    (keeps_registers(0x6) && CPUID(7, 0, EBX, 5) && CPUID(1, 0, ECX, 12) /* FMA */ && CPUID(1, 0, ECX, 22) /* MOVBE */ && \
     CPUID(1, 0, ECX, 29) /* F16C */ && CPUID(7, 0, EBX, 3) /* BMI1 */ && CPUID(7, 0, EBX, 8) /* BMI2 */ &&            \
     CPUID(0x80000001, 0, ECX, 5) /* LZCNT */)
#define AVX_VNNI CPUID(7, 1, EAX, 4)
#define AVX512                                                                                                         \
    (AVX2 && keeps_registers(0xE0) && CPUID(7, 0, EBX, 16) /* F */ && CPUID(7, 0, EBX, 17) /* DQ */ &&                 \
     CPUID(7, 0, EBX, 28) /* CD */ && CPUID(7, 0, EBX, 30) /* BW */ && CPUID(7, 0, EBX, 31) /* VL */)
#define AVX512_VNNI CPUID(7, 0, ECX, 11)
#define AVX512_BF16 CPUID(7, 1, EAX, 5)
#ifndef AMX /* tests define it, with AMX's instructions in C */
#define AMX /* BF16, TILE and INT8 */                                                                                  \
    (keeps_registers(0x60000) && CPUID(7, 0, EDX, 22) && CPUID(7, 0, EDX, 24) && CPUID(7, 0, EDX, 25) && may_use_matrix_tiles())
#endif
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#include <sys/prctl.h>

#define DOTPROD (getauxval(AT_HWCAP) >> 20 & 1)
#define SVE_BYTES (getauxval(AT_HWCAP) >> 22 & 1 ? prctl(51 /* PR_SVE_GET_VL */) & 0xFFFF : 0)
#elif defined(__aarch64__) /* Apple's processors */
#define DOTPROD 1
#define SVE_BYTES 0
#endif

#endif
