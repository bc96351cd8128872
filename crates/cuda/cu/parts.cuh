// From parts of a sequence to results, in one order. COLUMNS is how many a part has room for.
#include "work.cuh"

// Parts that one block merges; more are merged in two steps, groups of so many and then those. A
// constant, so that a result does not depend on how many threads there are for it.
#define GROUP 16
// Places that a thread merges at a time, and how many parts of each: loads that do not wait for each other. What whole
// steps are fastest with; with bytes, fewer than GROUP would let more blocks on a processor than spread evenly.
#define PLACES (HEAD_DIM > 128 ? 2 : 1)
#define AT_ONCE (HEAD_DIM > 128 ? 4 : KV == KV_FP8 || KV == KV_INT8 ? GROUP : 8)

// The factor of something whose largest score is `one` where the largest of all is `all`.
FN float factor_of(float one, float all) { return exp2_fast(one - (all == -INFINITE ? 0.f : all)); }

// Four dimensions.
FN void write_out(const Args& a, const Item& item, u32 head, int column, int dim, const float (&sum)[4], float weight) {
    const u64 row = item.row + column / QUERIES, heads = QUERIES * KV_HEADS;
    const u64 at = (row * heads + head * QUERIES + column % QUERIES) * HEAD_DIM + dim;
    const float out[4] = {sum[0] / weight, sum[1] / weight, sum[2] / weight, sum[3] / weight};
    store_four(a.out, a.out_precision, at, out, 4);
}

// Sums of four dimensions and their weight, relative to the largest score.
struct Sum {
    float largest, weight, x[4];
};

// Parts of one place. Those beyond the last change no bit.
struct Parts {
    Four x[AT_ONCE];
    float largest[AT_ONCE], weight[AT_ONCE];
};

// `count` from place `first`, `step` apart.
FN void load_parts(Parts& p, const Args& a, u64 first, u64 step, int count, int dim) {
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
        const u64 at = first + i * step;
        p.x[i] = i < count ? load_fresh4(a.sums + at * HEAD_DIM + dim) : Four{0, 0, 0, 0};
        p.largest[i] = i < count ? load_fresh(a.weights + 2 * at) : -INFINITE;
        p.weight[i] = i < count ? load_fresh(a.weights + 2 * at + 1) : 0.f;
    }
}

FN void add_parts(Sum& s, const Parts& p) {
    float all = s.largest;
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) all = fmaxf(all, p.largest[i]);
    const float before = factor_of(s.largest, all);
    s.largest = all, s.weight *= before;
#pragma unroll
    for (int i = 0; i < 4; i++) s.x[i] *= before;
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
        const float factor = factor_of(p.largest[i], all);
        s.weight = fmaf(factor, p.weight[i], s.weight);
        s.x[0] = fmaf(factor, as_float(p.x[i].x), s.x[0]), s.x[1] = fmaf(factor, as_float(p.x[i].y), s.x[1]);
        s.x[2] = fmaf(factor, as_float(p.x[i].z), s.x[2]), s.x[3] = fmaf(factor, as_float(p.x[i].w), s.x[3]);
    }
}

// Where the columns of a part lie in `sums`.
FN u64 place_of_part(const Args& a, u32 head, int part) { return ((u64)part * KV_HEADS + head) * COLUMNS; }

// Merges `count` parts from number `first` into part `into`, or into the results if that is below 0.
FN void merge_range(const Args& a, const Item& item, u32 head, int first, int count, int into) {
    const int all = item.rows * QUERIES * HEAD_DIM / 4, threads = WARPS * 32;
    for (int from = thread_id(); from < all; from += PLACES * threads) {
        Sum sum[PLACES];
#pragma unroll
        for (int i = 0; i < PLACES; i++) sum[i] = {-INFINITE, 0.f, {0.f, 0.f, 0.f, 0.f}};
        for (int part = 0; part < count; part += AT_ONCE) {
            Parts parts[PLACES];
#pragma unroll
            for (int i = 0; i < PLACES; i++) {
                const int at = from + i * threads, column = at / (HEAD_DIM / 4), dim = at % (HEAD_DIM / 4) * 4;
                const u64 place = place_of_part(a, head, first + part) + column;
                load_parts(parts[i], a, place, (u64)KV_HEADS * COLUMNS, at < all ? count - part : 0, dim);
            }
#pragma unroll
            for (int i = 0; i < PLACES; i++) add_parts(sum[i], parts[i]);
        }
#pragma unroll
        for (int i = 0; i < PLACES; i++) {
            const int at = from + i * threads, column = at / (HEAD_DIM / 4), dim = at % (HEAD_DIM / 4) * 4;
            if (at >= all) continue;
            if (into < 0) {
                write_out(a, item, head, column, dim, sum[i].x, sum[i].weight);
                continue;
            }
            const u64 to = place_of_part(a, head, into) + column;
            const float(&x)[4] = sum[i].x;
            *(Four*)(a.sums + to * HEAD_DIM + dim) = {as_bits(x[0]), as_bits(x[1]), as_bits(x[2]), as_bits(x[3])};
            if (dim == 0) a.weights[2 * to] = sum[i].largest, a.weights[2 * to + 1] = sum[i].weight;
        }
    }
}

// Whether this block is the last of `count` to come here; what the others wrote before is then seen.
FN bool is_last(const Args& a, u32 head, int counter, int count) {
    SHARED u32 arrived;
    u32* at = a.counters + (u64)counter * KV_HEADS + head;
    sync_block();
    if (thread_id() == 0) {
        arrived = atomic_add_ordered(at, 1);
        if (arrived + 1 == (u32)count) *at = 0;
    }
    sync_block();
    return arrived + 1 == (u32)count;
}

// The blocks that finish last merge: of a group its parts, then of all the groups. Where one group is all, that is one step.
// LEAN code merges in one place: see kernels.rs.
#if LEAN
FN void merge_parts(const Args& a, const Item& item, u32 head) {
    const int groups = (item.parts + GROUP - 1) / GROUP, merged = item.first_part + item.parts;
    int first = item.first_part, count = item.parts, into = -1, counter = item.counter;
    if (groups > 1) {
        const int group = item.part / GROUP, before = group * GROUP;
        count = count - before < GROUP ? count - before : GROUP;
        first += before, into = merged + group, counter += group;
    }
    while (is_last(a, head, counter, count)) {
        merge_range(a, item, head, first, count, into);
        if (into < 0) return;
        first = merged, count = groups, into = -1, counter = item.counter + groups;
    }
}
#else
FN void merge_parts(const Args& a, const Item& item, u32 head) {
    const int groups = (item.parts + GROUP - 1) / GROUP, merged = item.first_part + item.parts;
    if (groups == 1) {
        if (is_last(a, head, item.counter, item.parts)) merge_range(a, item, head, item.first_part, item.parts, -1);
        return;
    }
    const int group = item.part / GROUP, left = item.parts - group * GROUP, count = left < GROUP ? left : GROUP;
    if (!is_last(a, head, item.counter + group, count)) return;
    merge_range(a, item, head, item.first_part + group * GROUP, count, merged + group);
    if (is_last(a, head, item.counter + groups, groups)) merge_range(a, item, head, merged, groups, -1);
}
#endif
