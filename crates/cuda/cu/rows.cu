// Moves encoded rows between the arena and a packed buffer: a block a slot.
// Packed, for each slot: [K|V][kv_head] elements, then [K|V][kv_head] parameters.
#include "place.cuh"

struct Args {
    Place place;
    // Page and slot.
    const u32* slots;
    u8* packed;
    u32 kv_heads;
    u32 parameter_bytes;
    // 1: into the arena.
    int store;
    int unused;
};

FN void move_word(u8* arena, u8* packed, int store) {
    if (store) *(u32*)arena = *(const u32*)packed;
    else *(u32*)packed = *(const u32*)arena;
}

KERNEL(rows, Args, 128, 1) {
    const u32 page = a.slots[2 * block_id()], slot = a.slots[2 * block_id() + 1], vectors = 2 * a.kv_heads;
    const u32 row_bytes = a.place.row_bytes;
    u8* packed = a.packed + (u64)block_id() * vectors * (row_bytes + a.parameter_bytes);
    for (u32 i = thread_id() * 4; i < vectors * row_bytes; i += block_threads() * 4) {
        u32 vector = i / row_bytes, half = vector / a.kv_heads, head = vector % a.kv_heads;
        move_word(row_at(a.place, half, head, page, slot) + i % row_bytes, packed + i, a.store);
    }
    packed += vectors * row_bytes;
    for (u32 vector = thread_id(); a.parameter_bytes && vector < vectors; vector += block_threads()) {
        u8* at = parameters_at(a.place, vector / a.kv_heads, vector % a.kv_heads, page, slot);
        move_word(at, packed + vector * 4, a.store);
    }
}
