// The largest logit of each part of each row, and its token, the first of equals; a block a part. NaN never counts.
#include "choice.cuh"

// Loads of a thread that are under way together.
#define AHEAD 4

struct Args {
    const float* logits;
    Peak* peaks;
    u32 vocab;
    // Of four logits each, where `fours`; of single ones otherwise.
    u32 part;
    int fours;
    int unused;
};

FN Peak higher_of_four(Peak best, const Four& v, u32 token) {
    best = higher(best, {as_float(v.x), token});
    best = higher(best, {as_float(v.y), token + 1});
    best = higher(best, {as_float(v.z), token + 2});
    return higher(best, {as_float(v.w), token + 3});
}

KERNEL(peaks, Args, 256, 1) {
    SHARED Peak scratch[8];
    let_next_start();
    after_previous();
    const u32 all = a.fours ? a.vocab / 4 : a.vocab, step = block_threads();
    const u32 from = block_id() * a.part, to = from + a.part < all ? from + a.part : all;
    const float* logits = a.logits + (u64)block_id_y() * a.vocab;
    Peak best = NO_PEAK;
    for (u32 i = from + thread_id(); a.fours && i < to; i += AHEAD * step) {
        Four v[AHEAD];
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            if (i + j * step < to) v[j] = load_streaming((const Four*)logits + i + j * step);
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            if (i + j * step < to) best = higher_of_four(best, v[j], 4 * (i + j * step));
    }
    for (u32 i = from + thread_id(); !a.fours && i < to; i += step) best = higher(best, {logits[i], i});
    best = block_peak(best, scratch);
    if (thread_id() == 0) a.peaks[(u64)block_id_y() * grid_blocks() + block_id()] = best;
}
