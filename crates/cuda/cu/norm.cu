// x += delta, or x += norm(delta); then out = norm(x). A block a row; without delta x is only read. A thread has some
// fours of columns, which it keeps where there are no more than KEPT.
#include "number.cuh"

#define KEPT 2

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
FN u32 count_at(const Args& a, u32 col) { return a.cols - col < 4 ? a.cols - col : 4; }
FN float add_squares(float squares, const float (&x)[4]) {
    for (int i = 0; i < 4; i++) squares = fmaf(x[i], x[i], squares);
    return squares;
}

// The new x of four columns.
FN void sum_four(float (&x)[4], const Args& a, u64 row, u32 col, float inverse) {
    const u32 count = count_at(a, col);
    load_four(x, a.x, a.x_precision, row + col, count);
    if (!a.delta) return;
    float delta[4], weight[4];
    load_four(delta, a.delta, a.delta_precision, row + col, count);
    if (a.before) load_four(weight, a.before, F32, col, count);
    for (int i = 0; i < 4; i++) x[i] += a.before ? delta[i] * inverse * weight[i] : delta[i];
    store_four(a.x, a.x_precision, row + col, x, count);
}
FN void norm_four(const float (&x)[4], const Args& a, u64 row, u32 col, float inverse) {
    const u32 count = count_at(a, col);
    float weight[4], out[4];
    load_four(weight, a.weight, F32, col, count);
    for (int i = 0; i < 4; i++) out[i] = x[i] * inverse * weight[i];
    store_four(a.out, a.out_precision, row + col, out, count);
}

KERNEL(norm, Args, 1024, 1) {
    SHARED float scratch[32];
    let_next_start();
    after_previous();
    const u64 row = (u64)block_id() * a.cols;
    const u32 first = 4 * thread_id(), step = 4 * block_threads();
    float inverse = 1.f;
    if (a.before) {
        float squares = 0.f, delta[4];
        for (u32 col = first; col < a.cols; col += step) {
            load_four(delta, a.delta, a.delta_precision, row + col, count_at(a, col));
            squares = add_squares(squares, delta);
        }
        inverse = inverse_of(block_sum(squares, scratch), a.cols, a.before_eps);
    }
    float kept[KEPT][4], squares = 0.f;
#pragma unroll
    for (int i = 0; i < KEPT; i++) {
        const u32 col = first + i * step;
        if (col >= a.cols) break;
        sum_four(kept[i], a, row, col, inverse);
        squares = add_squares(squares, kept[i]);
    }
    for (u32 col = first + KEPT * step; col < a.cols; col += step) {
        float x[4];
        sum_four(x, a, row, col, inverse);
        squares = add_squares(squares, x);
    }
    inverse = inverse_of(block_sum(squares, scratch), a.cols, a.eps);
#pragma unroll
    for (int i = 0; i < KEPT; i++) {
        const u32 col = first + i * step;
        if (col < a.cols) norm_four(kept[i], a, row, col, inverse);
    }
    for (u32 col = first + KEPT * step; col < a.cols; col += step) {
        float x[4];
        load_four(x, a.x, a.x_precision, row + col, count_at(a, col));
        norm_four(x, a, row, col, inverse);
    }
}
