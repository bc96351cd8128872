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
// The grid is the same whatever the lengths are; what a block does it reads from `items`, so that a captured launch
// serves other lengths. See plan.rs.
#include "attention_merge.cuh"

FN void attend(const Args& a, const Item& item, Fetch& fetch, char* shared) {
    start_fetch(fetch, a, item, thread_id() >> 5);
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) fetch_next(fetch, a, item, i);
    Columns c;
    load_columns(c, a, item, fetch.head);
    for (int i = 0; i < fetch.count; i++) {
        wait_for_tile(fetch, i);
        fetch_next(fetch, a, item, i + STAGES - 1);
        fold_tile(c, a, stage_of(fetch, i), (fetch.first + WARPS * i) * TILE);
    }
    fetch.before += fetch.count;
    copies_wait<0>();
    sync_block();
    merge_warps(c, a, item, fetch.head, shared);
}

KERNEL(attention, Args, WARPS * 32, MIN_BLOCKS) {
    let_next_start();
    after_previous();
    DYNAMIC_SHARED(shared);
    Item item = a.items[block_id() / a.kv_heads];
    if (item.rows == 0) return;
    const int warp = thread_id() >> 5;
    Fetch fetch;
    fetch.ring = shared + warp * STAGES * STAGE_BYTES;
    fetch.full = (u64*)(shared + SHARED_BYTES) + warp * STAGES;
    fetch.before = 0;
    fetch.head = block_id() % a.kv_heads;
#if BULK
    if ((thread_id() & 31) < STAGES) barrier_create(fetch.full + (thread_id() & 31));
    barriers_created();
    sync_warp();
#endif
    for (;;) {
        attend(a, item, fetch, shared);
        if (item.next == 0) return;
        item = a.items[item.next];
    }
}
