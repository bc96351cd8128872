// out[row] = table[tokens[row]] * scale. A block a row.
#include "number.cuh"

struct Args {
    const void* table;
    const u32* tokens;
    float* out;
    u32 cols;
    int precision;
    float scale;
    int unused;
};

KERNEL(embed, Args, 256, 1) {
    let_next_start();
    after_previous();
    u64 from = (u64)a.tokens[block_id()] * a.cols, to = (u64)block_id() * a.cols;
    for (u32 i = thread_id(); i < a.cols; i += block_threads())
        a.out[to + i] = load(a.table, a.precision, from + i) * a.scale;
}
