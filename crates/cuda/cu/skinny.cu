// out = x * wᵀ for few rows, where reading the weights is everything. A block has 16 outputs for all rows; its warps
// take turns in cutting the columns, and read each weight once, straight into the operands of the tensor cores:
//
//   out[16 outputs][8 rows] += w[16][16] * x[16][8]
//
// A sum does not depend on the order of its columns: lane t of a row's four loads eight columns at once, and what
// the tensor cores take for columns 2t, 2t+1, 2t+8 and 2t+9 are the first four of these, then the others.
#include "number.cuh"

#define WARPS 8
#define OUTPUTS 16
// Columns of a warp's turn, in units of the 32 that four lanes load.
#define STEPS 4
#define TURN (32 * STEPS)
#define TILES ((ROWS + 7) / 8)

struct Args {
    const u16* x;
    const u16* w;
    float* out;
    u32 outputs;
    u32 cols;
    int precision;
    int unused;
};

struct Weights {
    // Of two outputs, eight apart.
    Four v[STEPS][2];
};

FN Four none() { return Four{0, 0, 0, 0}; }

FN void load_weights(Weights& w, const Args& a, u32 output, u32 column) {
#pragma unroll
    for (int step = 0; step < STEPS; step++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const u32 o = output + 8 * half, c = column + 32 * step;
            w.v[step][half] = o < a.outputs && c < a.cols ? load_streaming(a.w + (u64)o * a.cols + c) : none();
        }
}

FN void multiply(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1, int precision) {
    const u32 w[4] = {a0, a1, a2, a3};
    if (precision == BF16) multiply_bf16(c, w, b0, b1);
    else multiply_f16(c, w, b0, b1);
}

FN void add_turn(float (&sums)[TILES][4], const Weights& w, const Args& a, u32 row, u32 column) {
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        const u32 c = column + 32 * step;
        const Four &p = w.v[step][0], &q = w.v[step][1];
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            const u32 r = row + 8 * tile;
            const Four x = r < ROWS && c < a.cols ? *(const Four*)(a.x + (u64)r * a.cols + c) : none();
            multiply(sums[tile], p.x, q.x, p.y, q.y, x.x, x.y, a.precision);
            multiply(sums[tile], p.z, q.z, p.w, q.w, x.z, x.w, a.precision);
        }
    }
}

KERNEL(skinny, Args, WARPS * 32, 2) {
    SHARED float shared[WARPS][OUTPUTS][TILES * 8];
    const u32 warp = thread_id() >> 5, lane = thread_id() & 31, g = lane >> 2, t = lane & 3;
    const u32 first = block_id() * OUTPUTS;
    let_next_start();
    Weights w, next;
    u32 column = warp * TURN + 8 * t;
    load_weights(w, a, first + g, column);
    after_previous();
    float sums[TILES][4];
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
#pragma unroll
        for (int i = 0; i < 4; i++) sums[tile][i] = 0.f;
    for (u32 turn = warp * TURN; turn < a.cols; turn += WARPS * TURN) {
        load_weights(next, a, first + g, column + WARPS * TURN);
        add_turn(sums, w, a, g, column);
        w = next;
        column += WARPS * TURN;
    }
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
#pragma unroll
        for (int i = 0; i < 4; i++) shared[warp][g + 8 * (i >> 1)][tile * 8 + 2 * t + (i & 1)] = sums[tile][i];
    sync_block();
    for (u32 i = thread_id(); i < OUTPUTS * ROWS; i += block_threads()) {
        const u32 output = i % OUTPUTS, row = i / OUTPUTS;
        float sum = 0.f;
        for (int part = 0; part < WARPS; part++) sum += shared[part][output][row];
        if (first + output < a.outputs) a.out[(u64)row * a.outputs + first + output] = sum;
    }
}
