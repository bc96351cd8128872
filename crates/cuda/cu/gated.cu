// out = act(gate) * up, where a row is [gate | up]. A thread has some fours of columns; the grid's first dimension is
// the rows.
#include "gate.cuh"

struct Args {
    const void* gate_up;
    void* out;
    u32 cols;
    int act;
    // Of a part of `gate_up`.
    u32 rows;
    int unused;
};

// Fours of columns of a thread, as in dense.rs: what is short comes in many rows, of which all shall be there at once.
#define FOURS (PRODUCT == F32 ? 1 : 2)

KERNEL(gated, Args, 256, 1) {
    let_next_start();
    after_previous();
    const u64 from = (u64)block_id() * 2 * a.cols, to = (u64)block_id() * a.cols;
    float gate[FOURS][4], up[FOURS][4];
    u32 cols[FOURS], counts[FOURS];
#pragma unroll
    for (int j = 0; j < FOURS; j++) {
        const u32 col = 4 * ((block_id_y() * FOURS + j) * block_threads() + thread_id());
        cols[j] = col, counts[j] = col >= a.cols ? 0 : a.cols - col < 4 ? a.cols - col : 4;
        load_parts(gate[j], a.gate_up, from + col, counts[j], (u64)a.rows * 2 * a.cols);
        load_parts(up[j], a.gate_up, from + a.cols + col, counts[j], (u64)a.rows * 2 * a.cols);
    }
#pragma unroll
    for (int j = 0; j < FOURS; j++) {
        for (int i = 0; i < 4; i++) gate[j][i] = activation(a.act, gate[j][i]) * up[j][i];
        store_four(a.out, SHORT, to + cols[j], gate[j], counts[j]);
    }
}
