// Numbers in buffers of several precisions.
#include "device.cuh"

// As in precision.rs.
#define F32 0
#define BF16 1
#define F16 2

// Whether numbers come by fours alone, each at a multiple of four. What a kernel is not told leaves more code, with
// which steps were slower.
#ifndef WHOLE_FOURS
#define WHOLE_FOURS 0
#endif

#define INFINITE as_float(0x7f800000u)

FN float from_bf16(u16 x) { return as_float((u32)x << 16); }
FN u16 to_bf16(float x) { return (u16)(pack_bf16(x, 0.f) & 0xffffu); }

struct alignas(8) Two {
    u32 x, y;
};

FN float load(const void* p, int precision, u64 i) {
    if (precision == F32) return ((const float*)p)[i];
    u16 x = ((const u16*)p)[i];
    return precision == BF16 ? from_bf16(x) : from_f16(x);
}
FN void store(void* p, int precision, u64 i, float x) {
    if (precision == F32) ((float*)p)[i] = x;
    else ((u16*)p)[i] = precision == BF16 ? to_bf16(x) : to_f16(x);
}

FN bool are_whole(u64 i, u32 count) { return WHOLE_FOURS || (count == 4 && i % 4 == 0); }
// Four numbers at `i`, of which `count` are there (the others are 0); at once where that can be.
FN void load_four(float (&x)[4], const void* p, int precision, u64 i, u32 count) {
    if (WHOLE_FOURS && count == 0) {
        x[0] = x[1] = x[2] = x[3] = 0.f;
    } else if (precision == F32 && are_whole(i, count)) {
        const Four v = *(const Four*)((const float*)p + i);
        x[0] = as_float(v.x), x[1] = as_float(v.y), x[2] = as_float(v.z), x[3] = as_float(v.w);
    } else if (precision != F32 && are_whole(i, count)) {
        const Two v = ((const Two*)p)[i / 4];
        const u16 bits[4] = {(u16)v.x, (u16)(v.x >> 16), (u16)v.y, (u16)(v.y >> 16)};
#pragma unroll
        for (u32 j = 0; j < 4; j++) x[j] = precision == BF16 ? from_bf16(bits[j]) : from_f16(bits[j]);
    } else {
#pragma unroll
        for (u32 j = 0; j < 4; j++) x[j] = j < count ? load(p, precision, i + j) : 0.f;
    }
}
#ifdef PARTS
// The sum of a product's parts, in precision PRODUCT, that are `size` apart: all are loaded at once.
FN void load_parts(float (&x)[4], const void* p, u64 i, u32 count, u64 size) {
    float parts[PARTS][4];
#pragma unroll
    for (int part = 0; part < PARTS; part++) load_four(parts[part], p, PRODUCT, part * size + i, count);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        x[j] = parts[0][j];
#pragma unroll
        for (int part = 1; part < PARTS; part++) x[j] += parts[part][j];
    }
}
#endif
FN void store_four(void* p, int precision, u64 i, const float (&x)[4], u32 count) {
    if (WHOLE_FOURS && count == 0) return;
    if (precision == F32 && are_whole(i, count)) {
        *(Four*)((float*)p + i) = Four{as_bits(x[0]), as_bits(x[1]), as_bits(x[2]), as_bits(x[3])};
    } else if (precision != F32 && are_whole(i, count)) {
        const bool bf16 = precision == BF16;
        ((Two*)p)[i / 4] = Two{bf16 ? pack_bf16(x[0], x[1]) : pack_f16(x[0], x[1]),
                               bf16 ? pack_bf16(x[2], x[3]) : pack_f16(x[2], x[3])};
    } else {
#pragma unroll
        for (u32 j = 0; j < 4; j++)
            if (j < count) store(p, precision, i + j, x[j]);
    }
}

// N numbers at `i`, a multiple of N; fours at once.
template <int N> FN void load_some(float (&x)[N], const void* p, int precision, u64 i) {
    if (N % 4 == 0) {
#pragma unroll
        for (int j = 0; j < N; j += 4) load_four((float(&)[4])x[j], p, precision, i + j, 4);
    } else {
        for (int j = 0; j < N; j++) x[j] = load(p, precision, i + j);
    }
}
template <int N> FN void store_some(void* p, int precision, u64 i, const float (&x)[N]) {
    if (N % 4 == 0) {
#pragma unroll
        for (int j = 0; j < N; j += 4) store_four(p, precision, i + j, (const float(&)[4])x[j], 4);
    } else {
        for (int j = 0; j < N; j++) store(p, precision, i + j, x[j]);
    }
}

// Of LANES neighbours, in each of them.
template <int LANES> FN float lanes_sum(float x) {
    for (int mask = LANES / 2; mask > 0; mask >>= 1) x += shuffle_xor(x, mask);
    return x;
}
template <int LANES> FN float lanes_max(float x) {
    for (int mask = LANES / 2; mask > 0; mask >>= 1) x = fmaxf(x, shuffle_xor(x, mask));
    return x;
}
FN float warp_sum(float x) { return lanes_sum<32>(x); }
FN float warp_max(float x) { return lanes_max<32>(x); }
// Sums over the block, once, in every thread; `scratch` holds as many a warp. Their order depends on the block alone.
template <int N> FN void block_sums(float (&x)[N], float (&scratch)[N][32]) {
    const int warp = thread_id() >> 5, lane = thread_id() & 31;
#pragma unroll
    for (int i = 0; i < N; i++) x[i] = warp_sum(x[i]);
#pragma unroll
    for (int i = 0; i < N; i++)
        if (lane == 0) scratch[i][warp] = x[i];
    sync_block();
#pragma unroll
    for (int i = 0; i < N; i++) x[i] = warp_sum(lane < block_threads() >> 5 ? scratch[i][lane] : 0.f);
}
