// From the columns of warps to those of the block, in one order.
#include "attention.cuh"
#include "parts.cuh"

// The rings, and one unit more, as a matrix load may read it; the warps' results follow.
#define RING_BYTES (WARPS * STAGES * STAGE_BYTES + 16)

// A column's sums in shared memory, its largest score and its weight; by so much apart that what a warp writes at once
// lies in different banks.
#define COLUMN_STRIDE (HEAD_DIM + 4)

// A warp's results into shared memory: [warp][column].
FN void share_columns(Columns& c, float* results, int columns) {
    const int warp = thread_id() >> 5, lane = thread_id() & 31;
#pragma unroll
    for (int b = 0; b < BLOCKS; b++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const int own = 8 * b + 2 * (lane & 3) + j;
            float* column = results + (warp * columns + own) * COLUMN_STRIDE;
            const float weight = column_sum(c.weight[b][j]);
            float offset = 0.f;
#if KV == KV_INT8
            offset = column_sum(c.offset[b][j]);
#endif
            if (own >= columns) continue;
            if (lane < 4) column[HEAD_DIM] = c.largest[b][j], column[HEAD_DIM + 1] = weight;
#pragma unroll
            for (int step = 0; step < STEPS; step++)
#pragma unroll
                for (int i = 0; i < 2; i++)
                    column[step * 16 + value_dimension(i)] = c.out[b][step][2 * i + j] + offset;
        }
}

FN void merge_warps(Columns& c, const Args& a, const Item& item, u32 head, float* results) {
    const int columns = item.rows * QUERIES;
    share_columns(c, results, columns);
    sync_block();
    for (int at = thread_id(); at < columns * HEAD_DIM / 4; at += WARPS * 32) {
        const int column = at / (HEAD_DIM / 4), dim = at % (HEAD_DIM / 4) * 4;
        float largest = -INFINITE, weight = 0.f, sum[4] = {0.f, 0.f, 0.f, 0.f};
        for (int w = 0; w < WARPS; w++)
            largest = fmaxf(largest, results[(w * columns + column) * COLUMN_STRIDE + HEAD_DIM]);
        for (int w = 0; w < WARPS; w++) {
            const float* own = results + (w * columns + column) * COLUMN_STRIDE;
            const float factor = factor_of(own[HEAD_DIM], largest);
            weight = fmaf(factor, own[HEAD_DIM + 1], weight);
            const Four x = *(const Four*)(own + dim);
            sum[0] = fmaf(factor, as_float(x.x), sum[0]), sum[1] = fmaf(factor, as_float(x.y), sum[1]);
            sum[2] = fmaf(factor, as_float(x.z), sum[2]), sum[3] = fmaf(factor, as_float(x.w), sum[3]);
        }
        if (item.parts == 1) {
            write_out(a, item, head, column, dim, sum, weight);
            continue;
        }
        const u64 p = place_of_part(a, head, item.first_part + item.part) + column;
        *(Four*)(a.sums + p * HEAD_DIM + dim) = {as_bits(sum[0]), as_bits(sum[1]), as_bits(sum[2]), as_bits(sum[3])};
        if (dim == 0) a.weights[2 * p] = largest, a.weights[2 * p + 1] = weight;
    }
    if (item.parts > 1) merge_parts(a, item, head);
    // The next item's results take the place of these.
    else sync_block();
}
