// Attention over pages. A block has one key-value head and one share of the work, some items one after another: some
// rows of one sequence (their query heads of that head's group are the columns) against some tiles. Warps take tiles
// in turn, each through its own ring of copies, so that the loop has no block barrier:
//
//   scores[16 positions][8 columns] = keys[16][dim] * queries[dim][8]
//   out[dim][8 columns]            += values[dim][16] * weights[16][8]
//
// A column's sums do not depend on its neighbours: tile i belongs to warp i mod WARPS, warps and then parts are
// merged in order, and a tile that a column does not see leaves its bits as they are.
//
// In a recorded step items, pages, and what is stored at positions before a row's own are there before the kernel before
// this one ends, and what of them the rings have room for is fetched without waiting for it.
//
// The grid is the same whatever the lengths are; what a block does it reads from `items`, so that a captured launch
// serves other lengths. See plan.rs.
// Heads are whole fours.
#define WHOLE_FOURS LEAN
#include "attention_merge.cuh"

KERNEL(attention, Args, WARPS * 32, MIN_BLOCKS) {
    let_next_start();
    if (!a.early) after_previous();
    DYNAMIC_SHARED(shared);
    const int warp = thread_id() >> 5;
    Item item = a.items[block_id() / KV_HEADS];
    if (item.rows == 0) {
        after_previous();
        return;
    }
    char* ring = shared + warp * STAGES * STAGE_BYTES;
    float* results = (float*)(shared + RING_BYTES);
    Fetch fetch = start_fetch(a, item, block_id() % KV_HEADS, ring);
// LEAN: as little code as can be, see kernels.rs.
#if LEAN
#pragma unroll 1
#else
#pragma unroll
#endif
    for (int i = 0; i < STAGES - 1; i++) fetch_next(fetch, a);
    after_previous();
    for (;;) {
        Columns c;
        load_columns(c, a, item, fetch.head);
        const int first = first_tile(item), count = count_tiles(item);
        for (int i = 0; i < count; i++) {
            const char* tile = next_tile(fetch);
            fetch_next(fetch, a);
            fold_tile(c, a, tile, (first + WARPS * i) * TILE);
        }
        merge_warps(c, a, item, fetch.head, results);
        if (item.next == 0) return;
        item = a.items[item.next];
    }
}
