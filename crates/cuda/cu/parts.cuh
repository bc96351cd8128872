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

// A part's sums of four dimensions and their weight, added to others; all are relative to the largest score so far.
struct Sum {
    float largest, weight, x[4];
};
FN void add(Sum& s, float largest, float weight, const float (&x)[4]) {
    const float now = fmaxf(s.largest, largest);
    const float factor = factor_of(s.largest, now), own = factor_of(largest, now);
    s.largest = now;
    s.weight = fmaf(s.weight, factor, weight * own);
#pragma unroll
    for (int i = 0; i < 4; i++) s.x[i] = fmaf(s.x[i], factor, x[i] * own);
}

// The sum of the parts of one residue.
FN Sum sum_parts(const Args& a, u64 first, u64 step, int from, int parts, int dim) {
    Sum sum = {-INFINITE, 0.f, {0.f, 0.f, 0.f, 0.f}};
#pragma unroll 4
    for (int part = from; part < parts; part += SUMS) {
        const u64 p = first + part * step;
        const Four v = load_fresh4(a.sums + p * HEAD_DIM + dim);
        const float x[4] = {as_float(v.x), as_float(v.y), as_float(v.z), as_float(v.w)};
        add(sum, load_fresh(a.weights + 2 * p), load_fresh(a.weights + 2 * p + 1), x);
    }
    return sum;
}

// Adds the sum of the lane whose number differs in one bit, on both sides in the same order.
FN void add_lane(Sum& s, int bit) {
    Sum other = {shuffle_xor(s.largest, bit), shuffle_xor(s.weight, bit), {}};
#pragma unroll
    for (int i = 0; i < 4; i++) other.x[i] = shuffle_xor(s.x[i], bit);
    const bool first = (thread_id() & bit) == 0;
    Sum low = first ? s : other;
    const Sum high = first ? other : s;
    add(low, high.largest, high.weight, high.x);
    s = low;
}

// The last block of an item's parts to come here merges them. Four lanes that follow each other take the residues of
// the same four dimensions.
FN void merge_parts(const Args& a, const Item& item, u32 head, int columns) {
    SHARED u32 arrived;
    u32* counter = a.counters + (u64)item.counter * a.kv_heads + head;
    sync_block();
    // What all threads of this block wrote comes before, what others wrote before they came is seen after.
    if (thread_id() == 0) arrived = atomic_add_ordered(counter, 1);
    sync_block();
    if (arrived + 1 != (u32)item.parts) return;
    if (thread_id() == 0) *counter = 0;
    const u64 first = ((u64)item.first_part * a.kv_heads + head) * COLUMNS, step = a.kv_heads * COLUMNS;
    const int lane = thread_id() & 31, residue = lane % SUMS, all = columns * HEAD_DIM / 4;
    for (int from = (thread_id() >> 5) * (32 / SUMS); from < all; from += WARPS * (32 / SUMS)) {
        const int at = from + lane / SUMS, near = at < all ? at : all - 1;
        const int column = near / (HEAD_DIM / 4), dim = near % (HEAD_DIM / 4) * 4;
        Sum sum = sum_parts(a, first + column, step, residue, item.parts, dim);
        add_lane(sum, 1);
        add_lane(sum, 2);
        const float own = residue == 0 ? sum.x[0] : residue == 1 ? sum.x[1] : residue == 2 ? sum.x[2] : sum.x[3];
        if (at < all) write_out(a, item, head, column, dim + residue, own, sum.weight);
    }
}
