// How warps fold spans, each by itself. If STAGGERED, the second half of the warps takes each span's values when the first half
// takes the next one's keys: of two warps that share a processor's products, one then has products for it while the other
// makes weights.
#include "attention_chunk.cuh"

FN bool is_late() { return STAGGERED && thread_id() >> 5 >= WARPS / 2; }

// Scores of all strips: [strip][eight positions][of the product].
FN void score(float (&x)[STRIPS][SPAN / 8][4], const char* span, const u32* queries) {
#pragma unroll
    for (int i = 0; i < STRIPS; i++)
#pragma unroll
        for (int j = 0; j < SPAN / 8; j++) x[i][j][0] = x[i][j][1] = x[i][j][2] = x[i][j][3] = 0.f;
#pragma unroll
    for (int first = 0; first < STEPS; first += PER_LOAD) {
        u32 query[STRIPS][PER_LOAD][4];
#pragma unroll
        for (int i = 0; i < STRIPS * PER_LOAD; i++) {
            const int strip = i / PER_LOAD, k = i % PER_LOAD;
            if (first + k >= STEPS) continue;
            const Four q = *(const Four*)(queries + ((strip * STEPS + first + k) * 32 + (thread_id() & 31)) * 4);
            query[strip][k][0] = q.x, query[strip][k][1] = q.y, query[strip][k][2] = q.z, query[strip][k][3] = q.w;
        }
#pragma unroll
        for (int tile = 0; tile < SPAN / TILE; tile++) {
            u32 keys[PER_LOAD][4];
            load_keys(keys, span + tile * HALF_BYTES, first);
#pragma unroll
            for (int k = 0; k < PER_LOAD; k++)
                if (first + k < STEPS)
#pragma unroll
                    for (int i = 0; i < STRIPS; i++) {
                        multiply(x[i][2 * tile], query[i][k], keys[k][0], keys[k][2]);
                        multiply(x[i][2 * tile + 1], query[i][k], keys[k][1], keys[k][3]);
                    }
        }
    }
}

// Adds what the weights make of the values.
FN void add_values(Strip (&strips)[STRIPS], const Weights& by, const char* span) {
    if (!by.seen) return;
    const char* values = span + SPAN * ROW_STRIDE;
#if !QUANTISED
#pragma unroll
    for (int i = 0; i < STRIPS; i++)
        if (any_lane(by.factor[i][0] != 1.f || by.factor[i][1] != 1.f))
#pragma unroll
            for (int j = 0; j < STEPS * 8; j++) strips[i].out[j / 8][j / 4 % 2][j % 4] *= by.factor[i][j / 2 % 2];
#endif
#pragma unroll
    for (int first = 0; first < STEPS; first += PER_LOAD) {
#if QUANTISED
        float sums[STRIPS][PER_LOAD][2][4];
#pragma unroll
        for (int i = 0; i < STRIPS * PER_LOAD * 8; i++) sums[i / (PER_LOAD * 8)][i / 8 % PER_LOAD][i / 4 % 2][i % 4] = 0.f;
#endif
#pragma unroll
        for (int tile = 0; tile < SPAN / TILE; tile++) {
            u32 v[PER_LOAD][4];
            load_values(v, values + tile * HALF_BYTES, first);
#pragma unroll
            for (int k = 0; k < PER_LOAD; k++)
                if (first + k < STEPS)
#pragma unroll
                    for (int i = 0; i < STRIPS; i++) {
#if QUANTISED
                        float(&out)[2][4] = sums[i][k];
#else
                        float(&out)[2][4] = strips[i].out[first + k];
#endif
                        multiply(out[0], by.w[i][tile], v[k][0], v[k][2]);
                        multiply(out[1], by.w[i][tile], v[k][1], v[k][3]);
                    }
        }
#if QUANTISED
#pragma unroll
        for (int i = 0; i < STRIPS; i++)
#pragma unroll
            for (int k = 0; k < PER_LOAD; k++)
                if (first + k < STEPS)
#pragma unroll
                    for (int j = 0; j < 8; j++) {
                        float& out = strips[i].out[first + k][j / 4][j % 4];
                        out = fmaf(out, by.factor[i][j / 2 % 2], sums[i][k][j / 4][j % 4] * by.unit);
                    }
#endif
    }
}

// Scores of a span, whose first position is given, and what becomes of them.
FN void weigh(Weights& to, Strip (&strips)[STRIPS], const Args& a, const char* span, int position, const u32* queries) {
    to.seen = false;
#pragma unroll
    for (int i = 0; i < STRIPS; i++) to.seen |= position < strips[i].any_high && position + SPAN > strips[i].any_low;
    if (!to.seen) return;
    float x[STRIPS][SPAN / 8][4];
    score(x, span, queries);
    to.unit = 1.f;
#if QUANTISED
    const float* parameters = (const float*)(span + 2 * SPAN * ROW_STRIDE);
    to.unit = largest_scale(parameters + SPAN);
#endif
#pragma unroll
    for (int i = 0; i < STRIPS; i++) {
#if QUANTISED
        scale_scores(x[i], strips[i], parameters);
#endif
        if (position < strips[i].all_low || position + SPAN > strips[i].all_high) mask(x[i], strips[i], position);
        soften(strips[i], x[i], a.scale, to.factor[i]);
#if QUANTISED
        scale_weights(x[i], strips[i], to.factor[i], parameters + SPAN, to.unit);
#endif
        pack_weights(to.w[i], x[i]);
    }
}

FN void fold_all(Strip (&strips)[STRIPS], const Args& a, const Spans& s, const u32* queries) {
    start_spans(s, a);
    Weights weights;
    weights.seen = false;
    const char* before = s.ring;
    for (int i = 0; i < s.count; i++) {
        copies_wait<AHEAD - 1>();
        sync_block();
        fetch_span(s, a, i + AHEAD);
        const Row next = find_row(s, a, i + AHEAD + 1);
        const char* span = s.ring + i % STAGES * SPAN_BYTES;
        if (is_late()) add_values(strips, weights, before);
        weigh(weights, strips, a, span, s.item.tile0 * TILE + i * SPAN, queries);
        if (!is_late()) add_values(strips, weights, span);
        note_row(s, i + AHEAD + 1, next);
        before = span;
    }
    if (is_late()) add_values(strips, weights, before);
}
