// out = x * wᵀ for shapes that the library does not take: a warp an output, the sum in one order whatever the rows.
#include "number.cuh"

struct Args {
    const void* x;
    const void* w;
    void* out;
    u32 rows;
    u32 outputs;
    u32 cols;
    int precision;
    int out_precision;
    int unused;
};

KERNEL(linear, Args, 128, 1) {
    const u32 output = block_id() * 4 + (thread_id() >> 5), lane = thread_id() & 31;
    const u64 row = block_id_y();
    if (output >= a.outputs) return;
    float sum = 0.f;
    for (u32 i = lane; i < a.cols; i += 32) {
        float x = load(a.x, a.precision, row * a.cols + i);
        sum = fmaf(x, load(a.w, a.precision, (u64)output * a.cols + i), sum);
    }
    sum = warp_sum(sum);
    if (lane == 0) store(a.out, a.out_precision, row * a.outputs + output, sum);
}
