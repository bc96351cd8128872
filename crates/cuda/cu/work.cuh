// What attention kernels are given: a batch and how it is cut into work. See plan.rs.
#include "tile.cuh"

#define STEPS (HEAD_DIM / 16)

// As in plan/items.rs.
struct Item {
    // Rows of the batch, none if there is nothing to do, and the position of the first.
    int row, rows, position;
    // Where page 0 of the sequence would be in `pages`.
    int table;
    // Tiles of this part.
    int tile0, tile1;
    // The first part's place among all, this part's number, how many.
    int first_part, part, parts;
    int counter;
    // The item that the same block takes next; 0 if none.
    int next;
    int unused;
};

struct Args {
    const float* qkv;
    void* out;
    const u32* pages;
    // The first item of every share, then the others.
    const Item* items;
    // Of every part, head and column: sums, then (largest score, weight).
    float* sums;
    float* weights;
    u32* counters;
    Place place;
    u32 kv_heads;
    u32 group;
    // Positions that a row sees; 0 for all.
    u32 window;
    int out_precision;
    // Scale of the scores, times log2(e).
    float scale;
    // The most columns, rows times group, of an item.
    int columns;
    // Whether this step is recorded.
    int early;
    int unused;
};

// Query heads of a group, and key-value heads: where a kernel is told, it has no divisions by them.
#ifndef QUERIES
#define QUERIES a.group
#define KV_HEADS a.kv_heads
#endif

FN int first_seen(const Args& a, int position) {
    const int first = position + 1 - (int)a.window;
    return a.window == 0 || first < 0 ? 0 : first;
}
