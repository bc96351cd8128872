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
    // Of a part of `qkv`.
    u32 rows;
    int unused;
};

struct Head {
    float x[2 * PAIRS];
    bool real[2 * PAIRS];
};

FN void norm(Head& h, const float (&weight)[2 * PAIRS], float eps) {
    float squares = 0.f;
    for (int j = 0; j < 2 * PAIRS; j++) squares = fmaf(h.x[j], h.x[j], squares);
    float inverse = 1.f / sqrtf(warp_sum(squares) / (float)HEAD_DIM + eps);
    for (int j = 0; j < 2 * PAIRS; j++) {
        if (h.real[j]) h.x[j] = h.x[j] * inverse * weight[j];
    }
}

FN void turn(Head& h, const float (&cosines)[PAIRS], const float (&sines)[PAIRS]) {
    for (int j = 0; j < PAIRS; j++) {
        if (!h.real[j]) continue;
        float cosine = cosines[j], sine = sines[j], x = h.x[j], y = h.x[j + PAIRS];
        h.x[j] = fmaf(x, cosine, -(y * sine));
        h.x[j + PAIRS] = fmaf(y, cosine, x * sine);
    }
}

KERNEL(rotate, Args, 128, 1) {
    let_next_start();
    const u32 head = block_id_y() * 4 + (thread_id() >> 5), lane = thread_id() & 31;
    const bool query = head < a.q_heads, value = head >= a.q_heads + a.kv_heads;
    const float* weights = query ? a.q_norm : a.k_norm;
    Head h;
    float weight[2 * PAIRS], cosines[PAIRS], sines[PAIRS];
    for (int j = 0; j < 2 * PAIRS; j++) {
        h.real[j] = lane + (j % PAIRS) * 32 < HALF;
        weight[j] = weights && h.real[j] ? weights[lane + (j % PAIRS) * 32 + (j / PAIRS) * HALF] : 1.f;
    }
    const u64 row = block_id();
    // What was there before this step's first product.
    const u32 page = query ? NOWHERE : a.slots[2 * row], slot = query ? 0 : a.slots[2 * row + 1];
    for (int j = 0; j < PAIRS; j++) {
        cosines[j] = h.real[j] ? a.angles[row * HEAD_DIM + lane + j * 32] : 0.f;
        sines[j] = h.real[j] ? a.angles[row * HEAD_DIM + HALF + lane + j * 32] : 0.f;
    }
    after_previous();
    if (head >= a.q_heads + 2 * a.kv_heads) return;
    float* from = a.qkv + (row * (a.q_heads + 2 * a.kv_heads) + head) * HEAD_DIM;
    const u64 part_size = (u64)a.rows * (a.q_heads + 2 * a.kv_heads) * HEAD_DIM;
    for (int j = 0; j < 2 * PAIRS; j++) {
        const u32 i = lane + (j % PAIRS) * 32 + (j / PAIRS) * HALF;
        float x[PARTS];
#pragma unroll
        for (u32 part = 0; part < PARTS; part++) x[part] = h.real[j] ? from[part * part_size + i] : 0.f;
        h.x[j] = x[0];
#pragma unroll
        for (u32 part = 1; part < PARTS; part++) h.x[j] += x[part];
    }
    if (!value) {
        if (weights) norm(h, weight, query ? a.q_eps : a.k_eps);
        turn(h, cosines, sines);
    }
    if (query) {
        for (int j = 0; j < 2 * PAIRS; j++)
            if (h.real[j]) from[lane + (j % PAIRS) * 32 + (j / PAIRS) * HALF] = h.x[j];
        return;
    }
    const u32 kv_head = (head - a.q_heads) % a.kv_heads;
    if (page == NOWHERE) return;
    const u32 parameters = parameters_of(h.x, h.real);
    u8* to = row_at(a.place, value, kv_head, page, slot);
    for (int j = 0; j < 2 * PAIRS; j++)
        if (h.real[j]) encode(to, lane + (j % PAIRS) * 32 + (j / PAIRS) * HALF, h.x[j], parameters);
    if (QUANTISED && lane == 0) *(u32*)parameters_at(a.place, value, kv_head, page, slot) = parameters;
}
