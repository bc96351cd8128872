// out = act(gate) * up, where a row is [gate | up].
#include "number.cuh"

struct Args {
    const void* gate_up;
    void* out;
    u32 cols;
    u32 rows;
    int precision;
    int out_precision;
    // 0: SiLU, 1: GELU by tanh.
    int act;
    int unused;
};

FN float silu(float x) { return x / (1.f + expf(-x)); }
FN float gelu(float x) { return 0.5f * x * (1.f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x))); }

KERNEL(gated, Args, 256, 1) {
    let_next_start();
    after_previous();
    const u64 count = (u64)a.rows * a.cols, step = (u64)grid_blocks() * block_threads();
    for (u64 i = (u64)block_id() * block_threads() + thread_id(); i < count; i += step) {
        u64 row = i / a.cols, col = i - row * a.cols;
        float gate = load(a.gate_up, a.precision, row * 2 * a.cols + col);
        float up = load(a.gate_up, a.precision, row * 2 * a.cols + a.cols + col);
        store(a.out, a.out_precision, i, (a.act == 0 ? silu(gate) : gelu(gate)) * up);
    }
}
