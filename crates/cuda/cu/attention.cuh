// The parts of attention.cu.
#include "tile.cuh"

#define STEPS (HEAD_DIM / 16)
// Columns of a block; eight make a block of a product.
#define COLUMNS (8 * BLOCKS)

// As in plan.rs.
struct Item {
    // Rows of the batch, and the position of the first.
    int row, rows, position;
    // Where page 0 of the sequence would be in `pages`.
    int table;
    // Tiles of this part.
    int tile0, tile1;
    // The first part's place among all, this part's number, how many.
    int first_part, part, parts;
    int counter;
    int unused[2];
};

struct Args {
    const float* qkv;
    void* out;
    const u32* pages;
    // Where the items of each share start, and where the last one's end; then, at a multiple of four, the items.
    const int* work;
    // Of every part, head and column: sums, then (largest score, weight).
    float* sums;
    float* weights;
    u32* counters;
    Place place;
    u32 kv_heads;
    u32 group;
    // Positions that a row sees; 0 for all.
    u32 window;
    int out_precision;
    // Scale of the scores, times log2(e).
    float scale;
    u32 shares;
};

FN const Item* items_of(const Args& a) { return (const Item*)(a.work + (a.shares + 4) / 4 * 4); }

// What a lane holds of the columns. Column 8 b + 2 (lane % 4) + j has index [b][j].
struct Columns {
    // [block][step][pair]: of column 8 b + lane / 4.
    u32 query[BLOCKS][STEPS][2];
    float out[BLOCKS][STEPS][4];
    float largest[BLOCKS][2];
    float weight[BLOCKS][2];
    // Positions seen: [low, high).
    int low[BLOCKS][2], high[BLOCKS][2];
#if KV == KV_INT8
    // Sum of the query; sum of weights times zero points.
    float query_sum[BLOCKS][2];
    float offset[BLOCKS][2];
#endif
};

FN int first_seen(const Args& a, int position) {
    const int first = position + 1 - (int)a.window;
    return a.window == 0 || first < 0 ? 0 : first;
}

FN void load_queries(u32 (&query)[STEPS][2], float& sum, const float* from, bool real) {
    sum = 0.f;
#pragma unroll
    for (int step = 0; step < STEPS; step++)
#pragma unroll
        for (int pair = 0; pair < 2; pair++) {
            const float* p = from + step * 16 + query_element(pair);
            const float x = real ? p[0] : 0.f, y = real ? p[1] : 0.f;
            query[step][pair] = pack(x, y);
            sum += rounded(x) + rounded(y);
        }
}

FN void load_columns(Columns& c, const Args& a, const Item& item, u32 head) {
    const int lane = thread_id() & 31, heads = a.group * a.kv_heads;
    const u64 cols = (u64)(heads + 2 * a.kv_heads) * HEAD_DIM;
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
        const int column = 8 * b + (lane >> 2), row = column / a.group;
        const bool real = row < item.rows;
        const float* from = a.qkv + (item.row + (real ? row : 0)) * cols + (head * a.group + column % a.group) * HEAD_DIM;
        float sum;
        load_queries(c.query[b], sum, from, real);
        sum += shuffle_xor(sum, 1);
        sum += shuffle_xor(sum, 2);
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const int own = (8 * b + 2 * (lane & 3) + j) / (int)a.group, position = item.position + own;
            c.low[b][j] = first_seen(a, position);
            c.high[b][j] = own < item.rows ? position + 1 : 0;
            c.largest[b][j] = -INFINITE;
            c.weight[b][j] = 0.f;
#if KV == KV_INT8
            c.query_sum[b][j] = shuffle(sum, 8 * (lane & 3) + 4 * j);
            c.offset[b][j] = 0.f;
#endif
        }
#pragma unroll
        for (int step = 0; step < STEPS; step++)
#pragma unroll
            for (int i = 0; i < 4; i++) c.out[b][step][i] = 0.f;
    }
}

// A warp's walk over its tiles: first, first + WARPS, ...
struct Fetch {
    u32 head;
    int first, count;
    // Positions that the item sees: [low, high).
    int low, high;
    // Pages of 32 tiles, one a lane: those in use, and the next.
    u32 pages, next_pages;
};

FN u32 page_of_tile(const Args& a, const Item& item, const Fetch& f, int i) {
    if (SMALL_PAGES || i >= f.count) return 0;
    return a.pages[item.table + (int)((f.first + WARPS * i) * TILE / a.place.page_size)];
}

FN Fetch start_fetch(const Args& a, const Item& item, u32 head, int warp) {
    Fetch f;
    f.head = head;
    f.first = item.tile0 + (warp - item.tile0 % WARPS + WARPS) % WARPS;
    f.count = f.first < item.tile1 ? (item.tile1 - f.first + WARPS - 1) / WARPS : 0;
    f.low = first_seen(a, item.position);
    f.high = item.position + item.rows;
    f.pages = page_of_tile(a, item, f, thread_id() & 31);
    f.next_pages = page_of_tile(a, item, f, 32 + (thread_id() & 31));
    return f;
}

