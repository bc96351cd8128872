// Norms and rotates queries and keys, and stores keys and values. A warp has one head of one row: [q | k | v].
#include "codec.cuh"
#include "place.cuh"

// Elements of half a head that a lane holds; element i goes with element i + HALF.
#define HALF (HEAD_DIM / 2)
#define PAIRS ((HALF + 31) / 32)

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
};

struct Head {
    float x[2 * PAIRS];
    bool real[2 * PAIRS];
};

FN void norm(Head& h, const float* weight, float eps) {
    float squares = 0.f;
    for (int j = 0; j < 2 * PAIRS; j++) squares = fmaf(h.x[j], h.x[j], squares);
    float inverse = 1.f / sqrtf(warp_sum(squares) / (float)HEAD_DIM + eps);
    for (int j = 0; j < 2 * PAIRS; j++) {
        int i = (thread_id() & 31) + (j % PAIRS) * 32 + (j / PAIRS) * HALF;
        if (h.real[j]) h.x[j] = h.x[j] * inverse * weight[i];
    }
}

FN void turn(Head& h, const float* angles) {
    for (int j = 0; j < PAIRS; j++) {
        int i = (thread_id() & 31) + j * 32;
        if (!h.real[j]) continue;
        float cosine = angles[i], sine = angles[HALF + i], x = h.x[j], y = h.x[j + PAIRS];
        h.x[j] = fmaf(x, cosine, -(y * sine));
        h.x[j + PAIRS] = fmaf(y, cosine, x * sine);
    }
}

KERNEL(rotate, Args, 128, 1) {
    let_next_start();
    after_previous();
    const u32 head = block_id_y() * 4 + (thread_id() >> 5), lane = thread_id() & 31;
    const u64 row = block_id();
    if (head >= a.q_heads + 2 * a.kv_heads) return;
    float* from = a.qkv + (row * (a.q_heads + 2 * a.kv_heads) + head) * HEAD_DIM;
    Head h;
    for (int j = 0; j < 2 * PAIRS; j++) {
        u32 i = lane + (j % PAIRS) * 32;
        h.real[j] = i < HALF;
        h.x[j] = h.real[j] ? from[i + (j / PAIRS) * HALF] : 0.f;
    }
    const bool query = head < a.q_heads, value = head >= a.q_heads + a.kv_heads;
    if (!value) {
        const float* weight = query ? a.q_norm : a.k_norm;
        if (weight) norm(h, weight, query ? a.q_eps : a.k_eps);
        turn(h, a.angles + row * HEAD_DIM);
    }
    if (query) {
        for (int j = 0; j < 2 * PAIRS; j++)
            if (h.real[j]) from[lane + (j % PAIRS) * 32 + (j / PAIRS) * HALF] = h.x[j];
        return;
    }
    const u32 kv_head = (head - a.q_heads) % a.kv_heads, page = a.slots[2 * row], slot = a.slots[2 * row + 1];
    if (page == NOWHERE) return;
    const u32 parameters = parameters_of(h.x, h.real);
    u8* to = row_at(a.place, value, kv_head, page, slot);
    for (int j = 0; j < 2 * PAIRS; j++)
        if (h.real[j]) encode(to, lane + (j % PAIRS) * 32 + (j / PAIRS) * HALF, h.x[j], parameters);
    if (QUANTISED && lane == 0) *(u32*)parameters_at(a.place, value, kv_head, page, slot) = parameters;
}
