// A token for each row, a block a row: the likeliest, or one drawn by its `uniform`. Every sum runs in the order of
// backend/src/choice, so that the token is the same.
#include "choice.cuh"

// Weights that are added up together, in so many chains.
#define GROUP 256
#define CHAINS 16
#define MOST_GROUPS 2048
// The most tokens that are put in order.
#define MOST_KEPT 1024
#define BINS 2048
// Only the whole row tells.
#define OPEN 0xffffffffu

struct Choice {
    double uniform;
    float temperature;
    u32 top_k;
    float top_p;
    float min_p;
};

struct Args {
    const float* logits;
    const Peak* peaks;
    const Choice* choices;
    u32* tokens;
    u32 vocab;
    u32 parts;
};

// A row's logits as weights: the likeliest weighs 1.
struct Weights {
    const float* logits;
    float top;
    float temperature;
    float min_p;
    u32 vocab;
};
FN float weight(const Weights& w, u32 i) {
    float x = exp_of((w.logits[i] - w.top) / w.temperature);
    return x >= w.min_p ? x : 0.f;
}

struct Kept {
    u64 keys[MOST_KEPT];
    u32 bins[BINS];
    u32 count;
    u32 prefix;
    u32 left;
};

// Heaviest first, of equals the lower token.
FN u64 key_of(float weight, u32 token) { return (u64)~as_bits(weight) << 32 | token; }
FN float weight_of(u64 key) { return as_float(~(u32)(key >> 32)); }

// The sum of each group. A thread has a chain; chains are added in order, then what did not fill them.
FN void sum_groups(const Weights& w, double* sums, double* chains) {
    const u32 lane = thread_id() % CHAINS, groups = (w.vocab + GROUP - 1) / GROUP;
    const u32 at_once = block_threads() / CHAINS;
    for (u32 first = 0; first < groups; first += at_once) {
        const u32 group = first + thread_id() / CHAINS, from = group * GROUP;
        const u32 size = group < groups ? (w.vocab - from < GROUP ? w.vocab - from : GROUP) : 0, whole = size / CHAINS * CHAINS;
        double sum = 0.;
        for (u32 i = lane; i < whole; i += CHAINS) sum += (double)weight(w, from + i);
        chains[thread_id()] = sum;
        sync_block();
        if (lane == 0 && group < groups) {
            double all = chains[thread_id()], rest = 0.;
            for (u32 i = 1; i < CHAINS; i++) all += chains[thread_id() + i];
            for (u32 i = whole; i < size; i++) rest += (double)weight(w, from + i);
            sums[group] = all + rest;
        }
        sync_block();
    }
}

// By one thread: where the weights, added up by token, pass a fraction of their sum.
FN u32 pick_of_all(const Weights& w, const double* sums, double uniform) {
    const u32 groups = (w.vocab + GROUP - 1) / GROUP;
    double total = 0.;
    for (u32 i = 0; i < groups; i++) total += sums[i];
    double left = uniform * total;
    u32 last = NO_TOKEN, found = NO_TOKEN;
    for (u32 i = 0; i < groups && found == NO_TOKEN; i++) {
        if (sums[i] == 0.) continue;
        last = i;
        if (left < sums[i]) found = i;
        else left -= sums[i];
    }
    if (last == NO_TOKEN) return NO_TOKEN;
    const u32 from = last * GROUP, to = from + GROUP < w.vocab ? from + GROUP : w.vocab;
    u32 token = NO_TOKEN;
    double inside = 0.;
    for (u32 i = from; i < to; i++) {
        float x = weight(w, i);
        if (x > 0.f) inside += (double)x, token = i;
    }
    if (found == NO_TOKEN) return token;
    left = left / sums[found] * inside;
    for (u32 i = from; i < to; i++) {
        float x = weight(w, i);
        if (x <= 0.f) continue;
        left -= (double)x;
        if (left < 0.) return i;
    }
    return token;
}

// One step of finding the bits of the n-th largest weight: `bits` of them below those in `prefix`.
FN void select_bits(const Weights& w, Kept& k, int shift, int bits) {
    const u32 bins = 1u << bits;
    for (u32 i = thread_id(); i < bins; i += block_threads()) k.bins[i] = 0;
    sync_block();
    const u32 prefix = k.prefix;
    for (u32 i = thread_id(); i < w.vocab; i += block_threads()) {
        u32 x = as_bits(weight(w, i));
        if (x != 0 && (u64)x >> (shift + bits) == prefix) atomic_add(&k.bins[x >> shift & (bins - 1)], 1);
    }
    sync_block();
    if (thread_id() == 0) {
        u32 bin = bins;
        while (bin > 0 && k.left > 0) {
            u32 here = k.bins[--bin];
            if (here >= k.left) break;
            k.left -= here;
        }
        k.prefix = prefix << bits | bin;
    }
    sync_block();
}

