// What the kernels for products of few rows share: stream.cu and several.cu.
#include "gate.cuh"

#define OUTPUTS (16 * SIXTEENS)
// Numbers from row to row of results, so that what a warp writes at once lies in different banks.
#define LINE (OUTPUTS + 4)

// If GATED, of [gate | up] = x * wᵀ what is written is act(gate) * up, in one part.
struct Args {
    const u16* x;
    const u16* w;
    void* out;
    u32 outputs;
    u32 cols;
    int act;
    int unused;
};

// The first row of weights of an eight of outputs. If GATED, eights of gate and up take turns: a unit has both of what
// it writes.
FN u32 row_of_eight(const Args& a, u32 eight) {
    return GATED ? eight / 2 * 8 + eight % 2 * (a.outputs / 2) : 8 * eight;
}
// Of what a unit writes if GATED, where the gate is among its outputs; what it gates comes eight later.
FN u32 gate_of(u32 own) { return 2 * own - own % 8; }

// Four outputs of one row, added up over the warps' results: [warp][row][output].
FN void add_warps(float (&sum)[4], const float* shared, u32 row, u32 own) {
    sum[0] = sum[1] = sum[2] = sum[3] = 0.f;
#pragma unroll
    for (int warp = 0; warp < WARPS; warp++) {
        const Four v = *(const Four*)(shared + (warp * ROWS + row) * LINE + own);
        sum[0] += as_float(v.x), sum[1] += as_float(v.y), sum[2] += as_float(v.z), sum[3] += as_float(v.w);
    }
}

// From the warps' results to those of a unit, whose first output is given.
FN void write_results(const Args& a, const float* shared, u32 output, u32 part) {
#if GATED
    for (u32 i = thread_id(); i < ROWS * OUTPUTS / 8; i += WARPS * 32) {
        const u32 own = i % (OUTPUTS / 8) * 4, row = i / (OUTPUTS / 8), all = a.outputs / 2;
        float gate[4], up[4];
        add_warps(gate, shared, row, gate_of(own));
        add_warps(up, shared, row, gate_of(own) + 8);
#pragma unroll
        for (int j = 0; j < 4; j++) gate[j] = activation(a.act, gate[j]) * up[j];
        if (output / 2 + own < all) store_four(a.out, SHORT, (u64)row * all + output / 2 + own, gate, 4);
    }
#else
    for (u32 i = thread_id(); i < ROWS * OUTPUTS / 4; i += WARPS * 32) {
        const u32 own = output + i % (OUTPUTS / 4) * 4, row = i / (OUTPUTS / 4);
        float sum[4];
        add_warps(sum, shared, row, own - output);
        const u32 count = own >= a.outputs ? 0 : a.outputs - own < 4 ? a.outputs - own : 4;
        store_four(a.out, F32, ((u64)part * ROWS + row) * a.outputs + own, sum, count);
    }
#endif
}
