// The parts of attention_chunk.cu; how spans are folded is in attention_warp.cuh and attention_group.cuh.
#include "span.cuh"

#define COLUMNS (WARPS * STRIPS * 16)
#include "parts.cuh"

// Sixteen lines of a warp; a lane has two, lane / 4 and that plus 8, index [line].
struct Strip {
    // [step of 16 dimensions][half][of the product].
    float out[STEPS][2][4];
    float largest[2], weight[2];
#if GROUPED
    u32 query[STEPS][4];
#endif
    // Positions seen, [low, high): of the lane's lines, and those that all of the strip see, or any; if GROUPED
    // of those that fold together.
    int low[2], high[2], all_low, all_high, any_low, any_high;
#if KV == KV_INT8
    // Sum of the query; sum of weights times zero points.
    float query_sum[2], offset[2];
#endif
};

// The row of the item that a line belongs to; lines beyond the last are like the last.
FN int row_of_line(const Args& a, const Item& item, int line) {
    const int row = line / (int)a.group;
    return row < item.rows ? row : item.rows - 1;
}

// One more than the last position that a row sees of this part.
FN int end_of_seen(const Item& item, int row) {
    const int end = item.position + row + 1;
    return end < item.tile1 * TILE ? end : item.tile1 * TILE;
}

FN void load_strip(Strip& s, const Args& a, const Item& item, u32 head, int first, u32* shared) {
    const int lane = thread_id() & 31, heads = a.group * a.kv_heads;
    const u64 cols = (u64)(heads + 2 * a.kv_heads) * HEAD_DIM;
    const float* from[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int line = first + (lane >> 2) + 8 * i, row = row_of_line(a, item, line);
        from[i] = a.qkv + (item.row + row) * cols + (head * a.group + line % a.group) * HEAD_DIM;
        s.low[i] = first_seen(a, item.position + row), s.high[i] = end_of_seen(item, row);
        s.largest[i] = -INFINITE, s.weight[i] = 0.f;
    }
    const int together = GROUPED ? 64 : 16, begin = first / together * together;
    const int top = row_of_line(a, item, begin), bottom = row_of_line(a, item, begin + together - 1);
    s.any_low = first_seen(a, item.position + top), s.all_low = first_seen(a, item.position + bottom);
    s.all_high = end_of_seen(item, top), s.any_high = end_of_seen(item, bottom);
    float sum[2] = {0.f, 0.f};
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        u32 query[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const Two bits = *(const Two*)(from[i & 1] + step * 16 + query_element(i >> 1));
            const float x = as_float(bits.x), y = as_float(bits.y);
            query[i] = pack(x, y);
            sum[i & 1] += rounded(x) + rounded(y);
        }
#if GROUPED
#pragma unroll
        for (int i = 0; i < 4; i++) s.query[step][i] = query[i];
#else
        *(Four*)(shared + (step * 32 + lane) * 4) = {query[0], query[1], query[2], query[3]};
#endif
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int i = 0; i < 4; i++) s.out[step][half][i] = 0.f;
    }
#if KV == KV_INT8
#pragma unroll
    for (int i = 0; i < 2; i++) s.query_sum[i] = line_sum(sum[i]), s.offset[i] = 0.f;
#endif
}

// What the strip does not see of the span at `position` scores nothing.
FN void mask(float (&x)[SPAN / 8][4], const Strip& s, int position) {
#pragma unroll
    for (int j = 0; j < SPAN / 8; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int p = position + 8 * j + 2 * (thread_id() & 3) + (i & 1);
            if (p < s.low[i >> 1] || p >= s.high[i >> 1]) x[j][i] = -INFINITE;
        }
}

// Scores become weights; returns the factors of all that was before.
FN void soften(Strip& s, float (&x)[SPAN / 8][4], float scale, float (&factor)[2]) {
#pragma unroll
    for (int line = 0; line < 2; line++) {
        float largest = s.largest[line];
#pragma unroll
        for (int j = 0; j < SPAN / 8; j++) largest = fmaxf(largest, fmaxf(x[j][2 * line], x[j][2 * line + 1]));
        largest = fmaxf(largest, shuffle_xor(largest, 1));
        largest = fmaxf(largest, shuffle_xor(largest, 2));
        const float base = largest == -INFINITE ? 0.f : largest * scale;
        factor[line] = exp2_fast(fmaf(s.largest[line], scale, -base));
        s.largest[line] = largest;
        float sum = 0.f;
#pragma unroll
        for (int j = 0; j < SPAN / 8; j++)
#pragma unroll
            for (int i = 2 * line; i < 2 * line + 2; i++) {
                x[j][i] = exp2_fast(fmaf(x[j][i], scale, -base));
                sum += x[j][i];
            }
        s.weight[line] = fmaf(s.weight[line], factor[line], sum);
    }
}

// What a span's scores became: an operand for each tile, the factors of all that was before, and what one stands for.
struct Weights {
    bool seen;
    u32 w[STRIPS][SPAN / TILE][4];
    float factor[STRIPS][2], unit;
};

FN void pack_weights(u32 (&w)[SPAN / TILE][4], const float (&x)[SPAN / 8][4]) {
#pragma unroll
    for (int tile = 0; tile < SPAN / TILE; tile++)
#pragma unroll
        for (int j = 0; j < 4; j++) w[tile][j] = pack(x[2 * tile + j / 2][j % 2 * 2], x[2 * tile + j / 2][j % 2 * 2 + 1]);
}

// Two neighbours, the first of them even.
FN void store_pair(void* to, int precision, u64 at, float x, float y) {
    if (precision != F32) {
        ((u32*)to)[at / 2] = precision == BF16 ? pack_bf16(x, y) : pack_f16(x, y);
        return;
    }
    ((float*)to)[at] = x, ((float*)to)[at + 1] = y;
}

// Results, or if there are other parts what they are merged from.
FN void write_strip(Strip& s, const Args& a, const Item& item, u32 head, int first) {
    const int lane = thread_id() & 31;
    const bool whole = item.parts == 1;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int line = first + (lane >> 2) + 8 * i, row = line / (int)a.group, member = line % (int)a.group;
        const float weight = line_sum(s.weight[i]);
        float offset = 0.f;
#if KV == KV_INT8
        offset = line_sum(s.offset[i]);
#endif
        if (row >= item.rows) continue;
        const u64 part = place_of_part(a, head, item.first_part + item.part) + line;
        const u64 result = ((u64)(item.row + row) * a.kv_heads + head) * a.group + member;
        const u64 at = (whole ? result : part) * HEAD_DIM;
        const float factor = whole ? 1.f / weight : 1.f;
#pragma unroll
        for (int j = 0; j < STEPS * 2; j++) {
            const int step = j / 2, k = j % 2, dim = step * 16 + (QUANTISED ? 4 * (lane & 3) + 2 * k : 8 * k + 2 * (lane & 3));
            // Of neighbours in a row: the two halves' same column where bytes were stored, else two columns of a half.
            const float x = (QUANTISED ? s.out[step][0][2 * i + k] : s.out[step][k][2 * i]) + offset;
            const float y = (QUANTISED ? s.out[step][1][2 * i + k] : s.out[step][k][2 * i + 1]) + offset;
            store_pair(whole ? a.out : a.sums, whole ? a.out_precision : F32, at + dim, x * factor, y * factor);
        }
        if (!whole && (lane & 3) == 0) a.weights[2 * part] = s.largest[i] * a.scale, a.weights[2 * part + 1] = weight;
    }
}