// Starts copying the warp's i-th tile, if there is one.
FN void fetch_next(Fetch& f, const Args& a, const Item& item, char* ring, int i) {
    if (i > 0 && i % 32 == 0) {
        f.pages = f.next_pages;
        f.next_pages = page_of_tile(a, item, f, i + 32 + (thread_id() & 31));
    }
    const u32 page = shuffle(f.pages, i % 32);
    if (i < f.count) {
        const int at = (f.first + WARPS * i) * TILE, size = a.place.page_size;
        auto page_of = [&](int row) { return SMALL_PAGES ? a.pages[item.table + (at + row) / size] : page; };
        auto slot_of = [&](int row) { return size == TILE ? (u32)row : (u32)((at + row) % size); };
        if (SMALL_PAGES) {
            auto page_or_first = [&](int row) { return at + row >= f.low && at + row < f.high ? page_of(row) : 0u; };
            fetch_tile(ring + (i % STAGES) * STAGE_BYTES, a.place, f.head, f.low - at, f.high - at, page_or_first, slot_of);
        } else {
            fetch_tile(ring + (i % STAGES) * STAGE_BYTES, a.place, f.head, f.low - at, f.high - at, page_of, slot_of);
        }
    }
    copies_commit();
}

// Parameters of the lane's two positions.
struct Parameters {
    float scale[2], zero[2];
};

#if QUANTISED
FN Parameters load_parameters(const char* at) {
    Parameters p;
    const int g = (thread_id() & 31) >> 2;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const u32 bits = *(const u32*)(at + (g + 8 * i) * 4);
#if KV == KV_FP8
        p.scale[i] = as_float(bits), p.zero[i] = 0.f;
#else
        p.scale[i] = from_f16((u16)bits);
        p.zero[i] = fmaf(128.f, p.scale[i], from_f16((u16)(bits >> 16)));
#endif
    }
    return p;
}
#endif

FN float column_max(float x) {
#pragma unroll
    for (int mask = 4; mask <= 16; mask <<= 1) x = fmaxf(x, shuffle_xor(x, mask));
    return x;
}
FN float column_sum(float x) {
#pragma unroll
    for (int mask = 4; mask <= 16; mask <<= 1) x += shuffle_xor(x, mask);
    return x;
}

// Scores of one column's two positions of this lane become weights; returns the factor of all that was before.
FN float soften(Columns& c, int b, int j, float& x, float& y) {
    const float old = c.largest[b][j], now = fmaxf(old, column_max(fmaxf(x, y)));
    const float base = now == -INFINITE ? 0.f : now;
    const float factor = exp2_fast(old - base);
    c.largest[b][j] = now;
    x = exp2_fast(x - base), y = exp2_fast(y - base);
    c.weight[b][j] = fmaf(c.weight[b][j], factor, x + y);
    return factor;
}

// The scores of block b become weights, as an operand; `unit[j]` is what one of column j stands for.
FN void weigh(Columns& c, int b, float (&s)[4], const Args& a, const char* stage, int position, u32 (&w)[2],
              float (&factor)[2], float (&unit)[2]) {
    const int g = (thread_id() & 31) >> 2;
#if QUANTISED
    const Parameters k = load_parameters(stage + 2 * HALF_BYTES), v = load_parameters(stage + 2 * HALF_BYTES + 64);
#endif
#pragma unroll
    for (int j = 0; j < 2; j++) {
        bool seen[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float& x = s[2 * i + j];
#if KV == KV_FP8
            x *= k.scale[i];
#elif KV == KV_INT8
            x = fmaf(x, k.scale[i], k.zero[i] * c.query_sum[b][j]);
#endif
            const int p = position + g + 8 * i;
            seen[i] = p >= c.low[b][j] && p < c.high[b][j];
            x = seen[i] ? x * a.scale : -INFINITE;
        }
        factor[j] = soften(c, b, j, s[j], s[2 + j]);
#if QUANTISED
        // Weights and values' scales in one: as a share of the largest scale that the column sees, which fits an f16.
        unit[j] = column_max(fmaxf(seen[0] ? v.scale[0] : 0.f, seen[1] ? v.scale[1] : 0.f));
        const float inverse = unit[j] > 0.f ? 1.f / unit[j] : 0.f;
#if KV == KV_INT8
        const float offset = fmaf(s[j], seen[0] ? v.zero[0] : 0.f, s[2 + j] * (seen[1] ? v.zero[1] : 0.f));
        c.offset[b][j] = fmaf(c.offset[b][j], factor[j], offset);
#endif
#pragma unroll
        for (int i = 0; i < 2; i++) s[2 * i + j] *= v.scale[i] * inverse;
#endif
    }
    w[0] = transpose_matrix(pack(s[0], s[1]));
    w[1] = transpose_matrix(pack(s[2], s[3]));
}

// Folds a tile, whose first position is given, into the columns.
FN void fold_tile(Columns& c, const Args& a, const char* stage, int position) {
    float s[BLOCKS][4];
    u32 operand[STEPS][4];
    load_keys(operand, stage);
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
#pragma unroll
        for (int i = 0; i < 4; i++) s[b][i] = 0.f;
#pragma unroll
        for (int step = 0; step < STEPS; step++) multiply(s[b], operand[step], c.query[b][step][0], c.query[b][step][1]);
    }
    load_values(operand, stage + HALF_BYTES);
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
        u32 w[2];
        float factor[2], unit[2];
        weigh(c, b, s[b], a, stage, position, w, factor, unit);
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            float(&out)[4] = c.out[b][step];
#if QUANTISED
            float sum[4] = {0.f, 0.f, 0.f, 0.f};
            multiply(sum, operand[step], w[0], w[1]);
#pragma unroll
            for (int i = 0; i < 4; i++) out[i] = fmaf(out[i], factor[i & 1], sum[i] * unit[i & 1]);
#else
#pragma unroll
            for (int i = 0; i < 4; i++) out[i] *= factor[i & 1];
            multiply(out, operand[step], w[0], w[1]);
#endif
        }
    }
    sync_warp();
}

