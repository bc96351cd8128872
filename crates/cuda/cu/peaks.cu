// The largest logit of each part of each row, and its token, the first of equals; a block a part. NaN never counts.
#include "choice.cuh"

struct Args {
    const float* logits;
    Peak* peaks;
    u32 vocab;
    u32 part;
};

KERNEL(peaks, Args, 256, 1) {
    let_next_start();
    after_previous();
    SHARED Peak scratch[8];
    const u32 from = block_id() * a.part, to = from + a.part < a.vocab ? from + a.part : a.vocab;
    const float* logits = a.logits + (u64)block_id_y() * a.vocab;
    Peak best = NO_PEAK;
    for (u32 i = from + thread_id(); i < to; i += block_threads()) best = higher(best, {logits[i], i});
    best = block_peak(best, scratch);
    if (thread_id() == 0) a.peaks[(u64)block_id_y() * grid_blocks() + block_id()] = best;
}
