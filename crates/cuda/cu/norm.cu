// x += delta, or x += norm(delta); then out = norm(x). A block a row; without delta x is only read.
#include "number.cuh"

struct Args {
    void* x;
    const void* delta;
    const float* before;
    const float* weight;
    void* out;
    float before_eps;
    float eps;
    u32 cols;
    int x_precision;
    int delta_precision;
    int out_precision;
};

FN float inverse_of(float squares, u32 cols, float eps) { return 1.f / sqrtf(squares / (float)cols + eps); }

KERNEL(norm, Args, 1024, 1) {
    let_next_start();
    after_previous();
    SHARED float scratch[32];
    const u64 at = (u64)block_id() * a.cols;
    float inverse = 1.f;
    if (a.before) {
        float squares = 0.f;
        for (u32 i = thread_id(); i < a.cols; i += block_threads()) {
            float d = load(a.delta, a.delta_precision, at + i);
            squares = fmaf(d, d, squares);
        }
        inverse = inverse_of(block_sum(squares, scratch), a.cols, a.before_eps);
    }
    float squares = 0.f;
    for (u32 i = thread_id(); i < a.cols; i += block_threads()) {
        float x = load(a.x, a.x_precision, at + i);
        if (a.delta) {
            float d = load(a.delta, a.delta_precision, at + i);
            x += a.before ? d * inverse * a.before[i] : d;
            store(a.x, a.x_precision, at + i, x);
        }
        squares = fmaf(x, x, squares);
    }
    inverse = inverse_of(block_sum(squares, scratch), a.cols, a.eps);
    for (u32 i = thread_id(); i < a.cols; i += block_threads()) {
        float x = load(a.x, a.x_precision, at + i);
        store(a.out, a.out_precision, at + i, x * inverse * a.weight[i]);
    }
}
