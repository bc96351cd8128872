// How groups of four warps fold spans, where the hardware has products for them: see group.cuh. A span's values are added
// beside the next one's scores, so that there are products while weights are made.
#include "attention_chunk.cuh"

static_assert(STRIPS == 1 && STAGGERED && WARPS % 4 == 0, "whole groups; the values of a span are still there in the next turn");

// Starts to add what the weights make of the values of their span.
FN void start_values(Strip& strip, const Weights& by, const char* span) {
#pragma unroll
    for (int tile = 0; tile < SPAN / TILE; tile++) {
        const GroupMatrix own = group_matrix(span + SPAN * ROW_BYTES + tile * 2 * GROUP_EIGHT, SPAN * GROUP_ROW);
        multiply_group<true>((float(&)[HEAD_DIM / 8][4])strip.out, by.w[0][tile], own);
    }
    group_commit();
}

// Starts the scores of a span, and to add the values of the one before.
FN void start_scores(float (&x)[SPAN / 8][4], Strip& strip, const Weights& by, const char* span, const char* before) {
#pragma unroll
    for (int j = 0; j < SPAN / 2; j++) x[j / 4][j % 4] = 0.f;
    group_start();
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        const GroupMatrix own = group_matrix(span + step / 4 * SPAN * GROUP_ROW + step % 4 * 32, SPAN * GROUP_ROW);
        multiply_group<false>(x, strip.query[step], own);
    }
    group_commit();
    start_values(strip, by, before);
}

// Scores become weights while values are still added.
FN void weigh_scores(float (&x)[SPAN / 8][4], Strip& strip, Weights& by, const Args& a, int position) {
    group_wait<1>();
    if (position < strip.all_low || position + SPAN > strip.all_high) mask(x, strip, position);
    soften(strip, x, a.scale, by.factor[0]);
    group_wait<0>();
#pragma unroll
    for (int j = 0; j < STEPS * 8; j++) strip.out[j / 8][j / 4 % 2][j % 4] *= by.factor[0][j / 2 % 2];
    pack_weights(by.w[0], x);
    by.seen = true;
}

// Adds what is left of a span.
FN void add_values(Strip& strip, Weights& by, const char* span) {
    if (!by.seen) return;
    group_start();
    start_values(strip, by, span);
    group_wait<0>();
    by.seen = false;
}

// Folds a span, whose first position is given, and what is left of the one before.
FN void fold_span(Strip& strip, Weights& by, const Args& a, const char* span, const char* before, int position) {
    if (position >= strip.any_high || position + SPAN <= strip.any_low) {
        add_values(strip, by, before);
        return;
    }
    float x[SPAN / 8][4];
    start_scores(x, strip, by, span, before);
    weigh_scores(x, strip, by, a, position);
}

FN void fold_all(Strip (&strips)[STRIPS], const Args& a, const Spans& s, const u32*) {
    start_spans(s, a);
    // Zeros, until there are weights: they are multiplied by some span's values, which adds nothing.
    Weights weights;
    weights.seen = false;
#pragma unroll
    for (int j = 0; j < SPAN / TILE * 4; j++) weights.w[0][j / 4][j % 4] = 0;
    const char* before = s.ring;
    for (int i = 0; i < s.count; i++) {
        copies_wait<AHEAD - 1>();
        share_with_groups();
        sync_block();
        fetch_span(s, a, i + AHEAD);
        const Row next = find_row(s, a, i + AHEAD + 1);
        const char* span = s.ring + i % STAGES * SPAN_BYTES;
        fold_span(strips[0], weights, a, span, before, s.item.tile0 * TILE + i * SPAN);
        note_row(s, i + AHEAD + 1, next);
        before = span;
    }
    add_values(strips[0], weights, before);
}
