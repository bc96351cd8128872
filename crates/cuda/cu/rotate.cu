// Norms and rotates queries and keys, and stores keys and values. LANES lanes have one head of one row: [q | k | v].
// Heads are whole fours.
#define WHOLE_FOURS 1
#include "codec.cuh"
#include "place.cuh"

#define HALF (HEAD_DIM / 2)
// As in attention.rs.
#define LANES (HEAD_DIM == 256 ? 32 : HEAD_DIM == 128 || HEAD_DIM == 96 ? 16 : 8)
// Neighbours of each half of a head that a lane holds: fours in most. Element i goes with element i + HALF.
#define EACH (HALF / LANES)
static_assert(EACH * LANES == HALF, "lanes have all of a head");

#define NOWHERE 0xffffffffu

struct Args {
    float* qkv;
    const float* angles;
    const float* q_norm;
    const float* k_norm;
    // Page and slot of every row; NOWHERE for one that only fills the step up.
    const u32* slots;
    Place place;
    float q_eps;
    float k_eps;
    u32 q_heads;
    u32 kv_heads;
    // Of a part of `qkv`.
    u32 rows;
    int unused;
};

// Both halves of what a lane holds.
struct Head {
    float x[2][EACH];
};

FN void load_head(Head& h, const void* p, int precision, u64 at) {
    load_some(h.x[0], p, precision, at);
    load_some(h.x[1], p, precision, at + HALF);
}

FN void norm(Head& h, const Head& weight, float squares, float eps) {
    const float inverse = inverse_root_fast(fmaf(squares, 1.f / HEAD_DIM, eps));
    for (int j = 0; j < 2 * EACH; j++) h.x[j / EACH][j % EACH] *= inverse * weight.x[j / EACH][j % EACH];
}

FN void turn(Head& h, const Head& angles) {
    for (int j = 0; j < EACH; j++) {
        const float cosine = angles.x[0][j], sine = angles.x[1][j], x = h.x[0][j], y = h.x[1][j];
        h.x[0][j] = fmaf(x, cosine, -(y * sine));
        h.x[1][j] = fmaf(y, cosine, x * sine);
    }
}

// Few registers: it shall find room beside the kernel before it.
KERNEL(rotate, Args, 128, 6) {
    let_next_start();
    const u32 heads = a.q_heads + 2 * a.kv_heads, own = block_id_y() * (128 / LANES) + thread_id() / LANES;
    // The heads of a warp meet in sums: one beyond the last is like the last until then.
    const u32 head = own < heads ? own : heads - 1, first = thread_id() % LANES * EACH;
    const bool query = head < a.q_heads, value = head >= a.q_heads + a.kv_heads;
    const float* weights = value ? nullptr : query ? a.q_norm : a.k_norm;
    Head h, weight, angles;
    if (weights) load_head(weight, weights, F32, first);
    const u64 row = block_id(), at = (row * heads + head) * HEAD_DIM + first, part_size = (u64)a.rows * heads * HEAD_DIM;
    // What was there before this step's first product.
    load_head(angles, a.angles, F32, row * HEAD_DIM + first);
    const u32 page = a.slots[2 * row], slot = a.slots[2 * row + 1];
    after_previous();
    Head parts[PARTS];
#pragma unroll
    for (int part = 0; part < PARTS; part++) load_head(parts[part], a.qkv, F32, part * part_size + at);
    h = parts[0];
    float squares = 0.f;
#pragma unroll
    for (int j = 0; j < 2 * EACH; j++) {
        float& x = h.x[j / EACH][j % EACH];
#pragma unroll
        for (int part = 1; part < PARTS; part++) x += parts[part].x[j / EACH][j % EACH];
        squares = fmaf(x, x, squares);
    }
    squares = lanes_sum<LANES>(squares);
    if (weights) norm(h, weight, squares, query ? a.q_eps : a.k_eps);
    if (!value) turn(h, angles);
    const u32 parameters = parameters_of<LANES>((const float(&)[2 * EACH])h);
    if (own >= heads) return;
    if (query) {
        store_some(a.qkv, F32, at, h.x[0]);
        store_some(a.qkv, F32, at + HALF, h.x[1]);
        return;
    }
    if (page == NOWHERE) return;
    const u32 kv_head = (head - a.q_heads) % a.kv_heads;
    u8* to = row_at(a.place, value, kv_head, page, slot);
    encode(to, first, h.x[0], parameters);
    encode(to, first + HALF, h.x[1], parameters);
    if (QUANTISED && thread_id() % LANES == 0) *(u32*)parameters_at(a.place, value, kv_head, page, slot) = parameters;
}
