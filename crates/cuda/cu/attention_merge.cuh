// From the columns of warps to those of the block, in one order.
#include "attention.cuh"
#include "parts.cuh"

// The rings, and one unit more, as a matrix load may read it; the warps' results follow.
#define RING_BYTES (WARPS * STAGES * STAGE_BYTES + 16)

// A warp's results into shared memory: sums [warp][column][dim], then (largest, weight) [warp][column].
FN void share_columns(Columns& c, float* sums, float* weights, int columns) {
    const int warp = thread_id() >> 5, lane = thread_id() & 31;
#pragma unroll
    for (int b = 0; b < BLOCKS; b++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const int own = 8 * b + 2 * (lane & 3) + j, column = warp * columns + own;
            const float weight = column_sum(c.weight[b][j]);
            float offset = 0.f;
#if KV == KV_INT8
            offset = column_sum(c.offset[b][j]);
#endif
            if (own >= columns) continue;
            if (lane < 4) weights[2 * column] = c.largest[b][j], weights[2 * column + 1] = weight;
#pragma unroll
            for (int step = 0; step < STEPS; step++)
#pragma unroll
                for (int i = 0; i < 2; i++)
                    sums[column * HEAD_DIM + step * 16 + value_dimension(i)] = c.out[b][step][2 * i + j] + offset;
        }
}

FN void merge_warps(Columns& c, const Args& a, const Item& item, u32 head, float* sums) {
    const int columns = item.rows * a.group;
    float* weights = sums + WARPS * columns * HEAD_DIM;
    share_columns(c, sums, weights, columns);
    sync_block();
    for (int at = thread_id(); at < columns * HEAD_DIM; at += WARPS * 32) {
        const int column = at / HEAD_DIM, dim = at % HEAD_DIM;
        float largest = -INFINITE, sum = 0.f, weight = 0.f;
        for (int w = 0; w < WARPS; w++) largest = fmaxf(largest, weights[2 * (w * columns + column)]);
        for (int w = 0; w < WARPS; w++) {
            const int p = w * columns + column;
            const float factor = factor_of(weights[2 * p], largest);
            weight = fmaf(factor, weights[2 * p + 1], weight);
            sum = fmaf(factor, sums[p * HEAD_DIM + dim], sum);
        }
        if (item.parts == 1) {
            write_out(a, item, head, column, dim, sum, weight);
            continue;
        }
        const u64 p = place_of_part(a, head, item.first_part + item.part) + column;
        a.sums[p * HEAD_DIM + dim] = sum;
        if (dim == 0) a.weights[2 * p] = largest, a.weights[2 * p + 1] = weight;
    }
    if (item.parts > 1) merge_parts(a, item, head);
    // The next item's results take the place of these.
    else sync_block();
}
