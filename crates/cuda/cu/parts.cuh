// From parts of a sequence to results, in one order. COLUMNS is how many a part has room for.
#include "work.cuh"

// Parts that are summed apart from each other, part i with others of the same i mod SUMS: loads that do not wait for
// each other. A constant, so that a result does not depend on how many threads there are for it.
#define SUMS 4

// The factor of something whose largest score is `one` where the largest of all is `all`.
FN float factor_of(float one, float all) { return exp2_fast(one - (all == -INFINITE ? 0.f : all)); }

FN void write_out(const Args& a, const Item& item, u32 head, int column, int dim, float sum, float weight) {
    const u64 row = item.row + column / a.group, heads = a.group * a.kv_heads;
    const u64 at = (row * heads + head * a.group + column % a.group) * HEAD_DIM + dim;
    store(a.out, a.out_precision, at, sum / weight);
}

// The largest score of each column among an item's parts.
FN void largest_of_parts(const Args& a, u64 first, u64 step, int parts, int columns, float* largest) {
    const int lane = thread_id() & 31;
    for (int column = thread_id() >> 5; column < columns; column += WARPS) {
        float x = -INFINITE;
        for (int part = lane; part < parts; part += 32) x = fmaxf(x, load_fresh(a.weights + 2 * (first + part * step + column)));
        x = warp_max(x);
        if (lane == 0) largest[column] = x;
    }
}

// What the parts of one residue sum up to: four dimensions, and the weight.
FN void sum_parts(const Args& a, u64 first, u64 step, int from, int parts, float largest, int dim, float (&sum)[5]) {
#pragma unroll
    for (int i = 0; i < 5; i++) sum[i] = 0.f;
#pragma unroll 4
    for (int part = from; part < parts; part += SUMS) {
        const u64 p = first + part * step;
        const float factor = factor_of(load_fresh(a.weights + 2 * p), largest);
        const Four v = load_fresh4(a.sums + p * HEAD_DIM + dim);
        sum[0] = fmaf(factor, as_float(v.x), sum[0]), sum[1] = fmaf(factor, as_float(v.y), sum[1]);
        sum[2] = fmaf(factor, as_float(v.z), sum[2]), sum[3] = fmaf(factor, as_float(v.w), sum[3]);
        sum[4] = fmaf(factor, load_fresh(a.weights + 2 * p + 1), sum[4]);
    }
}

// The last block of an item's parts to come here merges them. Four lanes that follow each other take the residues of
// the same four dimensions.
FN void merge_parts(const Args& a, const Item& item, u32 head, int columns, float* largest) {
    SHARED u32 arrived;
    fence();
    sync_block();
    if (thread_id() == 0) arrived = atomic_add(a.counters + (u64)item.counter * a.kv_heads + head, 1);
    sync_block();
    if (arrived + 1 != (u32)item.parts) return;
    fence();
    if (thread_id() == 0) a.counters[(u64)item.counter * a.kv_heads + head] = 0;
    const u64 first = ((u64)item.first_part * a.kv_heads + head) * COLUMNS, step = a.kv_heads * COLUMNS;
    largest_of_parts(a, first, step, item.parts, columns, largest);
    sync_block();
    const int lane = thread_id() & 31, residue = lane % SUMS, all = columns * HEAD_DIM / 4;
    for (int from = (thread_id() >> 5) * (32 / SUMS); from < all; from += WARPS * (32 / SUMS)) {
        const int at = from + lane / SUMS, near = at < all ? at : all - 1;
        const int column = near / (HEAD_DIM / 4), dim = near % (HEAD_DIM / 4) * 4;
        float sum[5];
        sum_parts(a, first + column, step, residue, item.parts, largest[column], dim, sum);
#pragma unroll
        for (int i = 0; i < 5; i++) {
            sum[i] += shuffle_xor(sum[i], 1);
            sum[i] += shuffle_xor(sum[i], 2);
        }
        const float own = residue == 0 ? sum[0] : residue == 1 ? sum[1] : residue == 2 ? sum[2] : sum[3];
        if (at < all) write_out(a, item, head, column, dim + residue, own, sum[4]);
    }
}
