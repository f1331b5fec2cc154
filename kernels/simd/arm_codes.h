/* Codes of 8 bits on ARM. */

#ifndef RELATTN_ARM_CODES_H
#define RELATTN_ARM_CODES_H

#include <arm_neon.h>

#include "types.h"

#ifndef REAL64
#define HAS_CONVERT_CODES
INLINE void convert_codes(uint8_t *to, const real *x, real inverse, int offset) {
    int16x4_t halves[4];
    for (int i = 0; i < 4; i++) halves[i] = vmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + 4 * i), inverse)));
    const int8x16_t bytes = vcombine_s8(vmovn_s16(vcombine_s16(halves[0], halves[1])),
                                        vmovn_s16(vcombine_s16(halves[2], halves[3])));
    vst1q_u8(to, veorq_u8(vreinterpretq_u8_s8(bytes), vdupq_n_u8((uint8_t)offset)));
}
#endif

#endif