// The `n` heaviest, or all that weigh anything, in no order; their number is in `count`.
FN void collect(const Weights& w, Kept& k, u32 n, u32* counts) {
    if (thread_id() == 0) k.count = 0, k.prefix = 0, k.left = n;
    sync_block();
    select_bits(w, k, 21, 11);
    select_bits(w, k, 10, 11);
    select_bits(w, k, 0, 10);
    // Fewer than n weigh anything: then the last bin looked into is 0, and nothing is equal to it.
    const u32 edge = k.prefix, room = k.left;
    const u32 each = (w.vocab + block_threads() - 1) / block_threads(), from = thread_id() * each;
    const u32 to = from + each < w.vocab ? from + each : w.vocab;
    u32 equal = 0;
    for (u32 i = from; i < to; i++) {
        float x = weight(w, i);
        if (as_bits(x) > edge) k.keys[atomic_add(&k.count, 1)] = key_of(x, i);
        equal += x > 0.f && as_bits(x) == edge;
    }
    counts[thread_id()] = equal;
    sync_block();
    u32 rank = 0;
    for (int i = 0; i < thread_id(); i++) rank += counts[i];
    // Of those on the edge the lower tokens.
    for (u32 i = from; i < to && equal > 0 && rank < room; i++) {
        float x = weight(w, i);
        if (as_bits(x) == edge) k.keys[atomic_add(&k.count, 1)] = key_of(x, i), rank++;
    }
    sync_block();
}

FN void sort(Kept& k) {
    for (u32 i = k.count + thread_id(); i < MOST_KEPT; i += block_threads()) k.keys[i] = ~0ull;
    sync_block();
    for (u32 run = 2; run <= MOST_KEPT; run <<= 1)
        for (u32 step = run >> 1; step > 0; step >>= 1) {
            for (u32 i = thread_id(); i < MOST_KEPT; i += block_threads()) {
                u32 j = i ^ step;
                u64 x = k.keys[i], y = k.keys[j];
                if (i < j && (x > y) == ((i & run) == 0)) k.keys[i] = y, k.keys[j] = x;
            }
            sync_block();
        }
}

// By one thread: cuts where the share of the heaviest reaches top_p, and picks among them.
FN u32 pick_of_kept(const Kept& k, const Choice& choice, const double* sums, u32 groups) {
    double total = 0.;
    if (choice.top_k > 0)
        for (u32 i = 0; i < k.count; i++) total += (double)weight_of(k.keys[i]);
    else
        for (u32 i = 0; i < groups; i++) total += sums[i];
    const double enough = total * (double)choice.top_p;
    double sum = 0.;
    u32 count = 0;
    bool reached = false;
    while (count < k.count && !reached) {
        sum += (double)weight_of(k.keys[count++]);
        reached = sum >= enough;
    }
    if (!reached && choice.top_k == 0 && k.count == MOST_KEPT) return OPEN;
    if (count == 0) return NO_TOKEN;
    double left = choice.uniform * sum;
    for (u32 i = 0; i < count; i++) {
        left -= (double)weight_of(k.keys[i]);
        if (left < 0.) return (u32)k.keys[i];
    }
    return (u32)k.keys[count - 1];
}

KERNEL(choose, Args, 512, 1) {
    let_next_start();
    after_previous();
    SHARED Peak peaks[16];
    SHARED double sums[MOST_GROUPS];
    SHARED double chains[512];
    SHARED u32 counts[512];
    SHARED Kept kept;
    const u32 row = block_id();
    Peak best = NO_PEAK;
    for (u32 i = thread_id(); i < a.parts; i += block_threads()) best = higher(best, a.peaks[row * a.parts + i]);
    best = block_peak(best, peaks);
    // Every logit is NaN or minus infinity.
    if (best.logit == -INFINITE) {
        if (thread_id() == 0) a.tokens[row] = OPEN;
        return;
    }
    const Choice choice = a.choices[row];
    const bool all = choice.top_k == 0 && choice.top_p >= 1.f;
    const u32 groups = (a.vocab + GROUP - 1) / GROUP;
    if (choice.temperature == 0.f || choice.top_k > MOST_KEPT || groups > MOST_GROUPS) {
        if (thread_id() == 0) a.tokens[row] = choice.temperature == 0.f ? best.token : OPEN;
        return;
    }
    const float* logits = a.logits + (u64)row * a.vocab;
    const Weights w = {logits, logits[best.token], choice.temperature, choice.min_p, a.vocab};
    if (choice.top_k == 0) sum_groups(w, sums, chains);
    if (!all) {
        collect(w, kept, choice.top_k > 0 ? choice.top_k : MOST_KEPT, counts);
        sort(kept);
    }
    sync_block();
    if (thread_id() != 0) return;
    u32 token = all ? pick_of_all(w, sums, choice.uniform) : pick_of_kept(kept, choice, sums, groups);
    const bool none = token == NO_TOKEN && (all || kept.count == 0);
    a.tokens[row] = none ? best.token : token;
}
