// From the columns of warps to those of the block, in one order.
#include "attention.cuh"
#include "parts.cuh"

// The rings, and over them, at the end of an item, the warps' results; one unit more, as a matrix load may read it.
#define RESULT_BYTES (WARPS * COLUMNS * (HEAD_DIM + 2) * 4)
#define RING_BYTES (WARPS * STAGES * STAGE_BYTES)
#define SHARED_BYTES ((RING_BYTES > RESULT_BYTES ? RING_BYTES : RESULT_BYTES) + 16)

// A warp's results into shared memory: sums [warp][column][dim], then (largest, weight) [warp][column].
FN void share_columns(Columns& c, float* sums, float* weights) {
    const int warp = thread_id() >> 5, lane = thread_id() & 31;
#pragma unroll
    for (int b = 0; b < BLOCKS; b++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const int column = warp * COLUMNS + 8 * b + 2 * (lane & 3) + j;
            const float weight = column_sum(c.weight[b][j]);
            float offset = 0.f;
#if KV == KV_INT8
            offset = column_sum(c.offset[b][j]);
#endif
            if (lane < 4) weights[2 * column] = c.largest[b][j], weights[2 * column + 1] = weight;
#pragma unroll
            for (int step = 0; step < STEPS; step++)
#pragma unroll
                for (int i = 0; i < 2; i++)
                    sums[column * HEAD_DIM + step * 16 + value_dimension(i)] = c.out[b][step][2 * i + j] + offset;
        }
}

FN void merge_warps(Columns& c, const Args& a, const Item& item, u32 head, char* shared) {
    float* sums = (float*)shared;
    float* weights = sums + WARPS * COLUMNS * HEAD_DIM;
    share_columns(c, sums, weights);
    sync_block();
    const int columns = item.rows * a.group;
    for (int at = thread_id(); at < columns * HEAD_DIM; at += WARPS * 32) {
        const int column = at / HEAD_DIM, dim = at % HEAD_DIM;
        float largest = -INFINITE, sum = 0.f, weight = 0.f;
        for (int w = 0; w < WARPS; w++) largest = fmaxf(largest, weights[2 * (w * COLUMNS + column)]);
        for (int w = 0; w < WARPS; w++) {
            const int p = w * COLUMNS + column;
            const float factor = factor_of(weights[2 * p], largest);
            weight = fmaf(factor, weights[2 * p + 1], weight);
            sum = fmaf(factor, sums[p * HEAD_DIM + dim], sum);
        }
        if (item.parts == 1) {
            write_out(a, item, head, column, dim, sum, weight);
            continue;
        }
        const u64 p = ((u64)(item.first_part + item.part) * a.kv_heads + head) * COLUMNS + column;
        a.sums[p * HEAD_DIM + dim] = sum;
        if (dim == 0) a.weights[2 * p] = largest, a.weights[2 * p + 1] = weight;
    }
    if (item.parts > 1) merge_parts(a, item, head, columns, weights);
    if (BULK) fence_bulk();
    sync_block();
}
