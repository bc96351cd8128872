// x += delta, or x += norm(delta); then out = norm(x). A block a row; without delta x is only read. A thread has some
// fours of columns, which it keeps where there are no more than KEPT.
//
// The squares of x + f e, where f is what the norm of delta needs its squares for and e is delta times its weights, add up
// to x x + 2 f x e + f f e e: all sums are made at once, and the block meets once.
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
    // Of a part of `delta`.
    u32 rows;
};

FN float inverse_of(float squares, float share, float eps) { return inverse_root_fast(fmaf(squares, share, eps)); }

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
    if (BEFORE) load_four(c.before, a.before, F32, c.at, c.count);
}
// With delta in x, where that takes no sums.
FN void load_columns(Columns& c, const Args& a, u64 row) {
    load_four(c.x, a.x, X_PRECISION, row + c.at, c.count);
    if (!a.delta) return;
    load_parts(c.delta, a.delta, row + c.at, c.count, (u64)a.rows * a.cols);
    for (int i = 0; i < 4 && !BEFORE; i++) c.x[i] += c.delta[i];
}

// Squares of x and of delta; x times e, squares of e.
FN void add_sums(float (&sums)[4], const Columns& c, const Args& a) {
    for (int i = 0; i < 4; i++) sums[0] = fmaf(c.x[i], c.x[i], sums[0]);
    if (!BEFORE) return;
    for (int i = 0; i < 4; i++) {
        const float e = c.delta[i] * c.before[i];
        sums[1] = fmaf(c.delta[i], c.delta[i], sums[1]);
        sums[2] = fmaf(c.x[i], e, sums[2]);
        sums[3] = fmaf(e, e, sums[3]);
    }
}

// What delta and x are multiplied by.
struct Factors {
    float delta, x;
};
FN Factors factors_of(float (&sums)[4], const Args& a, float share, float (&scratch)[4][32]) {
    if (!BEFORE) {
        float squares[1] = {sums[0]};
        block_sums(squares, (float(&)[1][32])scratch);
        return {0.f, inverse_of(squares[0], share, a.eps)};
    }
    block_sums(sums, scratch);
    const float f = inverse_of(sums[1], share, a.before_eps);
    const float squares = fmaf(f, fmaf(f, sums[3], 2.f * sums[2]), sums[0]);
    return {f, inverse_of(fmaxf(squares, 0.f), share, a.eps)};
}

FN void write_columns(Columns& c, const Args& a, u64 row, const Factors& f) {
    for (int i = 0; i < 4 && BEFORE; i++) c.x[i] += c.delta[i] * f.delta * c.before[i];
    if (a.delta) store_four(a.x, X_PRECISION, row + c.at, c.x, c.count);
    float out[4];
    for (int i = 0; i < 4; i++) out[i] = c.x[i] * f.x * c.weight[i];
    store_four(a.out, SHORT, row + c.at, out, c.count);
}

KERNEL(norm, Args, 1024 / MIN_BLOCKS, MIN_BLOCKS) {
    SHARED float scratch[4][32];
    let_next_start();
    Columns kept[KEPT];
#pragma unroll
    for (int i = 0; i < KEPT; i++) {
        kept[i] = columns_at(a, i);
        load_weights(kept[i], a);
    }
    const float share = 1.f / (float)a.cols;
    after_previous();
    const u64 row = (u64)block_id() * a.cols;
    const u32 all = (a.cols + 4 * block_threads() - 1) / (4 * block_threads());
    float sums[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
    for (int i = 0; i < KEPT; i++) load_columns(kept[i], a, row);
#pragma unroll
    for (int i = 0; i < KEPT; i++) add_sums(sums, kept[i], a);
    for (u32 i = KEPT; i < all; i++) {
        Columns c = columns_at(a, i);
        load_weights(c, a), load_columns(c, a, row);
        add_sums(sums, c, a);
    }
    const Factors factors = factors_of(sums, a, share, scratch);
#pragma unroll
    for (int i = 0; i < KEPT; i++) write_columns(kept[i], a, row, factors);
    for (u32 i = KEPT; i < all; i++) {
        Columns c = columns_at(a, i);
        load_weights(c, a), load_columns(c, a, row);
        write_columns(c, a, row, factors);
    }
}
