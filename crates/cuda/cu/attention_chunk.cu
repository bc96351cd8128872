// Attention of many rows of one sequence: a block has one key-value head and one item, whose lines are the item's
// rows times the heads of the group. Each warp has STRIPS strips of sixteen lines, and all go through the same spans of
// SPAN positions, which are copied to shared memory AHEAD spans ahead:
//
//   scores[16 lines][SPAN]  = queries[16][dim] * keys[dim][SPAN]
//   out[16 lines][dim]     += weights[16][SPAN] * values[SPAN][dim]
//
// Scores become weights in registers. What a strip does not see at all is skipped, and only what it sees in part is
// masked. Strips are folded by warps, or where GROUPED by groups of four.
//
// Sums are f32 throughout; where elements have scales (8 bits), a span's sums are made apart and then added
// to those before it, in f32 as well, so that no long sum is kept in the product's own precision.
#include "attention_chunk.cuh"
#if GROUPED
#include "attention_group.cuh"
#else
#include "attention_warp.cuh"
#endif

KERNEL(attention_chunk, Args, WARPS * 32, MIN_BLOCKS) {
    DYNAMIC_SHARED(memory);
    // Groups want their matrices at whole units.
    char* shared = memory + (GROUPED ? -shared_place(memory) % 1024 : 0);
    const u32 head = block_id() % a.kv_heads;
    const Item item = a.items[block_id() / a.kv_heads];
    const int warp = thread_id() >> 5, spans = (item.tile1 - item.tile0 + SPAN / TILE - 1) / (SPAN / TILE);
    Spans source = {item, head, spans, shift_of(a.place.page_size), shared, (Row*)(shared + STAGES * SPAN_BYTES)};
    u32* queries = (u32*)(source.rows + 2 * SPAN) + warp * STRIPS * STEPS * 128;
    Strip strips[STRIPS];
#pragma unroll
    for (int i = 0; i < STRIPS; i++) load_strip(strips[i], a, item, head, (warp * STRIPS + i) * 16, queries + i * STEPS * 128);
    fold_all(strips, a, source, queries);
#pragma unroll
    for (int i = 0; i < STRIPS; i++) write_strip(strips[i], a, item, head, (warp * STRIPS + i) * 16);
    if (item.parts > 1) merge_parts(a, item, head);
}
