// The parts of attention.cu.
#include "fetch.cuh"

// Columns of a block; eight make a block of a product.
#define COLUMNS (8 * BLOCKS)
// Sums of which a score is made.
#define CHAINS (STEPS >= 16 ? 4 : STEPS >= 8 ? 2 : 1)

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

FN void load_queries(u32 (&query)[STEPS][2], float& sum, const float* from, bool real) {
    sum = 0.f;
#pragma unroll
    for (int step = 0; step < STEPS; step++)
#pragma unroll
        for (int pair = 0; pair < 2; pair++) {
            const Two bits = real ? *(const Two*)(from + step * 16 + query_element(pair)) : Two{0, 0};
            const float x = as_float(bits.x), y = as_float(bits.y);
            query[step][pair] = pack(x, y);
            sum += rounded(x) + rounded(y);
        }
}

FN void load_columns(Columns& c, const Args& a, const Item& item, u32 head) {
    const int lane = thread_id() & 31, heads = QUERIES * KV_HEADS;
    const u64 cols = (u64)(heads + 2 * KV_HEADS) * HEAD_DIM;
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
        const int column = 8 * b + (lane >> 2), row = column / QUERIES;
        const bool real = row < item.rows;
        const float* from = a.qkv + (item.row + (real ? row : 0)) * cols + (head * QUERIES + column % QUERIES) * HEAD_DIM;
        float sum;
        load_queries(c.query[b], sum, from, real);
        sum += shuffle_xor(sum, 1);
        sum += shuffle_xor(sum, 2);
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const int own = (8 * b + 2 * (lane & 3) + j) / (int)QUERIES, position = item.position + own;
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
    // One step more than there are, where a load brings two.
    u32 operand[(STEPS + PER_LOAD - 1) / PER_LOAD][PER_LOAD][4];
#pragma unroll
    for (int i = 0; i < STEPS; i += PER_LOAD) load_keys(operand[i / PER_LOAD], stage, i);
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
        // Products that do not wait for each other.
        float sums[CHAINS][4];
#pragma unroll
        for (int i = 0; i < CHAINS * 4; i++) sums[i / 4][i % 4] = 0.f;
#pragma unroll
        for (int step = 0; step < STEPS; step++)
            multiply(sums[step % CHAINS], operand[step / PER_LOAD][step % PER_LOAD], c.query[b][step][0], c.query[b][step][1]);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            s[b][i] = sums[0][i];
#pragma unroll
            for (int chain = 1; chain < CHAINS; chain++) s[b][i] += sums[chain][i];
        }
    }
#pragma unroll
    for (int i = 0; i < STEPS; i += PER_LOAD) load_values(operand[i / PER_LOAD], stage + HALF_BYTES, i);
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
        u32 w[2];
        float factor[2], unit[2];
        weigh(c, b, s[b], a, stage, position, w, factor, unit);
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            float(&out)[4] = c.out[b][step];
#if QUANTISED
            // A tile's sums are made apart and then added to those before it: no long sum in the product's precision.
            float sum[4] = {0.f, 0.f, 0.f, 0.f};
            multiply(sum, operand[step / PER_LOAD][step % PER_LOAD], w[0], w[1]);
#pragma unroll
            for (int i = 0; i < 4; i++) out[i] = fmaf(out[i], factor[i & 1], sum[i] * unit[i & 1]);
#else
#pragma unroll
            for (int i = 0; i < 4; i++) out[i] *= factor[i & 1];
            multiply(out, operand[step / PER_LOAD][step % PER_LOAD], w[0], w[1]);
#endif
        }
    }
    sync_warp();
}

