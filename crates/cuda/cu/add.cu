// Adds the parts of a product: all that were apart are then in the first.
#include "number.cuh"

struct Args {
    void* x;
    u64 count;
};

KERNEL(add, Args, 256, 1) {
    let_next_start();
    after_previous();
    const u64 i = (u64)block_id() * block_threads() + thread_id();
    if (i >= a.count) return;
    float sum = load(a.x, PRODUCT, i);
    for (int part = 1; part < PARTS; part++) sum += load(a.x, PRODUCT, part * a.count + i);
    store(a.x, PRODUCT, i, sum);
}
