// Runs kernels on a CPU: a fiber a thread, the warps' and the block's meetings by rendezvous, one block after another,
// the last one first: none may count on what those before it do.
// Shared memory holds NaNs when a block starts; asynchronous copies happen when they are waited for and not before.
#define EMULATED 1
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define FN static inline
#define SHARED static thread_local
#define DYNAMIC_SHARED(name) char* name = machine.shared.data()
#define KERNEL(name, Args, threads, blocks)                                                                    \
    static_assert(sizeof(Args) == ARGS_BYTES, "the arguments of " #name);                                       \
    static void body(const Args& a);                                                                            \
    extern "C" void launch(const void* args, u32 x, u32 y, u32 count, u32 shared) {                             \
        run_grid(x, y, count, shared, [args] { body(*(const Args*)args); });                                    \
    }                                                                                                           \
    static void body(const Args& a)

extern "C" void switch_stacks(void** save, void* load) __attribute__((visibility("hidden")));
#if defined(__x86_64__)
asm(".text\n.type switch_stacks,@function\nswitch_stacks:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n");
#else
#error "the emulation switches stacks on x86-64 only"
#endif

struct Copy {
    void* to;
    const void* from;
    int size, bytes;
};
struct Fiber {
    void* stack_pointer;
    // Never given back; what is not used of it is not there.
    char* stack;
    int id;
    u32 meetings;
    bool done;
    std::vector<std::vector<Copy>> groups;
    std::vector<Copy> open;
};
// Alternate meetings use alternate slots, so that one rendezvous a meeting is enough.
struct Warp {
    int arrived;
    u32 generation;
    alignas(16) u8 slots[2][32][32];
    float results[2][32][4];
};
struct Machine {
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    std::vector<char> shared;
    std::function<void()> body;
    Fiber* now;
    void* caller;
    int threads, left, arrived;
    u32 generation, x, y, grid_x;
    u64 idle;
};
static thread_local Machine machine;

static void resume(int id) {
    Fiber* from = machine.now;
    machine.now = &machine.fibers[id];
    if (from != machine.now) switch_stacks(&from->stack_pointer, machine.now->stack_pointer);
}
static void give_way() {
    if (++machine.idle > 1000000) {
        fprintf(stderr, "the kernel hangs: threads wait for others that do not come\n");
        abort();
    }
    int id = machine.now->id;
    do id = id + 1 == machine.threads ? 0 : id + 1;
    while (machine.fibers[id].done);
    resume(id);
}
static void start_fiber() {
    machine.body();
    machine.now->done = true;
    machine.idle = 0;
    if (--machine.left == 0) {
        void* unused;
        switch_stacks(&unused, machine.caller);
    }
    give_way();
    abort();
}
static void prepare_fiber(Fiber& fiber, int id) {
    const size_t size = 256 << 10;
    if (!fiber.stack) fiber.stack = (char*)malloc(size);
    fiber.id = id, fiber.meetings = 0, fiber.done = false;
    fiber.groups.clear(), fiber.open.clear();
    u64 top = ((u64)fiber.stack + size) & ~(u64)63;
    void** stack = (void**)(top - 64);
    stack[6] = (void*)start_fiber;
    for (int i = 0; i < 6; i++) stack[i] = nullptr;
    fiber.stack_pointer = stack;
}
static void run_block() {
    for (int i = 0; i < machine.threads; i++) prepare_fiber(machine.fibers[i], i);
    for (Warp& warp : machine.warps) warp.arrived = 0;
    memset(machine.shared.data(), 0xff, machine.shared.size());
    machine.left = machine.threads, machine.arrived = 0, machine.idle = 0;
    machine.now = &machine.fibers[0];
    switch_stacks(&machine.caller, machine.now->stack_pointer);
}
static void run_grid(u32 x, u32 y, u32 threads, u32 shared, std::function<void()> body) {
    machine.body = body;
    machine.threads = threads;
    machine.grid_x = x;
    if (machine.fibers.size() < threads) machine.fibers.resize(threads);
    machine.warps.resize(threads / 32);
    machine.shared.resize(shared);
    for (machine.y = y; machine.y-- > 0;)
        for (machine.x = x; machine.x-- > 0;) run_block();
}

FN void let_next_start() {}
FN void after_previous() {}
FN int thread_id() { return machine.now->id; }
FN int block_id() { return machine.x; }
FN int block_id_y() { return machine.y; }
FN int block_threads() { return machine.threads; }
FN int grid_blocks() { return machine.grid_x; }

static void sync_block() {
    u32 generation = machine.generation;
    if (++machine.arrived == machine.threads) {
        machine.arrived = 0, machine.idle = 0, machine.generation++;
        return;
    }
    while (machine.generation == generation) give_way();
}
// Leaves `size` bytes for the warp, waits for all lanes (the last one runs `all`), and says where the bytes lie.
template <class All> static int meet(const void* bytes, int size, All all) {
    Fiber& me = *machine.now;
    Warp& warp = machine.warps[me.id >> 5];
    const int slot = me.meetings++ & 1;
    memcpy(warp.slots[slot][me.id & 31], bytes, size);
    const u32 generation = warp.generation;
    if (++warp.arrived == 32) {
        all(warp, slot);
        warp.arrived = 0, machine.idle = 0, warp.generation++;
    } else {
        while (warp.generation == generation) give_way();
    }
    return slot;
}
static void nothing(Warp&, int) {}
static void sync_warp() { meet("", 0, nothing); }
static Warp& my_warp() { return machine.warps[machine.now->id >> 5]; }
template <class T> static T from_lane(T x, int lane) {
    const int slot = meet(&x, sizeof x, nothing);
    memcpy(&x, my_warp().slots[slot][lane & 31], sizeof x);
    return x;
}
FN float shuffle_xor(float x, int mask) { return from_lane(x, thread_id() ^ mask); }
FN u32 shuffle_xor(u32 x, int mask) { return from_lane(x, thread_id() ^ mask); }
FN float shuffle(float x, int lane) { return from_lane(x, lane); }
FN u32 shuffle(u32 x, int lane) { return from_lane(x, lane); }
static bool any_lane(bool x) {
    const int slot = meet(&x, sizeof x, nothing);
    bool any = false;
    for (int lane = 0; lane < 32; lane++) any |= my_warp().slots[slot][lane][0] != 0;
    return any;
}
FN void fence() {}
FN u32 atomic_add(u32* at, u32 x) { return (*at += x) - x; }
FN u32 atomic_add_ordered(u32* at, u32 x) { return atomic_add(at, x); }

struct alignas(16) Four {
    u32 x, y, z, w;
};
FN float load_fresh(const float* p) { return *p; }
FN Four load_fresh4(const float* p) {
    Four v;
    memcpy(&v, p, sizeof v);
    return v;
}

FN float as_float(u32 x) {
    float y;
    memcpy(&y, &x, 4);
    return y;
}
FN u32 as_bits(float x) {
    u32 y;
    memcpy(&y, &x, 4);
    return y;
}
FN float exp2_fast(float x) { return exp2f(x); }
FN float reciprocal_fast(float x) { return 1.f / x; }
FN float inverse_root_fast(float x) { return 1.f / sqrtf(x); }
static float decode_f16(u16 x) {
    const u32 sign = (u32)(x & 0x8000) << 16, exponent = x >> 10 & 31, mantissa = x & 1023;
    if (exponent == 0) return as_float(sign | as_bits((float)mantissa * (1.f / 16777216.f)));
    if (exponent == 31) return as_float(sign | 0x7f800000u | mantissa << 13);
    return as_float(sign | (exponent + 112) << 23 | mantissa << 13);
}
struct Table {
    float values[65536];
    Table() {
        for (int i = 0; i < 65536; i++) values[i] = decode_f16((u16)i);
    }
};
static const Table f16_table;
FN float from_f16(u16 x) { return f16_table.values[x]; }
static u16 to_f16(float x) {
    const u32 bits = as_bits(x), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return sign | 0x7e00;
    if (magnitude >= 0x477ff000) return sign | 0x7c00;
    if (magnitude < 0x38800000) return sign | (u16)rintf(as_float(magnitude) * 16777216.f);
    return sign | (u16)((magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13);
}
FN u16 round_bf16(float x) {
    const u32 bits = as_bits(x);
    return x != x ? 0x7fff : (u16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
FN u32 pack_f16(float low, float high) { return to_f16(low) | (u32)to_f16(high) << 16; }
FN u32 pack_bf16(float low, float high) { return round_bf16(low) | (u32)round_bf16(high) << 16; }
static u16 e4m3(u8 x) {
    const u32 magnitude = x & 0x7f;
    const float value = magnitude == 0x7f ? NAN : magnitude < 8 ? magnitude / 512.f : as_float((magnitude << 20) + (120u << 23));
    return to_f16(value) | (x & 0x80) << 8;
}
FN u32 e4m3_to_f16(u32 two) { return e4m3((u8)two) | (u32)e4m3((u8)(two >> 8)) << 16; }
static u32 permute_bytes(u32 a, u32 b, u32 selector) {
    const u64 all = a | (u64)b << 32;
    u32 y = 0;
    for (int i = 0; i < 4; i++) y |= (u32)(all >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
    return y;
}
FN u32 subtract_f16(u32 a, u32 b) {
    return pack_f16(from_f16((u16)a) - from_f16((u16)b), from_f16((u16)(a >> 16)) - from_f16((u16)(b >> 16)));
}

FN u64 shared_place(const void* p) { return (u64)p; }
FN void copy16(void* to, const void* from, int bytes) { machine.now->open.push_back({to, from, 16, bytes}); }
FN void copy4(void* to, const void* from, int bytes) { machine.now->open.push_back({to, from, 4, bytes}); }
static void copies_commit() {
    machine.now->groups.push_back(std::move(machine.now->open));
    machine.now->open.clear();
}
template <int N> static void copies_wait() {
    auto& groups = machine.now->groups;
    while ((int)groups.size() > N) {
        for (const Copy& c : groups.front()) {
            memset(c.to, 0, c.size);
            memcpy(c.to, c.from, c.bytes);
        }
        groups.erase(groups.begin());
    }
}

static void load_matrices_as(u32 (&r)[4], const void* p, bool transposed) {
    const int lane = thread_id() & 31, slot = meet(&p, sizeof p, nothing);
    for (int matrix = 0; matrix < 4; matrix++) {
        r[matrix] = 0;
        for (int j = 0; j < 2; j++) {
            int row = lane >> 2, col = (lane & 3) * 2 + j;
            if (transposed) std::swap(row, col);
            const char* from;
            memcpy(&from, my_warp().slots[slot][matrix * 8 + row], sizeof from);
            u16 element;
            memcpy(&element, from + col * 2, 2);
            r[matrix] |= (u32)element << 16 * j;
        }
    }
    sync_warp();
}
FN void load_matrices(u32 (&r)[4], const void* p) { load_matrices_as(r, p, false); }
FN void load_matrices_transposed(u32 (&r)[4], const void* p) { load_matrices_as(r, p, true); }
static u32 transpose_matrix(u32 x) {
    const int lane = thread_id() & 31, slot = meet(&x, sizeof x, nothing);
    u32 y = 0;
    for (int j = 0; j < 2; j++) {
        const int row = (lane & 3) * 2 + j, col = lane >> 2;
        u16 element;
        memcpy(&element, my_warp().slots[slot][row * 4 + (col >> 1)] + (col & 1) * 2, 2);
        y |= (u32)element << 16 * j;
    }
    return y;
}
struct Operands {
    u32 a[4], b[2];
};
template <bool BF16_INPUT> static void multiply_warp(Warp& warp, int slot) {
    auto value = [](u32 pair, int j) { return BF16_INPUT ? as_float(j ? pair & 0xffff0000u : pair << 16) : from_f16((u16)(pair >> 16 * j)); };
    float a[16][16], b[16][8], c[16][8] = {};
    for (int lane = 0; lane < 32; lane++) {
        Operands o;
        memcpy(&o, warp.slots[slot][lane], sizeof o);
        const int g = lane >> 2, t = lane & 3;
        for (int i = 0; i < 4; i++)
            for (int j = 0; j < 2; j++) a[g + 8 * (i & 1)][2 * t + 8 * (i >> 1) + j] = value(o.a[i], j);
        for (int i = 0; i < 2; i++)
            for (int j = 0; j < 2; j++) b[2 * t + 8 * i + j][g] = value(o.b[i], j);
    }
    for (int row = 0; row < 16; row++)
        for (int k = 0; k < 16; k++)
            for (int col = 0; col < 8; col++) c[row][col] += a[row][k] * b[k][col];
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 4; i++) warp.results[slot][lane][i] = c[(lane >> 2) + 8 * (i >> 1)][2 * (lane & 3) + (i & 1)];
}
template <class All> static void multiply_as(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1, All all) {
    Operands o = {{a[0], a[1], a[2], a[3]}, {b0, b1}};
    const int slot = meet(&o, sizeof o, all);
    for (int i = 0; i < 4; i++) c[i] += my_warp().results[slot][thread_id() & 31][i];
}
FN void multiply_bf16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) { multiply_as(c, a, b0, b1, multiply_warp<true>); }
FN void multiply_f16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) { multiply_as(c, a, b0, b1, multiply_warp<false>); }

FN Four load_streaming(const void* p) {
    Four v;
    memcpy(&v, p, sizeof v);
    return v;
}
