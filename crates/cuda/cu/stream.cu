// out = x * wᵀ for few rows, where reading the weights is everything. A unit is OUTPUTS outputs for all rows and one of
// `parts` stretches of the columns, whose sums lie apart: whoever reads them adds them. A block has some units, one
// after another; its warps take turns in cutting a stretch into chunks of 32 columns:
//
//   out[16 outputs][8 rows] += w[16][16] * x[16][8]
//
// A sum does not depend on the order of its columns: lane t of a row's four loads eight columns at once, and what
// the tensor cores take for columns 2t, 2t+1, 2t+8 and 2t+9 are the first four of these, then the others.
//
// Weights are copied into shared memory DEPTH chunks ahead, across units, and from before the kernel before this one has
// ended. A lane copies what it multiplies itself, so that no one waits for others.
#include "number.cuh"

#define OUTPUTS (16 * SIXTEENS)
#define CHUNK 32
#define TILES ((ROWS + 7) / 8)
// Eights of outputs, each 16 bytes for every lane.
#define EIGHTS (2 * SIXTEENS)
#define CHUNK_BYTES (EIGHTS * 32 * 16)
// So that neighbouring outputs lie in different banks.
#define LINE 9

struct Args {
    const u16* x;
    const u16* w;
    float* out;
    u32 outputs;
    u32 cols;
    u32 parts;
    int precision;
};

struct Unit {
    // The first output; chunks [begin, end).
    u32 output, begin, end;
};

FN u32 count_units(const Args& a) { return (a.outputs + OUTPUTS - 1) / OUTPUTS * a.parts; }
FN Unit unit_at(const Args& a, u32 unit) {
    const u32 chunks = (a.cols + CHUNK - 1) / CHUNK, each = (chunks + a.parts - 1) / a.parts;
    const u32 begin = unit % a.parts * each, end = begin + each;
    return {unit / a.parts * OUTPUTS, begin, end < chunks ? end : chunks};
}

// A warp's walk over its chunks of all units of its block.
struct Fetch {
    char* ring;
    u32 number, fetched;
    Unit unit;
    u32 chunk;
};

FN void start_unit(Fetch& f, const Args& a, u32 number) {
    f.number = number;
    f.unit = unit_at(a, number);
    f.chunk = f.unit.begin + (thread_id() >> 5);
}

// Starts copying the next chunk, if there is one.
FN void fetch_next(Fetch& f, const Args& a) {
    while (f.chunk >= f.unit.end && f.number < count_units(a)) start_unit(f, a, f.number + grid_blocks());
    if (f.number < count_units(a)) {
        const u32 lane = thread_id() & 31, column = f.chunk * CHUNK + 8 * (lane & 3);
        char* to = f.ring + f.fetched % DEPTH * CHUNK_BYTES + lane * 16;
#pragma unroll
        for (int i = 0; i < EIGHTS; i++) {
            const u32 output = f.unit.output + 8 * i + (lane >> 2);
            const bool real = output < a.outputs && column < a.cols;
            copy16(to + i * 512, real ? a.w + (u64)output * a.cols + column : a.w, real ? 16 : 0);
        }
        f.fetched++, f.chunk += WARPS;
    }
    copies_commit();
}

struct Rows {
    Four v[TILES];
};
FN void load_rows(Rows& x, const Args& a, u32 chunk) {
    const u32 lane = thread_id() & 31, column = chunk * CHUNK + 8 * (lane & 3);
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        const u32 row = 8 * tile + (lane >> 2);
        const bool real = row < ROWS && column < a.cols;
        x.v[tile] = real ? *(const Four*)(a.x + (u64)row * a.cols + column) : Four{0, 0, 0, 0};
    }
}

FN void multiply(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1, int precision) {
    const u32 w[4] = {a0, a1, a2, a3};
    if (precision == BF16) multiply_bf16(c, w, b0, b1);
    else multiply_f16(c, w, b0, b1);
}

FN void add_chunk(float (&sums)[SIXTEENS][TILES][4], const char* chunk, const Rows& x, int precision) {
#pragma unroll
    for (int i = 0; i < SIXTEENS; i++) {
        const Four p = *(const Four*)(chunk + i * 1024), q = *(const Four*)(chunk + i * 1024 + 512);
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            multiply(sums[i][tile], p.x, q.x, p.y, q.y, x.v[tile].x, x.v[tile].y, precision);
            multiply(sums[i][tile], p.z, q.z, p.w, q.w, x.v[tile].z, x.v[tile].w, precision);
        }
    }
}

// From the warps' sums to a unit's results.
FN void write_unit(const float (&sums)[SIXTEENS][TILES][4], const Args& a, u32 output, u32 part, float* shared) {
    const u32 warp = thread_id() >> 5, lane = thread_id() & 31, g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        sync_block();
#pragma unroll
        for (int i = 0; i < SIXTEENS; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                shared[(warp * OUTPUTS + 16 * i + g + 8 * (j >> 1)) * LINE + 2 * t + (j & 1)] = sums[i][tile][j];
        sync_block();
        for (u32 i = thread_id(); i < OUTPUTS * 8; i += WARPS * 32) {
            const u32 own = i % OUTPUTS, row = 8 * tile + i / OUTPUTS;
            float sum = 0.f;
#pragma unroll
            for (int other = 0; other < WARPS; other++) sum += shared[(other * OUTPUTS + own) * LINE + i / OUTPUTS];
            if (row < ROWS && output + own < a.outputs) a.out[((u64)part * ROWS + row) * a.outputs + output + own] = sum;
        }
    }
}

KERNEL(stream, Args, WARPS * 32, MIN_BLOCKS) {
    DYNAMIC_SHARED(shared);
    let_next_start();
    const u32 warp = thread_id() >> 5, lane = thread_id() & 31;
    float* results = (float*)(shared + WARPS * DEPTH * CHUNK_BYTES);
    Fetch fetch;
    fetch.ring = shared + warp * DEPTH * CHUNK_BYTES, fetch.fetched = 0;
    start_unit(fetch, a, block_id());
#pragma unroll
    for (int i = 0; i < DEPTH - 1; i++) fetch_next(fetch, a);
    after_previous();
    u32 folded = 0;
    Unit unit = unit_at(a, block_id());
    Rows x;
    load_rows(x, a, unit.begin + warp);
    for (u32 number = block_id(); number < count_units(a); number += grid_blocks()) {
        float sums[SIXTEENS][TILES][4];
#pragma unroll
        for (int i = 0; i < SIXTEENS * TILES * 4; i++) sums[i / 4 / TILES][i / 4 % TILES][i % 4] = 0.f;
        const u32 output = unit.output;
        const Unit next = unit_at(a, number + grid_blocks());
        for (u32 chunk = unit.begin + warp; chunk < unit.end; chunk += WARPS) {
            const bool last = chunk + WARPS >= unit.end;
            Rows next_x;
            load_rows(next_x, a, last ? next.begin + warp : chunk + WARPS);
            copies_wait<DEPTH - 2>();
            add_chunk(sums, fetch.ring + folded % DEPTH * CHUNK_BYTES + lane * 16, x, a.precision);
            fetch_next(fetch, a);
            x = next_x, folded++;
        }
        if (unit.begin + warp >= unit.end) load_rows(x, a, next.begin + warp);
        unit = next;
        write_unit(sums, a, output, number % a.parts, results);
    }
}
