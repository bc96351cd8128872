// out = act(gate) * up, where a row is [gate | up]. A thread has four columns; the grid's first dimension is the rows.
#include "number.cuh"

struct Args {
    const void* gate_up;
    void* out;
    u32 cols;
    int out_precision;
    // 0: SiLU, 1: GELU by tanh.
    int act;
    // Of a part of `gate_up`.
    u32 rows;
};

FN float silu(float x) { return x / (1.f + expf(-x)); }
FN float gelu(float x) { return 0.5f * x * (1.f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x))); }

KERNEL(gated, Args, 256, 1) {
    let_next_start();
    after_previous();
    const u32 col = 4 * (block_id_y() * block_threads() + thread_id());
    const u64 from = (u64)block_id() * 2 * a.cols, to = (u64)block_id() * a.cols;
    if (col >= a.cols) return;
    const u32 count = a.cols - col < 4 ? a.cols - col : 4;
    float gate[4], up[4];
    load_parts(gate, a.gate_up, from + col, count, (u64)a.rows * 2 * a.cols);
    load_parts(up, a.gate_up, from + a.cols + col, count, (u64)a.rows * 2 * a.cols);
    for (int i = 0; i < 4; i++) gate[i] = (a.act == 0 ? silu(gate[i]) : gelu(gate[i])) * up[i];
    store_four(a.out, a.out_precision, to + col, gate, count);
}
