// x += delta, or x += norm(delta); then out = norm(x). A block a row; without delta x is only read. A thread has some
// fours of columns, which it keeps where there are no more than KEPT.
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
    int out_precision;
    // Of a part of `delta`.
    u32 rows;
};

FN float inverse_of(float squares, u32 cols, float eps) { return 1.f / sqrtf(squares / (float)cols + eps); }
FN float add_squares(float squares, const float (&x)[4]) {
    for (int i = 0; i < 4; i++) squares = fmaf(x[i], x[i], squares);
    return squares;
}

// Four columns of a row.
struct Columns {
    u32 at, count;
    float x[4], delta[4], before[4], weight[4];
};

FN Columns columns_at(const Args& a, u32 i) {
    Columns c;
    c.at = 4 * (thread_id() + i * block_threads());
    c.count = c.at < a.cols ? a.cols - c.at < 4 ? a.cols - c.at : 4 : 0;
    return c;
}
// What no kernel writes.
FN void load_weights(Columns& c, const Args& a) {
    load_four(c.weight, a.weight, F32, c.at, c.count);
    if (a.before) load_four(c.before, a.before, F32, c.at, c.count);
}
FN void load_columns(Columns& c, const Args& a, u64 row) {
    load_four(c.x, a.x, a.x_precision, row + c.at, c.count);
    if (a.delta) load_parts(c.delta, a.delta, row + c.at, c.count, (u64)a.rows * a.cols);
}
FN void add_delta(Columns& c, const Args& a, u64 row, float inverse) {
    if (!a.delta) return;
    for (int i = 0; i < 4; i++) c.x[i] += a.before ? c.delta[i] * inverse * c.before[i] : c.delta[i];
    store_four(a.x, a.x_precision, row + c.at, c.x, c.count);
}
FN void write_norm(const Columns& c, const Args& a, u64 row, float inverse) {
    float out[4];
    for (int i = 0; i < 4; i++) out[i] = c.x[i] * inverse * c.weight[i];
    store_four(a.out, a.out_precision, row + c.at, out, c.count);
}

KERNEL(norm, Args, 1024 / MIN_BLOCKS, MIN_BLOCKS) {
    SHARED float scratch[32];
    let_next_start();
    Columns kept[KEPT];
#pragma unroll
    for (int i = 0; i < KEPT; i++) {
        kept[i] = columns_at(a, i);
        load_weights(kept[i], a);
    }
    after_previous();
    const u64 row = (u64)block_id() * a.cols;
    const u32 all = (a.cols + 4 * block_threads() - 1) / (4 * block_threads());
#pragma unroll
    for (int i = 0; i < KEPT; i++) load_columns(kept[i], a, row);
    float inverse = 1.f, squares = 0.f;
    if (a.before) {
#pragma unroll
        for (int i = 0; i < KEPT; i++) squares = add_squares(squares, kept[i].delta);
        for (u32 i = KEPT; i < all; i++) {
            Columns c = columns_at(a, i);
            load_columns(c, a, row);
            squares = add_squares(squares, c.delta);
        }
        inverse = inverse_of(block_sum(squares, scratch), a.cols, a.before_eps);
        squares = 0.f;
    }
#pragma unroll
    for (int i = 0; i < KEPT; i++) {
        add_delta(kept[i], a, row, inverse);
        squares = add_squares(squares, kept[i].x);
    }
    for (u32 i = KEPT; i < all; i++) {
        Columns c = columns_at(a, i);
        load_weights(c, a);
        load_columns(c, a, row);
        add_delta(c, a, row, inverse);
        squares = add_squares(squares, c.x);
    }
    inverse = inverse_of(block_sum(squares, scratch), a.cols, a.eps);
#pragma unroll
    for (int i = 0; i < KEPT; i++) write_norm(kept[i], a, row, inverse);
    for (u32 i = KEPT; i < all; i++) {
        Columns c = columns_at(a, i);
        load_weights(c, a);
        load_four(c.x, a.x, a.x_precision, row + c.at, c.count);
        write_norm(c, a, row, inverse);
    }
}
