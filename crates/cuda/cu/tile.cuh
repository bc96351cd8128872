// A tile: sixteen positions of one head, aligned to position 0, keys and values as stored, in shared memory.
// Rows are apart by an odd number of 16-byte units, so that the eight rows of a matrix load touch all banks.
#include "codec.cuh"
#include "place.cuh"

#define TILE 16
#define ROW_BYTES (HEAD_DIM * ELEMENT_BYTES)
#define UNITS (ROW_BYTES / 16)
#define ROW_STRIDE (16 * (UNITS | 1))
#define HALF_BYTES (TILE * ROW_STRIDE)
// Keys, values, and for the quantised the parameters of both.
#define STAGE_BYTES (2 * HALF_BYTES + (QUANTISED ? 128 : 0))

// The keys' scores and the weights of values are multiplied in this precision.
#if KV == KV_BF16
FN u32 pack(float low, float high) { return pack_bf16(low, high); }
FN float rounded(float x) { return from_bf16(to_bf16(x)); }
FN void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) { multiply_bf16(c, a, b0, b1); }
#else
FN u32 pack(float low, float high) { return pack_f16(low, high); }
FN float rounded(float x) { return from_f16(to_f16(x)); }
FN void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) { multiply_f16(c, a, b0, b1); }
#endif

// Four stored bytes as two pairs of f16: as they are (fp8), or less 128 (int8).
FN void widen(u32 bytes, u32& low, u32& high) {
#if KV == KV_FP8
    low = e4m3_to_f16(bytes), high = e4m3_to_f16(bytes >> 16);
#else
    low = subtract_f16(permute_bytes(bytes, 0x64646464u, 0x4140), 0x64806480u);
    high = subtract_f16(permute_bytes(bytes, 0x64646464u, 0x4342), 0x64806480u);
#endif
}

// Which elements of a 16-element step a lane's pair of the query goes with: `pair` 0 or 1.
FN int query_element(int pair) {
    const int t = thread_id() & 3;
    return QUANTISED ? 4 * t + 2 * pair : 2 * t + 8 * pair;
}
// Which dimension of a 16-dimension step a lane's result row (0: lane / 4, 1: that plus 8) is.
FN int value_dimension(int row) {
    const int g = (thread_id() & 31) >> 2;
    return QUANTISED ? 2 * g + row : g + 8 * row;
}

