// scale * cos(position * frequency), then the sines; a block a row. The product is rounded to f32.
#include "number.cuh"

struct Args {
    const u32* positions;
    const float* frequencies;
    float* out;
    u32 pairs;
    float scale;
};

KERNEL(angles, Args, 128, 1) {
    // The next kernel starts when this one has ended: later ones read the angles before they wait.
    after_previous();
    float position = (float)a.positions[block_id()];
    float* out = a.out + (u64)block_id() * 2 * a.pairs;
    for (u32 i = thread_id(); i < a.pairs; i += block_threads()) {
        float angle = position * a.frequencies[i];
        out[i] = a.scale * cosf(angle);
        out[a.pairs + i] = a.scale * sinf(angle);
    }
}
