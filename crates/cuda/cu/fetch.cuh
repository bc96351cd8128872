// How a warp fetches tiles into its own ring.
#include "work.cuh"

// Starts copying the rows [from, to) of a tile into `stage`, by one warp; the others become zeros. `page_of(row)` and
// `slot_of(row)` say where a row lies; without SMALL_PAGES they are asked for row 0 alone.
template <class PageOf, class SlotOf>
FN void fetch_tile(char* stage, const Place& place, u32 head, int from, int to, PageOf page_of, SlotOf slot_of) {
    const int lane = thread_id() & 31;
    u32 page = page_of(0), slot = slot_of(0);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const u8* base = row_at(place, half, head, page, slot);
#pragma unroll
        for (int at = lane; at < TILE * UNITS; at += 32) {
            const int row = at / UNITS, unit = at % UNITS;
            const bool wanted = row >= from && row < to;
            const u8* source = base + at * 16;
            if (SMALL_PAGES) source = wanted ? row_at(place, half, head, page_of(row), slot_of(row)) + unit * 16 : place.arena;
            copy16(stage + half * HALF_BYTES + unit_at(row, unit), source, wanted ? 16 : 0);
        }
    }
    if (QUANTISED) {
        const int half = lane >> 4, row = lane & 15;
        const bool wanted = row >= from && row < to;
        const u8* source = parameters_at(place, half, head, page, slot) + row * 4;
        if (SMALL_PAGES) source = wanted ? parameters_at(place, half, head, page_of(row), slot_of(row)) : place.arena;
        copy4(stage + 2 * HALF_BYTES + lane * 4, source, wanted ? 4 : 0);
    }
}

// A warp's walk over its tiles of all items of its share: of each item first, first + WARPS, ... Fetching runs ahead of
// folding, into the next item, too.
struct Fetch {
    char* ring;
    u32 head;
    // Tiles fetched and folded, of all items.
    int fetched, folded;
    // Of the item that is fetched: the next one, where its pages are, its tiles, how many of them have been fetched.
    int next, table, first, count, at;
    // Positions that the item sees: [low, high).
    int low, high;
    // The first that this step writes.
    int fresh;
    // Pages of 32 tiles, one a lane: those in use, and the next.
    u32 pages, next_pages;
};

FN int first_tile(const Item& item) { return item.tile0 + ((thread_id() >> 5) - item.tile0 % WARPS + WARPS) % WARPS; }
FN int count_tiles(const Item& item) {
    const int first = first_tile(item);
    return first < item.tile1 ? (item.tile1 - first + WARPS - 1) / WARPS : 0;
}

#if TILE_PAGES
#define PAGE_SIZE TILE
#else
#define PAGE_SIZE a.place.page_size
#endif

FN u32 page_of_tile(const Args& a, const Fetch& f, int i) {
    if (SMALL_PAGES || i >= f.count) return 0;
    return a.pages[f.table + (int)((f.first + WARPS * i) * TILE / PAGE_SIZE)];
}

FN void start_item(Fetch& f, const Args& a, const Item& item) {
    f.next = item.next, f.table = item.table;
    f.first = first_tile(item), f.count = count_tiles(item), f.at = 0;
    f.low = first_seen(a, item.position);
    f.high = item.position + item.rows;
    f.fresh = item.position;
    f.pages = page_of_tile(a, f, thread_id() & 31);
    f.next_pages = page_of_tile(a, f, 32 + (thread_id() & 31));
}

FN Fetch start_fetch(const Args& a, const Item& item, u32 head, char* ring) {
    Fetch f;
    f.ring = ring, f.head = head;
    f.fetched = f.folded = 0;
    start_item(f, a, item);
    return f;
}

// Starts copying the next tile, if there is one.
FN void fetch_next(Fetch& f, const Args& a) {
    while (f.at >= f.count && f.next != 0) start_item(f, a, a.items[f.next]);
    if (f.at < f.count) {
        if (f.at > 0 && f.at % 32 == 0) {
            f.pages = f.next_pages;
            f.next_pages = page_of_tile(a, f, f.at + 32 + (thread_id() & 31));
        }
        const u32 page = shuffle(f.pages, f.at % 32);
        const int at = (f.first + WARPS * f.at) * TILE, size = PAGE_SIZE;
        // The first tiles may be fetched before that: see attention.cu.
        if (f.fetched < STAGES - 1 && at + TILE > f.fresh) after_previous();
        char* to = f.ring + f.fetched % STAGES * STAGE_BYTES;
        auto page_of = [&](int row) { return SMALL_PAGES ? a.pages[f.table + (at + row) / size] : page; };
        auto slot_of = [&](int row) { return size == TILE ? (u32)row : (u32)((at + row) % size); };
#if SMALL_PAGES
        auto page_or_first = [&](int row) { return at + row >= f.low && at + row < f.high ? page_of(row) : 0u; };
        fetch_tile(to, a.place, f.head, f.low - at, f.high - at, page_or_first, slot_of);
#else
        fetch_tile(to, a.place, f.head, f.low - at, f.high - at, page_of, slot_of);
#endif
        f.at++, f.fetched++;
    }
    copies_commit();
}

// Waits for the tile that is folded next.
FN const char* next_tile(Fetch& f) {
    const int stage = f.folded % STAGES;
    copies_wait<STAGES - 2>();
    sync_warp();
    f.folded++;
    return f.ring + stage * STAGE_BYTES;
}