// Keys [16 positions][16 dims] for each step of 16 dims, as the first operand of a product.
#if KV == KV_F32
FN void load_keys(u32 (&k)[HEAD_DIM / 16][4], const char* keys) {
    const int g = (thread_id() & 31) >> 2, t = thread_id() & 3;
    for (int step = 0; step < HEAD_DIM / 16; step++)
        for (int i = 0; i < 4; i++) {
            const float* p = (const float*)(keys + (g + 8 * (i & 1)) * ROW_STRIDE) + step * 16 + 2 * t + 8 * (i >> 1);
            k[step][i] = pack(p[0], p[1]);
        }
}
FN void load_values(u32 (&v)[HEAD_DIM / 16][4], const char* values) {
    const int g = (thread_id() & 31) >> 2, t = thread_id() & 3;
    for (int step = 0; step < HEAD_DIM / 16; step++)
        for (int i = 0; i < 4; i++) {
            const char* p = values + (2 * t + 8 * (i >> 1)) * ROW_STRIDE + (step * 16 + g + 8 * (i & 1)) * 4;
            v[step][i] = pack(*(const float*)p, *(const float*)(p + ROW_STRIDE));
        }
}
#elif !QUANTISED
FN void load_keys(u32 (&k)[HEAD_DIM / 16][4], const char* keys) {
    const int lane = thread_id() & 31;
    const char* p = keys + (lane & 15) * ROW_STRIDE + (lane >> 4) * 16;
#pragma unroll
    for (int step = 0; step < HEAD_DIM / 16; step++) load_matrices(k[step], p + step * 32);
}
// Values transposed, [16 dims][16 positions].
FN void load_values(u32 (&v)[HEAD_DIM / 16][4], const char* values) {
    const int lane = thread_id() & 31;
    const char* p = values + ((lane & 7) + (lane >> 4) * 8) * ROW_STRIDE + ((lane >> 3) & 1) * 16;
#pragma unroll
    for (int step = 0; step < HEAD_DIM / 16; step++) load_matrices_transposed(v[step], p + step * 32);
}
#else
// One load has two steps: a lane's four bytes are four neighbours of a row.
FN void load_keys(u32 (&k)[HEAD_DIM / 16][4], const char* keys) {
    const int lane = thread_id() & 31;
    const char* p = keys + (lane & 15) * ROW_STRIDE + (lane >> 4) * 16;
#pragma unroll
    for (int step = 0; step < HEAD_DIM / 16; step += 2) {
        u32 r[4];
        load_matrices(r, p + step * 16);
        widen(r[0], k[step][0], k[step][2]);
        widen(r[1], k[step][1], k[step][3]);
        if (step + 1 < HEAD_DIM / 16) {
            widen(r[2], k[step + 1][0], k[step + 1][2]);
            widen(r[3], k[step + 1][1], k[step + 1][3]);
        }
    }
}
// Transposed by pairs of bytes: a lane's four are two dimensions of two positions.
FN void load_values(u32 (&v)[HEAD_DIM / 16][4], const char* values) {
    const int lane = thread_id() & 31;
    const char* p = values + ((lane & 7) + ((lane >> 3) & 1) * 8) * ROW_STRIDE + (lane >> 4) * 16;
#pragma unroll
    for (int step = 0; step < HEAD_DIM / 16; step += 2) {
        u32 r[4];
        load_matrices_transposed(r, p + step * 16);
        widen(permute_bytes(r[0], 0, 0x3120), v[step][0], v[step][1]);
        widen(permute_bytes(r[1], 0, 0x3120), v[step][2], v[step][3]);
        if (step + 1 < HEAD_DIM / 16) {
            widen(permute_bytes(r[2], 0, 0x3120), v[step + 1][0], v[step + 1][1]);
            widen(permute_bytes(r[3], 0, 0x3120), v[step + 1][2], v[step + 1][3]);
        }
    }
}
#endif

// Starts copying the rows [from, to) of a tile into `stage`, by one warp; the others become zeros. `page_of(row)` and
// `slot_of(row)` say where a row lies; without SMALL_PAGES they are asked for row 0 alone.
template <class PageOf, class SlotOf>
FN void fetch_tile(char* stage, const Place& place, u32 head, int from, int to, PageOf page_of, SlotOf slot_of) {
    const int lane = thread_id() & 31;
    u32 page = page_of(0), slot = slot_of(0);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const u8* base = row_at(place, half, head, page, slot);
#pragma unroll
        for (int at = lane; at < TILE * UNITS; at += 32) {
            const int row = at / UNITS, unit = at % UNITS;
            const bool wanted = row >= from && row < to;
            const u8* source = base + at * 16;
            if (SMALL_PAGES) source = wanted ? row_at(place, half, head, page_of(row), slot_of(row)) + unit * 16 : place.arena;
            copy16(stage + half * HALF_BYTES + row * ROW_STRIDE + unit * 16, source, wanted ? 16 : 0);
        }
    }
    if (QUANTISED) {
        const int half = lane >> 4, row = lane & 15;
        const bool wanted = row >= from && row < to;
        const u8* source = parameters_at(place, half, head, page, slot) + row * 4;
        if (SMALL_PAGES) source = wanted ? parameters_at(place, half, head, page_of(row), slot_of(row)) : place.arena;
        copy4(stage + 2 * HALF_BYTES + lane * 4, source, wanted ? 4 : 0);
    }
}
