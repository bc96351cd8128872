// out = x * wᵀ for few rows, where reading the weights is everything. A unit is OUTPUTS outputs for all rows and one of
// CUTS stretches of the columns, whose sums lie apart: whoever reads them adds them. A block has some units, one
// after another; its warps take turns in cutting a stretch into chunks of 32 columns:
//
//   out[16 outputs][8 rows] += w[16][16] * x[16][8]
//
// A sum does not depend on the order of its columns: lane t of a row's four loads eight columns at once, and what
// the tensor cores take for columns 2t, 2t+1, 2t+8 and 2t+9 are the first four of these, then the others.
//
// Weights are copied into shared memory, DEPTH - 1 chunks ahead, across units, and from before the kernel before this one
// has ended. More than eight rows are copied, too; up to eight are loaded one chunk ahead. A lane copies what it
// multiplies itself, so that no one waits for others.
#include "product.cuh"

#define CHUNK 32
#define TILES ((ROWS + 7) / 8)
// Eights of outputs.
#define EIGHTS (2 * SIXTEENS)
#define COPIES_ROWS (TILES > 1)
// In a chunk every lane has 16 bytes for each eight of outputs, and for each eight of rows.
#define CHUNK_BYTES ((EIGHTS + (COPIES_ROWS ? TILES : 0)) * 32 * 16)
// From output to output of few rows' results, for the banks like LINE.
#define FEW_LINE 9

struct Unit {
    // The first output; chunks [begin, end).
    u32 output, begin, end;
};

FN u32 count_units(const Args& a) { return (a.outputs + OUTPUTS - 1) / OUTPUTS * CUTS; }
FN Unit unit_at(const Args& a, u32 unit) {
    const u32 chunks = (a.cols + CHUNK - 1) / CHUNK, each = (chunks + CUTS - 1) / CUTS;
    const u32 begin = unit % CUTS * each, end = begin + each;
    return {unit / CUTS * OUTPUTS, begin, end < chunks ? end : chunks};
}

// A warp's walk over its chunks of all units of its block.
struct Walk {
    u32 number, taken;
    Unit unit;
    u32 chunk;
};

FN void start_unit(Walk& w, const Args& a, u32 number) {
    w.number = number;
    w.unit = unit_at(a, number);
    w.chunk = w.unit.begin + (thread_id() >> 5);
}
// Whether there is another chunk, which is then the one it is at.
FN bool find_chunk(Walk& w, const Args& a) {
    while (w.chunk >= w.unit.end && w.number < count_units(a)) start_unit(w, a, w.number + grid_blocks());
    return w.number < count_units(a);
}
FN void pass_chunk(Walk& w) { w.taken++, w.chunk += WARPS; }

FN char* place_of(const Walk& w, char* ring) { return ring + w.taken % DEPTH * CHUNK_BYTES + (thread_id() & 31) * 16; }
FN u32 column_of(u32 chunk) { return chunk * CHUNK + 8 * (thread_id() & 3); }

FN void copy_weights(const Walk& w, const Args& a, char* to) {
    const u32 column = column_of(w.chunk), lane = (thread_id() & 31) >> 2, first = w.unit.output + lane;
    const u16* from = a.w + (u64)(row_of_eight(a, w.unit.output / 8) + lane) * a.cols + column;
#pragma unroll
    for (int i = 0; i < EIGHTS; i++) {
        const bool real = first + 8 * i < a.outputs && column < a.cols;
        copy16(to + i * 512, real ? from + row_of_eight(a, i) * a.cols : a.w, real ? 16 : 0);
    }
}
struct Rows {
    Four v[TILES];
};
FN bool is_row(const Args& a, int tile, u32 column) {
    return ((thread_id() & 31) >> 2) + 8 * tile < ROWS && column < a.cols;
}
FN const u16* row_at(const Args& a, int tile, u32 column) {
    return a.x + (u64)(((thread_id() & 31) >> 2) + 8 * tile) * a.cols + column;
}
FN void copy_rows(const Walk& w, const Args& a, char* to) {
    const u32 column = column_of(w.chunk);
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        const bool real = is_row(a, tile, column);
        copy16(to + (EIGHTS + tile) * 512, real ? row_at(a, tile, column) : a.x, real ? 16 : 0);
    }
}
FN Rows copied_rows(const char* chunk) {
    Rows x;
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) x.v[tile] = *(const Four*)(chunk + (EIGHTS + tile) * 512);
    return x;
}
FN Rows load_rows(const Args& a, u32 chunk) {
    const u32 column = column_of(chunk);
    Rows x;
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
        x.v[tile] = is_row(a, tile, column) ? *(const Four*)row_at(a, tile, column) : Four{0, 0, 0, 0};
    return x;
}

FN void multiply(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    const u32 w[4] = {a0, a1, a2, a3};
    if (SHORT == BF16) multiply_bf16(c, w, b0, b1);
    else multiply_f16(c, w, b0, b1);
}

FN void add_chunk(float (&sums)[SIXTEENS][TILES][4], const char* chunk, const Rows& x) {
#pragma unroll
    for (int i = 0; i < SIXTEENS; i++) {
        const Four p = *(const Four*)(chunk + i * 1024), q = *(const Four*)(chunk + i * 1024 + 512);
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            multiply(sums[i][tile], p.x, q.x, p.y, q.y, x.v[tile].x, x.v[tile].y);
            multiply(sums[i][tile], p.z, q.z, p.w, q.w, x.v[tile].z, x.v[tile].w);
        }
    }
}

