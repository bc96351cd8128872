// Moves runs of bytes from one arrangement to another: grid (first axis, the three others). A run's place is the sum of
// its four numbers, each times a stride; along the first axis lists may say other numbers than 0, 1, ...
#include "device.cuh"

struct Args {
    const u8* from;
    u8* to;
    const u32* from_numbers;
    const u32* to_numbers;
    u64 from_strides[4];
    u64 to_strides[4];
    // Of the last three axes.
    u32 counts[3];
    // Bytes of a run, and how many of them move at once: 16, 4, 2 or 1.
    u32 bytes;
    u32 unit;
    u32 unused;
};

template <class T> FN void copy_run(u8* to, const u8* from, u32 bytes) {
    for (u32 i = thread_id(); i < bytes / sizeof(T); i += block_threads()) ((T*)to)[i] = ((const T*)from)[i];
}

KERNEL(move, Args, 128, 1) {
    const u32 i = block_id(), rest = block_id_y();
    const u32 numbers[3] = {rest / a.counts[2] / a.counts[1], rest / a.counts[2] % a.counts[1], rest % a.counts[2]};
    u64 from = (a.from_numbers ? a.from_numbers[i] : i) * a.from_strides[0];
    u64 to = (a.to_numbers ? a.to_numbers[i] : i) * a.to_strides[0];
    for (int axis = 0; axis < 3; axis++) {
        from += numbers[axis] * a.from_strides[axis + 1];
        to += numbers[axis] * a.to_strides[axis + 1];
    }
    if (a.unit == 16) copy_run<Four>(a.to + to, a.from + from, a.bytes);
    else if (a.unit == 4) copy_run<u32>(a.to + to, a.from + from, a.bytes);
    else if (a.unit == 2) copy_run<u16>(a.to + to, a.from + from, a.bytes);
    else copy_run<u8>(a.to + to, a.from + from, a.bytes);
}
