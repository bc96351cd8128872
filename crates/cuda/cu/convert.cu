// The same numbers, perhaps in another precision; the rows listed in `rows`, where it is given.
#include "number.cuh"

struct Args {
    const void* from;
    void* to;
    const u32* rows;
    u32 cols;
    int precision;
    int to_precision;
    int unused;
};

KERNEL(convert, Args, 256, 1) {
    let_next_start();
    after_previous();
    u64 row = a.rows ? a.rows[block_id()] : (u32)block_id();
    for (u32 i = thread_id(); i < a.cols; i += block_threads())
        store(a.to, a.to_precision, (u64)block_id() * a.cols + i, load(a.from, a.precision, row * a.cols + i));
}
