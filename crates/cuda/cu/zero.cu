// Zeroes pages: grid (pages, parts of a page).
#include "device.cuh"

struct Args {
    u8* arena;
    const u32* pages;
    u64 page_bytes;
    u64 parts;
};

KERNEL(zero, Args, 256, 1) {
    u8* page = a.arena + a.pages[block_id()] * a.page_bytes;
    const u64 step = a.parts * block_threads() * 4;
    for (u64 i = ((u64)block_id_y() * block_threads() + thread_id()) * 4; i < a.page_bytes; i += step)
        *(u32*)(page + i) = 0;
}
