// How keys and values are stored: the same bits as octavo_backend::codec, see there for the definitions.
#include "number.cuh"

// As in kernels.rs.
#define KV_F32 0
#define KV_F16 1
#define KV_BF16 2
#define KV_FP8 3
#define KV_INT8 4

#if KV == KV_F32
#define ELEMENT_BYTES 4
#elif KV == KV_F16 || KV == KV_BF16
#define ELEMENT_BYTES 2
#else
#define ELEMENT_BYTES 1
#endif
#define QUANTISED (KV == KV_FP8 || KV == KV_INT8)

FN bool is_finite(float x) { return (as_bits(x) & 0x7f800000u) != 0x7f800000u; }

// The nearest E4M3, ties to even, saturating; NaN becomes 0x7f.
FN u8 to_e4m3(float x) {
    if (x != x) return 0x7f;
    u32 sign = (as_bits(x) >> 24) & 0x80u;
    float magnitude = fminf(fabsf(x), 448.f);
    u32 rounded;
    if (magnitude < 1.f / 64.f) {
        rounded = (u32)rintf(magnitude * 512.f);
    } else {
        u32 bits = as_bits(magnitude) - (120u << 23);
        rounded = (bits + 0x7ffffu + ((bits >> 20) & 1u)) >> 20;
    }
    return (u8)(sign | rounded);
}

// The largest f16 not above x, within the finite ones; never -0.
FN u16 f16_below(float x) {
    x = fmaxf(x, -65504.f) + 0.f;
    u16 near = to_f16(x);
    if ((near & 0x7fffu) == 0x7c00u) return 0x7bff;
    if (from_f16(near) <= x) return near;
    if (near == 0) return 0x8001;
    return near & 0x8000u ? near + 1 : near - 1;
}
// The smallest f16 not below x, for x >= 0, at most 65504.
FN u16 f16_above(float x) {
    x = fminf(x, 65504.f);
    u16 near = to_f16(x);
    return from_f16(near) >= x ? near : near + 1;
}

// The parameters of a row whose elements LANES lanes hold, N each.
template <int LANES, int N> FN u32 parameters_of(const float (&x)[N]) {
#if KV == KV_FP8
    float largest = 0.f, nan = 0.f;
    for (int i = 0; i < N; i++) {
        if (x[i] != x[i]) nan = 1.f;
        if (is_finite(x[i])) largest = fmaxf(largest, fabsf(x[i]));
    }
    nan = lanes_max<LANES>(nan), largest = lanes_max<LANES>(largest);
    if (nan != 0.f) return 0x7fc00000u;
    float scale = largest / 448.f;
    return as_bits(scale < as_float(0x00800000u) ? 1.f : scale);
#elif KV == KV_INT8
    float low = INFINITE, high = -INFINITE, nan = 0.f;
    for (int i = 0; i < N; i++) {
        if (x[i] != x[i]) nan = 1.f;
        if (is_finite(x[i])) low = fminf(low, x[i]), high = fmaxf(high, x[i]);
    }
    low = -lanes_max<LANES>(-low), high = lanes_max<LANES>(high), nan = lanes_max<LANES>(nan);
    if (nan != 0.f) return 0x7e000000u;
    if (low > high) return 0;
    u16 zero = f16_below(low);
    u16 scale = f16_above((high - from_f16(zero)) / 255.f);
    return (u32)scale | (u32)zero << 16;
#else
    return 0;
#endif
}

#if QUANTISED
FN u8 to_byte(float x, u32 parameters) {
#if KV == KV_FP8
    return to_e4m3(x / as_float(parameters));
#else
    float scale = from_f16((u16)parameters), zero = from_f16((u16)(parameters >> 16));
    return scale == 0.f ? 0 : (u8)fminf(fmaxf(rintf((x - zero) / scale), 0.f), 255.f);
#endif
}
#else
#define KV_PRECISION (KV == KV_F32 ? F32 : KV == KV_F16 ? F16 : BF16)
#endif

// Stores N elements from i of the row at `row`, fours at once.
template <int N> FN void encode(u8* row, int i, const float (&x)[N], u32 parameters) {
#if QUANTISED
    if (N % 4 == 0) {
#pragma unroll
        for (int j = 0; j < N; j += 4)
            *(u32*)(row + i + j) = to_byte(x[j], parameters) | to_byte(x[j + 1], parameters) << 8 |
                                   to_byte(x[j + 2], parameters) << 16 | (u32)to_byte(x[j + 3], parameters) << 24;
    } else {
        for (int j = 0; j < N; j++) row[i + j] = to_byte(x[j], parameters);
    }
#else
    store_some(row, KV_PRECISION, i, x);
#endif
}