// From the warps' sums to a unit's results.
#if COPIES_ROWS
FN void write_unit(const float (&sums)[SIXTEENS][TILES][4], const Args& a, u32 output, u32 part, float* shared) {
    const u32 warp = thread_id() >> 5, lane = thread_id() & 31, g = lane >> 2, t = lane & 3;
    // Until those of the unit before have been read.
    sync_block();
#pragma unroll
    for (int i = 0; i < SIXTEENS * TILES * 4; i++) {
        const u32 row = 8 * (i / 4 % TILES) + 2 * t + i % 2, own = 16 * (i / 4 / TILES) + g + 8 * (i / 2 % 2);
        if (row < ROWS) shared[(warp * ROWS + row) * LINE + own] = sums[i / 4 / TILES][i / 4 % TILES][i % 4];
    }
    sync_block();
    write_results(a, shared, output, part);
}
#else
// One output of one row, added up over the warps' results: [warp][output][row].
FN float add_warps(const float* shared, u32 own, u32 row) {
    float sum = 0.f;
#pragma unroll
    for (int warp = 0; warp < WARPS; warp++) sum += shared[(warp * OUTPUTS + own) * FEW_LINE + row];
    return sum;
}

FN void write_unit(const float (&sums)[SIXTEENS][TILES][4], const Args& a, u32 output, u32 part, float* shared) {
    const u32 warp = thread_id() >> 5, lane = thread_id() & 31, g = lane >> 2, t = lane & 3;
    sync_block();
#pragma unroll
    for (int i = 0; i < SIXTEENS; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            shared[(warp * OUTPUTS + 16 * i + g + 8 * (j >> 1)) * FEW_LINE + 2 * t + (j & 1)] = sums[i][0][j];
    sync_block();
#if GATED
    for (u32 i = thread_id(); i < OUTPUTS * 4; i += WARPS * 32) {
        const u32 own = i % (OUTPUTS / 2), row = i / (OUTPUTS / 2), all = a.outputs / 2;
        const float gate = add_warps(shared, gate_of(own), row), up = add_warps(shared, gate_of(own) + 8, row);
        if (row < ROWS && output / 2 + own < all)
            store(a.out, SHORT, (u64)row * all + output / 2 + own, activation(a.act, gate) * up);
    }
#else
    for (u32 i = thread_id(); i < OUTPUTS * 8; i += WARPS * 32) {
        const u32 own = i % OUTPUTS, row = i / OUTPUTS;
        const float sum = add_warps(shared, own, row);
        if (row < ROWS && output + own < a.outputs)
            store(a.out, F32, ((u64)part * ROWS + row) * a.outputs + output + own, sum);
    }
#endif
}
#endif

KERNEL(stream, Args, WARPS * 32, MIN_BLOCKS) {
    DYNAMIC_SHARED(shared);
    let_next_start();
    char* ring = shared + (thread_id() >> 5) * DEPTH * CHUNK_BYTES;
    float* results = (float*)(shared + WARPS * DEPTH * CHUNK_BYTES);
    Walk ahead, rows;
    ahead.taken = 0;
    start_unit(ahead, a, block_id());
    rows = ahead;
#pragma unroll 1
    for (int i = 0; i < DEPTH - 1; i++) {
        if (find_chunk(ahead, a)) copy_weights(ahead, a, place_of(ahead, ring)), pass_chunk(ahead);
        copies_commit();
    }
    after_previous();
#if COPIES_ROWS
#pragma unroll 1
    for (int i = 0; i < DEPTH - 1; i++) {
        if (find_chunk(rows, a)) copy_rows(rows, a, place_of(rows, ring)), pass_chunk(rows);
        copies_commit();
    }
#else
    Rows next_x = load_rows(a, rows.chunk);
#endif
    const u32 warp = thread_id() >> 5;
    const char* chunks = ring + (thread_id() & 31) * 16;
    u32 folded = 0;
    Unit unit = unit_at(a, block_id());
    for (u32 number = block_id(); number < count_units(a); number += grid_blocks()) {
        const Unit next = unit_at(a, number + grid_blocks());
        float sums[SIXTEENS][TILES][4];
#pragma unroll
        for (int i = 0; i < SIXTEENS * TILES * 4; i++) sums[i / 4 / TILES][i / 4 % TILES][i % 4] = 0.f;
        for (u32 at = unit.begin + warp; at < unit.end; at += WARPS) {
            const char* chunk = chunks + folded++ % DEPTH * CHUNK_BYTES;
#if COPIES_ROWS
            copies_wait<DEPTH - 2>();
            const Rows x = copied_rows(chunk);
#else
            const Rows x = next_x;
            next_x = load_rows(a, at + WARPS < unit.end ? at + WARPS : next.begin + warp);
            copies_wait<DEPTH - 2>();
#endif
            add_chunk(sums, chunk, x);
            if (find_chunk(ahead, a)) {
                char* to = place_of(ahead, ring);
                copy_weights(ahead, a, to);
                if (COPIES_ROWS) copy_rows(ahead, a, to);
                pass_chunk(ahead);
            }
            copies_commit();
        }
#if !COPIES_ROWS
        // A warp that had no chunk of this unit.
        if (unit.begin + warp >= unit.end) next_x = load_rows(a, next.begin + warp);
#endif
        write_unit(sums, a, unit.output, number % CUTS, results);
        unit = next;
    }
}
