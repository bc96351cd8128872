// What the kernels ask of a GPU, one small function each. emulation.h has the same names for a CPU.
#ifndef EMULATED
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define FN __device__ __forceinline__
#define SHARED __shared__
#define DYNAMIC_SHARED(name) extern __shared__ __align__(128) char name[]
// The one entry of a file: `Args a` is its parameter, checked against the caller's idea of its size.
#define KERNEL(name, Args, threads, blocks)                                 \
    static_assert(sizeof(Args) == ARGS_BYTES, "the arguments of " #name);    \
    extern "C" __global__ void __launch_bounds__(threads, blocks) octavo_##name(const __grid_constant__ Args a)

// Kernels that are launched to overlap: the next one may start, and waits here for this one to end. Nothing that an
// earlier kernel writes is touched before, and no thread ends before.
FN void let_next_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
FN void after_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

FN int thread_id() { return threadIdx.x; }
FN int block_id() { return blockIdx.x; }
FN int block_id_y() { return blockIdx.y; }
FN int block_threads() { return blockDim.x; }
FN int grid_blocks() { return gridDim.x; }
FN void sync_block() { __syncthreads(); }
FN void sync_warp() { __syncwarp(); }
FN float shuffle_xor(float x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
FN u32 shuffle_xor(u32 x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
FN float shuffle(float x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
FN u32 shuffle(u32 x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
FN bool any_lane(bool x) { return __any_sync(0xffffffffu, x); }
FN void fence() { __threadfence(); }
FN u32 atomic_add(u32* at, u32 x) { return atomicAdd(at, x); }
// After what this thread, or others before a barrier of the block, wrote; before what it, or others after one, read.
FN u32 atomic_add_ordered(u32* at, u32 x) {
    u32 old;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;" : "=r"(old) : "l"(at), "r"(x) : "memory");
    return old;
}

struct __align__(16) Four {
    u32 x, y, z, w;
};
// What another block wrote before its fence: not from this processor's own cache.
FN float load_fresh(const float* p) { return __ldcg(p); }
FN Four load_fresh4(const float* p) {
    Four v;
    asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}

FN float as_float(u32 x) { return __uint_as_float(x); }
FN u32 as_bits(float x) { return __float_as_uint(x); }
FN float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
FN float reciprocal_fast(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
FN float inverse_root_fast(float x) {
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
FN u16 to_f16(float x) {
    u16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
}
FN float from_f16(u16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
    return y;
}
FN u32 pack_f16(float low, float high) {
    u32 y;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}
FN u32 pack_bf16(float low, float high) {
    u32 y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}
// Two E4M3 numbers (the low 16 bits) as two f16: exact.
FN u32 e4m3_to_f16(u32 two) {
    u32 y;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(y) : "h"((u16)two));
    return y;
}
FN u32 permute_bytes(u32 a, u32 b, u32 selector) { return __byte_perm(a, b, selector); }
// Two f16 less two f16.
FN u32 subtract_f16(u32 a, u32 b) {
    u32 y;
    asm("sub.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
}

FN u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
// What of an address tells where it lies among shared memory's units.
FN u64 shared_place(const void* p) { return shared_address(p); }
// 16 bytes from global to shared memory, later; zeros where `bytes` is 0.
FN void copy16(void* to, const void* from, int bytes) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes)
                 : "memory");
}
FN void copy4(void* to, const void* from, int bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes)
                 : "memory");
}
FN void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> FN void copies_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// Four 8x8 matrices of 16-bit elements; lane i of each group of eight has the address of row i of its matrix.
FN void load_matrices(u32 (&r)[4], const void* p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(p))
                 : "memory");
}
FN void load_matrices_transposed(u32 (&r)[4], const void* p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(p))
                 : "memory");
}
FN u32 transpose_matrix(u32 x) {
    u32 y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}
// c[16][8] += a[16][16] * b[16][8], f32 sums.
FN void multiply_bf16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
FN void multiply_f16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// A streaming read of 16 bytes.
FN Four load_streaming(const void* p) {
    Four v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}
#endif
