// out = x * wᵀ for several rows, where reading the weights is everything, as in stream.cu. A unit is OUTPUTS outputs for
// all rows and one of CUTS stretches of the columns, whose sums lie apart: whoever reads them adds them. A block has
// units of one stretch, one after another; its warps take turns in cutting the stretch into chunks of 32 columns:
//
//   out[16 outputs][8 rows] += w[16][16] * x[16][8]
//
// A sum does not depend on the order of its columns: lane t of a row's four loads eight columns at once, and what
// the tensor cores take for columns 2t, 2t+1, 2t+8 and 2t+9 are the first four of these, then the others.
//
// Weights are copied into shared memory, DEPTH chunks ahead, across units, and from before the kernel before this one
// has ended; rows are loaded GROUP chunks at once, while those before are multiplied. A lane copies what it multiplies
// itself, so that no one waits for others. ONCE says that a block has one unit, and a warp no more than one group of it:
// there is then nothing to do between the rows' coming and their products.
#include "product.cuh"

#define CHUNK 32
#define TILES ((ROWS + 7) / 8)
// In a chunk every lane has 16 bytes for each eight of outputs.
#define CHUNK_BYTES (2 * SIXTEENS * 512)

// What a block has: chunks [begin, end) of every `step`th of the tiles of outputs.
struct Share {
    u32 part, begin, end, first, step, tiles;
};
FN Share share_of(const Args& a) {
    const u32 chunks = (a.cols + CHUNK - 1) / CHUNK, each = (chunks + CUTS - 1) / CUTS;
    Share s;
    s.part = block_id() % CUTS, s.begin = s.part * each, s.end = s.begin + each;
    if (s.end > chunks) s.end = chunks;
    s.first = block_id() / CUTS, s.step = grid_blocks() / CUTS;
    s.tiles = (a.outputs + OUTPUTS - 1) / OUTPUTS;
    return s;
}
FN u32 warp_id() { return thread_id() >> 5; }
FN u32 group_of_lane() { return (thread_id() & 31) >> 2; }
FN u32 column_of(u32 chunk) { return chunk * CHUNK + 8 * (thread_id() & 3); }

FN void copy_chunk(const Args& a, u32 tile, u32 chunk, char* to) {
    const u32 column = column_of(chunk), first = tile * OUTPUTS + group_of_lane();
    const u16* from = a.w + (u64)(row_of_eight(a, tile * 2 * SIXTEENS) + group_of_lane()) * a.cols + column;
#pragma unroll
    for (int i = 0; i < 2 * SIXTEENS; i++) {
        const bool real = first + 8 * i < a.outputs && column < a.cols;
        copy16(to + i * 512, real ? from + row_of_eight(a, i) * a.cols : a.w, real ? 16 : 0);
    }
}

struct Rows {
    Four v[TILES];
};
FN Rows load_rows(const Args& a, const Share& s, u32 chunk) {
    const u32 column = column_of(chunk);
    const u16* from = a.x + group_of_lane() * a.cols + column;
    Rows x;
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        const bool real = 8 * tile + group_of_lane() < ROWS && column < a.cols && chunk < s.end;
        x.v[tile] = real ? *(const Four*)(from + tile * 8 * a.cols) : Four{0, 0, 0, 0};
    }
    return x;
}

typedef float Sums[SIXTEENS][TILES][4];

FN void add_chunk(Sums& sums, const char* chunk, const Rows& x) {
#pragma unroll
    for (int i = 0; i < SIXTEENS; i++) {
        const Four p = *(const Four*)(chunk + i * 1024), q = *(const Four*)(chunk + i * 1024 + 512);
        const u32 low[4] = {p.x, q.x, p.y, q.y}, high[4] = {p.z, q.z, p.w, q.w};
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            if (SHORT == BF16) {
                multiply_bf16(sums[i][tile], low, x.v[tile].x, x.v[tile].y);
                multiply_bf16(sums[i][tile], high, x.v[tile].z, x.v[tile].w);
            } else {
                multiply_f16(sums[i][tile], low, x.v[tile].x, x.v[tile].y);
                multiply_f16(sums[i][tile], high, x.v[tile].z, x.v[tile].w);
            }
        }
    }
}

