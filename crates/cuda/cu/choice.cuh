// What choosing a token is made of: the same numbers, bit by bit, as backend/src/choice.
#include "number.cuh"

struct Peak {
    float logit;
    u32 token;
};
#define NO_TOKEN 0xffffffffu
#define NO_PEAK Peak{-INFINITE, NO_TOKEN}

// NaN loses every comparison.
FN Peak higher(Peak a, Peak b) {
    return b.logit > a.logit || (b.logit == a.logit && b.token < a.token) ? b : a;
}
// In every thread; `scratch` has room for one a warp.
FN Peak block_peak(Peak p, Peak* scratch) {
    for (int mask = 16; mask > 0; mask >>= 1) p = higher(p, {shuffle_xor(p.logit, mask), shuffle_xor(p.token, mask)});
    sync_block();
    if ((thread_id() & 31) == 0) scratch[thread_id() >> 5] = p;
    sync_block();
    Peak best = NO_PEAK;
    for (int i = 0; i < block_threads() >> 5; i++) best = higher(best, scratch[i]);
    return best;
}

// e to the power of x, for x at most 0.
FN float exp_of(float x) {
    const float round = 12582912.f;
    float shifted = x * 1.44269504088896340736f + round;
    float whole = shifted - round;
    float r = x - whole * 0.6933594f + whole * 2.1219444e-4f;
    float p = 1.9875691e-4f;
    p = p * r + 1.3981999e-3f;
    p = p * r + 8.333452e-3f;
    p = p * r + 4.1665796e-2f;
    p = p * r + 1.6666665e-1f;
    p = p * r + 0.5f;
    float mantissa = p * r * r + r + 1.f;
    float power = as_float((as_bits(shifted) << 23) + as_bits(1.f));
    return x > -87.f ? mantissa * power : 0.f;
}
