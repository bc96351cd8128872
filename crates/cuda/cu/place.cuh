// Where the rows of one layer lie in the arena; filled in by arena.rs.
#include "device.cuh"

struct Place {
    u8* arena;
    u64 page_bytes;
    // Offsets in a page of head 0's slot 0, keys then values: elements and parameters.
    u64 rows[2];
    u64 parameters[2];
    // From head to head.
    u32 head_rows;
    u32 head_parameters;
    u32 page_size;
    u32 row_bytes;
};

FN u8* row_at(const Place& p, int half, u32 head, u32 page, u32 slot) {
    return p.arena + page * p.page_bytes + p.rows[half] + (u64)head * p.head_rows + (u64)slot * p.row_bytes;
}
FN u8* parameters_at(const Place& p, int half, u32 head, u32 page, u32 slot) {
    return p.arena + page * p.page_bytes + p.parameters[half] + (u64)head * p.head_parameters + (u64)slot * 4;
}
