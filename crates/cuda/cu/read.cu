// Reads everything once and keeps nothing: the ceiling of what a memory-bound kernel can reach.
#include "device.cuh"

struct Args {
    const Four* from;
    u64 count;
    u32* out;
};

FN u32 mix(Four v) { return v.x ^ v.y ^ v.z ^ v.w; }

KERNEL(read, Args, 1024, 1) {
    const u64 step = (u64)grid_blocks() * block_threads();
    u64 i = (u64)block_id() * block_threads() + thread_id();
    u32 sum = 0;
    for (; i + 3 * step < a.count; i += 4 * step) {
        Four v[4];
        for (int j = 0; j < 4; j++) v[j] = load_streaming(a.from + i + j * step);
        for (int j = 0; j < 4; j++) sum += mix(v[j]);
    }
    for (; i < a.count; i += step) sum += mix(load_streaming(a.from + i));
    if (sum == 0x12345678u) a.out[0] = sum;
}
