// Copies the first slots of pages to other pages, in all planes: grid (copies, planes). No page is both read and written.
#include "device.cuh"

struct Args {
    u8* arena;
    // from, to, slots.
    const u32* copies;
    u64 page_bytes;
    u64 parameters;
    u32 page_size;
    u32 row_bytes;
    u32 parameter_bytes;
    int unused;
};

FN void copy_words(u8* to, const u8* from, u32 bytes) {
    for (u32 i = thread_id() * 4; i < bytes; i += block_threads() * 4) *(u32*)(to + i) = *(const u32*)(from + i);
}

KERNEL(copy, Args, 128, 1) {
    const u32* copy = a.copies + 3 * block_id();
    const u64 plane = (u64)block_id_y() * a.page_size;
    const u8* from = a.arena + copy[0] * a.page_bytes;
    u8* to = a.arena + copy[1] * a.page_bytes;
    const u64 rows = plane * a.row_bytes, parameters = a.parameters + plane * a.parameter_bytes;
    copy_words(to + rows, from + rows, copy[2] * a.row_bytes);
    copy_words(to + parameters, from + parameters, copy[2] * a.parameter_bytes);
}
