// A span: SPAN positions, some tiles, of one head in shared memory: keys, values, and for the quantised the parameters
// of both. The threads of a block copy it together.
#include "work.cuh"
#if GROUPED
#include "group.cuh"
#define SPAN_UNIT_AT(row, unit) group_unit_at(row, unit, SPAN)
#else
#define SPAN_UNIT_AT(row, unit) unit_at(row, unit)
#endif

#define SPAN_BYTES (2 * SPAN * ROW_STRIDE + (QUANTISED ? 8 * SPAN : 0))
#define THREADS (WARPS * 32)

// Spans that are copied ahead; if STAGGERED, the one before is still in use.
#define AHEAD (STAGES - 1 - STAGGERED)
static_assert(AHEAD > 0, "a span would be overwritten while it is read");

// Where a row of a span lies; no page: zeros.
struct Row {
    u32 page, slot;
};
#define NO_PAGE 0xffffffffu

struct Spans {
    Item item;
    u32 head;
    int count;
    // Log2 of the page size, or below 0 if that is no power of two: a division is slow.
    int shift;
    char* ring;
    // Of two spans, found one span before they are needed.
    Row* rows;
};

FN int shift_of(u32 size) {
    int shift = 0;
    while (1u << shift < size) shift++;
    return 1u << shift == size ? shift : -1;
}

// The row of span i that this thread finds for all; the others find nothing.
FN Row find_row(const Spans& s, const Args& a, int i) {
    const int low = first_seen(a, s.item.position), high = s.item.position + s.item.rows;
    const int position = s.item.tile0 * TILE + i * SPAN + thread_id(), size = a.place.page_size;
    if (thread_id() >= SPAN || position < low || position >= high || position >= s.item.tile1 * TILE) return {NO_PAGE, 0};
    const int page = s.shift < 0 ? position / size : position >> s.shift;
    return {a.pages[s.item.table + page], (u32)(position - page * size)};
}
FN void note_row(const Spans& s, int i, Row row) {
    if (thread_id() < SPAN) s.rows[i % 2 * SPAN + thread_id()] = row;
}

// Starts copying span i, if there is one.
FN void fetch_span(const Spans& s, const Args& a, int i) {
    if (i < s.count) {
        char* to = s.ring + i % STAGES * SPAN_BYTES;
        const Row* rows = s.rows + i % 2 * SPAN;
        const u8* base = row_at(a.place, 0, s.head, 0, 0);
        const u64 to_values = a.place.rows[1] - a.place.rows[0];
#pragma unroll
        for (int j = 0; j < (SPAN * UNITS + THREADS - 1) / THREADS; j++) {
            const int at = j * THREADS + thread_id(), row = at / UNITS, unit = at % UNITS;
            if ((SPAN * UNITS) % THREADS != 0 && row >= SPAN) break;
            const Row where = rows[row];
            const bool real = where.page != NO_PAGE;
            const u8* from = real ? base + where.page * a.place.page_bytes + where.slot * ROW_BYTES + unit * 16 : base;
            char* keys = to + SPAN_UNIT_AT(row, unit);
            copy16(keys, from, real ? 16 : 0);
            copy16(keys + SPAN * ROW_STRIDE, from + to_values, real ? 16 : 0);
        }
        if (QUANTISED)
            for (int at = thread_id(); at < 2 * SPAN; at += THREADS) {
                const Row where = rows[at % SPAN];
                const bool real = where.page != NO_PAGE;
                const u8* from = parameters_at(a.place, at / SPAN, s.head, real ? where.page : 0, where.slot);
                copy4(to + 2 * SPAN * ROW_STRIDE + at * 4, from, real ? 4 : 0);
            }
    }
    copies_commit();
}

// The first AHEAD spans.
FN void start_spans(const Spans& s, const Args& a) {
    note_row(s, 0, find_row(s, a, 0));
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        note_row(s, i + 1, find_row(s, a, i + 1));
        sync_block();
        fetch_span(s, a, i);
        if (i + 1 < AHEAD) sync_block();
    }
}

// The sum of a line's, whose four lanes follow each other.
FN float line_sum(float x) {
    x += shuffle_xor(x, 1);
    return x + shuffle_xor(x, 2);
}

#if QUANTISED
FN void parameters_of_position(const float* parameters, int i, float& scale, float& zero) {
#if KV == KV_FP8
    scale = parameters[i], zero = 0.f;
#else
    const u32 bits = as_bits(parameters[i]);
    scale = from_f16((u16)bits);
    zero = fmaf(128.f, scale, from_f16((u16)(bits >> 16)));
#endif
}
// The largest scale of the span.
FN float largest_scale(const float* parameters) {
    float largest = 0.f, scale, zero;
    for (int i = thread_id() & 31; i < SPAN; i += 32) {
        parameters_of_position(parameters, i, scale, zero);
        largest = fmaxf(largest, scale);
    }
    return warp_max(largest);
}
template <class Strip> FN void scale_scores(float (&x)[SPAN / 8][4], const Strip& s, const float* parameters) {
#pragma unroll
    for (int j = 0; j < SPAN / 8; j++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            float scale, zero;
            parameters_of_position(parameters, 8 * j + 2 * (thread_id() & 3) + k, scale, zero);
#pragma unroll
            for (int line = 0; line < 2; line++) {
#if KV == KV_FP8
                x[j][2 * line + k] *= scale;
#else
                x[j][2 * line + k] = fmaf(x[j][2 * line + k], scale, zero * s.query_sum[line]);
#endif
            }
        }
}
// Weights and values' scales in one: as a share of the largest scale, which fits an f16.
template <class Strip>
FN void scale_weights(float (&x)[SPAN / 8][4], Strip& s, const float (&factor)[2], const float* parameters, float unit) {
    const float inverse = unit > 0.f ? 1.f / unit : 0.f;
#if KV == KV_INT8
    float offset[2] = {0.f, 0.f};
#endif
#pragma unroll
    for (int j = 0; j < SPAN / 8; j++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            float scale, zero;
            parameters_of_position(parameters, 8 * j + 2 * (thread_id() & 3) + k, scale, zero);
#pragma unroll
            for (int line = 0; line < 2; line++) {
#if KV == KV_INT8
                offset[line] = fmaf(x[j][2 * line + k], zero, offset[line]);
#endif
                x[j][2 * line + k] *= scale * inverse;
            }
        }
#if KV == KV_INT8
#pragma unroll
    for (int line = 0; line < 2; line++) s.offset[line] = fmaf(s.offset[line], factor[line], offset[line]);
#endif
}
#endif
