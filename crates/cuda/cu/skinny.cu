// out = x * wᵀ for few rows, where reading the weights is everything: a warp has one output, or a part of its sum, for
// all rows, and reads each weight once.
#include "number.cuh"

#define WARPS 4
// Loads of a lane that are under way together.
#define AHEAD 4

struct Args {
    const u16* x;
    const u16* w;
    float* out;
    u32 outputs;
    u32 cols;
    // Warps that share an output.
    u32 parts;
    int precision;
};

FN float low(u32 two, int precision) { return precision == BF16 ? as_float(two << 16) : from_f16((u16)two); }
FN float high(u32 two, int precision) { return precision == BF16 ? as_float(two & 0xffff0000u) : from_f16((u16)(two >> 16)); }

FN float add_two(float sum, u32 x, u32 w, int precision) {
    sum = fmaf(low(x, precision), low(w, precision), sum);
    return fmaf(high(x, precision), high(w, precision), sum);
}
FN float add_eight(float sum, const Four& x, const Four& w, int precision) {
    sum = add_two(sum, x.x, w.x, precision);
    sum = add_two(sum, x.y, w.y, precision);
    sum = add_two(sum, x.z, w.z, precision);
    return add_two(sum, x.w, w.w, precision);
}

KERNEL(skinny, Args, WARPS * 32, 8) {
    SHARED float partial[WARPS][ROWS];
    const u32 warp = thread_id() >> 5, lane = thread_id() & 31;
    const u32 output = block_id() * (WARPS / a.parts) + warp / a.parts;
    const u32 eights = a.cols / 8, each = (eights + a.parts - 1) / a.parts;
    const u32 from = warp % a.parts * each, to = from + each < eights ? from + each : eights;
    const Four* w = (const Four*)(a.w + (u64)(output < a.outputs ? output : 0) * a.cols);
    float sums[ROWS];
#pragma unroll
    for (int row = 0; row < ROWS; row++) sums[row] = 0.f;
    for (u32 i = from + lane; i < to; i += 32 * AHEAD) {
        Four v[AHEAD];
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            if (i + 32 * j < to) v[j] = load_streaming(w + i + 32 * j);
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            if (i + 32 * j >= to) break;
#pragma unroll
            for (int row = 0; row < ROWS; row++) {
                const Four x = *((const Four*)(a.x + (u64)row * a.cols) + i + 32 * j);
                sums[row] = add_eight(sums[row], x, v[j], a.precision);
            }
        }
    }
#pragma unroll
    for (int row = 0; row < ROWS; row++) {
        float sum = warp_sum(sums[row]);
        if (lane == 0) partial[warp][row] = sum;
    }
    sync_block();
    if (warp % a.parts != 0 || lane >= ROWS || output >= a.outputs) return;
    float sum = 0.f;
    for (u32 part = 0; part < a.parts; part++) sum += partial[warp + part][lane];
    a.out[(u64)lane * a.outputs + output] = sum;
}
