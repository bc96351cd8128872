// Random contents for benches: a hash of the index.
#include "number.cuh"

struct Args {
    void* out;
    u64 count;
    u32 seed;
    // A precision of number.cuh. 3: words of random bytes, finite as E4M3, in pages of `page_words`; those from word
    // `tail` of a page on are `tail_word`.
    int precision;
    float size;
    u32 tail_word;
    u64 page_words;
    u64 tail;
};

FN u32 hash(u32 x) {
    x ^= x >> 16, x *= 0x7feb352du, x ^= x >> 15, x *= 0x846ca68bu;
    return x ^ x >> 16;
}

KERNEL(fill, Args, 256, 1) {
    const u64 step = (u64)grid_blocks() * block_threads();
    for (u64 i = (u64)block_id() * block_threads() + thread_id(); i < a.count; i += step) {
        u32 h = hash((u32)i ^ hash(a.seed + (u32)(i >> 32) * 0x9e3779b9u));
        if (a.precision != 3) store(a.out, a.precision, i, a.size * ((float)((int)(h >> 24) - 128) * (1.f / 128.f)));
        else ((u32*)a.out)[i] = i % a.page_words < a.tail ? h & 0xb7b7b7b7u : a.tail_word;
    }
}
