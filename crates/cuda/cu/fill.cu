// Random bytes or numbers of -1..1 for benches: a hash of the index.
#include "number.cuh"

struct Args {
    void* out;
    u64 count;
    u32 seed;
    // A precision of number.cuh; 3: bytes below 0x70.
    int precision;
    float size;
    int unused;
};

FN u32 hash(u32 x) {
    x ^= x >> 16, x *= 0x7feb352du, x ^= x >> 15, x *= 0x846ca68bu;
    return x ^ x >> 16;
}

KERNEL(fill, Args, 256, 1) {
    const u64 step = (u64)grid_blocks() * block_threads();
    for (u64 i = (u64)block_id() * block_threads() + thread_id(); i < a.count; i += step) {
        u32 h = hash((u32)i ^ hash(a.seed + (u32)(i >> 32) * 0x9e3779b9u));
        if (a.precision == 3) ((u8*)a.out)[i] = (u8)((h >> 8) % 0x70u) | (u8)(h & 0x80u);
        else store(a.out, a.precision, i, a.size * ((float)((int)(h >> 24) - 128) * (1.f / 128.f)));
    }
}
