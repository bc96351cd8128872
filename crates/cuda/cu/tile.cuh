// A tile: sixteen positions of one head, aligned to position 0, keys and values as stored, in shared memory.
// So that the eight rows of a matrix load touch all banks, the 16-byte units of a row change places by the row's
// number; where a row has no multiple of eight units, rows are apart by an odd number of units instead.
#include "codec.cuh"
#include "place.cuh"

#define TILE 16
#define ROW_BYTES (HEAD_DIM * ELEMENT_BYTES)
#define UNITS (ROW_BYTES / 16)
#define MIXED (UNITS % 8 == 0)
#define ROW_STRIDE (MIXED ? ROW_BYTES : 16 * (UNITS | 1))
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

FN int unit_at(int row, int unit) { return row * ROW_STRIDE + 16 * (MIXED ? unit ^ (row & 7) : unit); }

// Steps of 16 dimensions that one load brings.
#define PER_LOAD (QUANTISED ? 2 : 1)

// load_keys: [16 positions][16 dims], as the first operand of a product; of the second operand, 0 and 2 are the first
// eight positions, 1 and 3 the others. load_values: the same of [16 dims][16 positions].
#if KV == KV_F32
FN const float* element_at(const char* half, int row, int i) { return (const float*)(half + unit_at(row, i / 4)) + i % 4; }
FN void load_keys(u32 (&k)[PER_LOAD][4], const char* keys, int step) {
    const int g = (thread_id() & 31) >> 2, t = thread_id() & 3;
    for (int i = 0; i < 4; i++) {
        const float* p = element_at(keys, g + 8 * (i & 1), step * 16 + 2 * t + 8 * (i >> 1));
        k[0][i] = pack(p[0], p[1]);
    }
}
FN void load_values(u32 (&v)[PER_LOAD][4], const char* values, int step) {
    const int g = (thread_id() & 31) >> 2, t = thread_id() & 3;
    for (int i = 0; i < 4; i++) {
        const int row = 2 * t + 8 * (i >> 1), dim = step * 16 + g + 8 * (i & 1);
        v[0][i] = pack(*element_at(values, row, dim), *element_at(values, row + 1, dim));
    }
}
#elif !QUANTISED
FN void load_keys(u32 (&k)[PER_LOAD][4], const char* keys, int step) {
    const int lane = thread_id() & 31;
    load_matrices(k[0], keys + unit_at(lane & 15, 2 * step + (lane >> 4)));
}
FN void load_values(u32 (&v)[PER_LOAD][4], const char* values, int step) {
    const int lane = thread_id() & 31;
    load_matrices_transposed(v[0], values + unit_at((lane & 7) + (lane >> 4) * 8, 2 * step + ((lane >> 3) & 1)));
}
#else
// A lane's four bytes are four neighbours of a row.
FN void load_keys(u32 (&k)[PER_LOAD][4], const char* keys, int step) {
    const int lane = thread_id() & 31;
    u32 r[4];
    load_matrices(r, keys + unit_at(lane & 15, step + (lane >> 4)));
#pragma unroll
    for (int i = 0; i < 2; i++) {
        widen(r[2 * i], k[i][0], k[i][2]);
        widen(r[2 * i + 1], k[i][1], k[i][3]);
    }
}
// Transposed by pairs of bytes: a lane's four are two dimensions of two positions.
FN void load_values(u32 (&v)[PER_LOAD][4], const char* values, int step) {
    const int lane = thread_id() & 31;
    u32 r[4];
    load_matrices_transposed(r, values + unit_at(lane & 15, step + (lane >> 4)));
#pragma unroll
    for (int i = 0; i < 2; i++) {
        widen(permute_bytes(r[2 * i], 0, 0x3120), v[i][0], v[i][1]);
        widen(permute_bytes(r[2 * i + 1], 0, 0x3120), v[i][2], v[i][3]);
    }
}
#endif