// From the warps' sums to a unit's results.
FN void write_unit(const Sums& sums, const Args& a, u32 output, u32 part, float* shared) {
    const u32 g = group_of_lane(), t = thread_id() & 3;
    // Until what lay there has been read.
    sync_block();
#pragma unroll
    for (int i = 0; i < SIXTEENS * TILES * 4; i++) {
        const u32 row = 8 * (i / 4 % TILES) + 2 * t + i % 2, own = 16 * (i / 4 / TILES) + g + 8 * (i / 2 % 2);
        if (row < ROWS) shared[(warp_id() * ROWS + row) * LINE + own] = sums[i / 4 / TILES][i / 4 % TILES][i % 4];
    }
    sync_block();
    write_results(a, shared, output, part);
}

FN void clear(Sums& sums) {
#pragma unroll
    for (int i = 0; i < SIXTEENS * TILES * 4; i++) sums[i / 4 / TILES][i / 4 % TILES][i % 4] = 0.f;
}

#if ONCE
FN void add_group(Sums& sums, const char* ring, const Rows (&x)[GROUP], u32 count) {
    copies_wait<0>();
#pragma unroll
    for (int i = 0; i < GROUP; i++)
        if (i < count) add_chunk(sums, ring + i * CHUNK_BYTES, x[i]);
}

KERNEL(several, Args, WARPS * 32, MIN_BLOCKS) {
    DYNAMIC_SHARED(shared);
    let_next_start();
    const Share s = share_of(a);
    char* const ring = shared + warp_id() * GROUP * CHUNK_BYTES + (thread_id() & 31) * 16;
    const u32 first = s.begin + warp_id(), count = first < s.end ? (s.end - first + WARPS - 1) / WARPS : 0;
#pragma unroll 1
    for (int i = 0; i < GROUP; i++)
        if (i < count) copy_chunk(a, s.first, first + i * WARPS, ring + i * CHUNK_BYTES);
    copies_commit();
    after_previous();
    Rows x[GROUP];
#pragma unroll
    for (int i = 0; i < GROUP; i++) x[i] = load_rows(a, s, first + i * WARPS);
    Sums sums;
    clear(sums);
    add_group(sums, ring, x, count);
    write_unit(sums, a, s.first * OUTPUTS, s.part, (float*)shared);
}
#else
// A warp's walk over its chunks of all units.
struct Walk {
    u32 tile, chunk;
};
FN void copy_next(Walk& w, const Args& a, const Share& s, char* to) {
    if (w.chunk >= s.end) w.tile += s.step, w.chunk = s.begin + warp_id();
    if (w.tile < s.tiles && w.chunk < s.end) copy_chunk(a, w.tile, w.chunk, to), w.chunk += WARPS;
    copies_commit();
}

FN void work(const Args& a, const Share& s, Walk& ahead, char* ring, float* results) {
    const u32 first = s.begin + warp_id();
    Rows x[GROUP];
#pragma unroll
    for (int i = 0; i < GROUP; i++) x[i] = load_rows(a, s, first + i * WARPS);
    char* chunk = ring;
    for (u32 tile = s.first; tile < s.tiles; tile += s.step) {
        Sums sums;
        clear(sums);
        for (u32 at = first; at < s.end; at += GROUP * WARPS) {
            Rows next[GROUP];
            const u32 after = at + GROUP * WARPS < s.end ? at + GROUP * WARPS : first;
#pragma unroll
            for (int i = 0; i < GROUP; i++) next[i] = load_rows(a, s, after + i * WARPS);
#pragma unroll
            for (int i = 0; i < GROUP; i++) {
                if (at + i * WARPS >= s.end) break;
                copies_wait<DEPTH - 1>();
                add_chunk(sums, chunk, x[i]);
                copy_next(ahead, a, s, chunk);
                chunk = chunk + CHUNK_BYTES == ring + DEPTH * CHUNK_BYTES ? ring : chunk + CHUNK_BYTES;
            }
#pragma unroll
            for (int i = 0; i < GROUP; i++) x[i] = next[i];
        }
        write_unit(sums, a, tile * OUTPUTS, s.part, results);
    }
}

KERNEL(several, Args, WARPS * 32, MIN_BLOCKS) {
    DYNAMIC_SHARED(shared);
    let_next_start();
    const Share s = share_of(a);
    char* const ring = shared + warp_id() * DEPTH * CHUNK_BYTES + (thread_id() & 31) * 16;
    // The results of a block's only unit may lie where its weights were.
    const bool one = s.first + s.step >= s.tiles;
    float* results = (float*)(shared + (one ? 0 : WARPS * DEPTH * CHUNK_BYTES));
    Walk ahead = {s.first, s.begin + warp_id()};
#pragma unroll 1
    for (int i = 0; i < DEPTH; i++) copy_next(ahead, a, s, ring + i * CHUNK_BYTES);
    after_previous();
    work(a, s, ahead, ring, results);
}
#endif
