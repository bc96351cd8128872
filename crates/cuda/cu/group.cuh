// Products by a group of four warps. Each warp has sixteen lines of a[64][16], in registers as for `multiply`, and of the
// sums; all have b[16][N], which is in shared memory. Such products go on by themselves until they are waited for: until
// then neither their operands nor their sums are touched.
//
// A matrix in shared memory is cut into columns of 64 elements, 128 bytes of each row, one column after another; eight
// rows of a column lie at a multiple of 1024 bytes, and the eight 16-byte units of a row change places by its number.
#include "tile.cuh"

#define GROUP_ROW 128
#define GROUP_EIGHT (8 * GROUP_ROW)

// Where a unit of a row lies in a matrix of so many rows.
FN int group_unit_at(int row, int unit, int rows) { return (unit / 8 * rows + row) * GROUP_ROW + (unit % 8 ^ row % 8) * 16; }

#ifndef EMULATED
// As the hardware describes it: the address, from column to column, from eight rows to eight.
typedef u64 GroupMatrix;
FN GroupMatrix group_matrix(const char* at, u32 column_bytes) {
    return (u64)(shared_address(at) >> 4) | (u64)(column_bytes >> 4) << 16 | (u64)(GROUP_EIGHT >> 4) << 32 | 1ull << 62;
}

// After registers were written, before products that use them.
FN void group_start() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
FN void group_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> FN void group_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
// What this thread wrote to shared memory, or copied there, is there for products after the next barrier.
FN void share_with_groups() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

#if KV == KV_BF16
#define GROUP_TYPE "bf16.bf16"
#else
#define GROUP_TYPE "f16.f16"
#endif
#define GROUP_FOUR(i) "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3])

// c += a * b, for 64 and 128 columns of b: if ACROSS, its rows are those in shared memory; otherwise its columns are.
template <bool ACROSS> FN void multiply_group(float (&c)[8][4], const u32 (&a)[4], GroupMatrix b) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %37, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32." GROUP_TYPE " {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, {%32, %33, %34, %35}, %36, p, 1, 1, %38; }"
        :
        GROUP_FOUR(0), GROUP_FOUR(1), GROUP_FOUR(2), GROUP_FOUR(3), GROUP_FOUR(4), GROUP_FOUR(5),
        GROUP_FOUR(6), GROUP_FOUR(7)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(1), "n"(ACROSS ? 1 : 0));
}
template <bool ACROSS> FN void multiply_group(float (&c)[16][4], const u32 (&a)[4], GroupMatrix b) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %69, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32." GROUP_TYPE " {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, {%64, %65, %66, %67}, %68, p, 1, 1, %70; }"
        :
        GROUP_FOUR(0), GROUP_FOUR(1), GROUP_FOUR(2), GROUP_FOUR(3), GROUP_FOUR(4), GROUP_FOUR(5),
        GROUP_FOUR(6), GROUP_FOUR(7), GROUP_FOUR(8), GROUP_FOUR(9), GROUP_FOUR(10), GROUP_FOUR(11),
        GROUP_FOUR(12), GROUP_FOUR(13), GROUP_FOUR(14), GROUP_FOUR(15)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(1), "n"(ACROSS ? 1 : 0));
}
#else
struct GroupMatrix {
    const char* at;
    u32 column_bytes;
};
FN GroupMatrix group_matrix(const char* at, u32 column_bytes) { return {at, column_bytes}; }
FN void group_start() {}
FN void group_commit() {}
template <int N> FN void group_wait() {}
FN void share_with_groups() {}

template <bool ACROSS, int EIGHTS> FN void multiply_group(float (&c)[EIGHTS][4], const u32 (&a)[4], GroupMatrix b) {
    const int g = (thread_id() & 31) >> 2, t = thread_id() & 3;
    for (int i = 0; i < EIGHTS; i++) {
        auto element = [&](int row, int column) {
            const int along = ACROSS ? row : column, within = ACROSS ? column : row;
            u64 at = (u64)b.at + within / 64 * b.column_bytes + within % 64 * 2 + along / 8 * GROUP_EIGHT + along % 8 * GROUP_ROW;
            return (u32) * (const u16*)(at ^ (at >> 7 & 7) << 4);
        };
        auto pair = [&](int row) { return element(row, 8 * i + g) | element(row + 1, 8 * i + g) << 16; };
        multiply(c[i], a, pair(2 * t), pair(2 * t + 8));
    }
}
#endif
