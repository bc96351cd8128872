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
// The grid is the same whatever the lengths are; what a block does it reads from `work`, so that a captured launch
// serves other lengths. See plan.rs.
#include "attention_merge.cuh"

FN void attend(const Args& a, const Item& item, u32 head, char* shared) {
    const int warp = thread_id() >> 5;
    char* ring = shared + warp * STAGES * STAGE_BYTES;
    Columns c;
    load_columns(c, a, item, head);
    Fetch fetch = start_fetch(a, item, head, warp);
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) fetch_next(fetch, a, item, ring, i);
    for (int i = 0; i < fetch.count; i++) {
        copies_wait<STAGES - 2>();
        sync_warp();
        fetch_next(fetch, a, item, ring, i + STAGES - 1);
        fold_tile(c, a, ring + (i % STAGES) * STAGE_BYTES, (fetch.first + WARPS * i) * TILE);
    }
    copies_wait<0>();
    sync_block();
    merge_warps(c, a, item, head, shared);
}

KERNEL(attention, Args, WARPS * 32, MIN_BLOCKS) {
    DYNAMIC_SHARED(shared);
    const u32 head = block_id() % a.kv_heads, share = block_id() / a.kv_heads;
    const Item* items = items_of(a);
    for (int i = a.work[share]; i < a.work[share + 1]; i++) attend(a, items[i], head, shared);
}
