//! How the keys of a head lie within their part of a page. Values lie in rows.

use octavo_backend::PageLayout;

/// Positions whose scores are computed at a time, a lane each.
pub(crate) const TILE: usize = 16;
/// Elements of a key that are multiplied together where they are bytes, and that attention reads at a time.
pub(crate) const FOUR: usize = 4;

/// Where the keys of one head lie: `[slot / tile][part][slot % tile][bytes of a part]`.
///
/// A part is an element, or four of them where they are bytes. With tiles of sixteen slots the parts that attention
/// multiplies at once, one of each position, lie together: nothing has to be summed across the lanes of a vector. With
/// tiles of one slot keys lie in rows as values do, for memory that others look at, too. Where a page ends before a
/// tile or a row before a part, those are as much shorter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct KeyOrder {
    tile: usize,
    part: usize,
    page_size: usize,
    row_bytes: usize,
}

/// Where the parts of one key lie.
struct Place {
    /// The first, and how far it is from one to the next.
    first: usize,
    step: usize,
    /// What is left of the row behind the last whole part.
    rest: usize,
}

impl KeyOrder {
    pub(crate) fn tiles(layout: &PageLayout) -> Self {
        Self::new(TILE, layout)
    }

    pub(crate) fn rows(layout: &PageLayout) -> Self {
        Self::new(1, layout)
    }

    fn new(tile: usize, layout: &PageLayout) -> Self {
        let part = match layout.element_bytes() {
            1 => FOUR,
            bytes => bytes,
        };
        Self { tile, part, page_size: layout.page_size, row_bytes: layout.row_bytes() }
    }

    /// Sixteen keys that were taken out of pages.
    pub(crate) fn one_tile(self) -> Self {
        Self { tile: TILE, page_size: TILE, ..self }
    }

    /// Whether sixteen keys lie as attention reads them, in pages that they fill.
    pub(crate) fn is_in_tiles(self) -> bool {
        self.tile == TILE
    }

    /// Sixteen keys, one after another, as one tile.
    pub(crate) fn tile_of_rows(self, rows: &[u8], tile: &mut [u8]) {
        if !self.row_bytes.is_multiple_of(16) {
            for (lane, row) in rows.chunks_exact(self.row_bytes).enumerate() {
                self.one_tile().write(row, tile, lane);
            }
            return;
        }
        for at in (0..self.row_bytes).step_by(16) {
            let (rows, out) = (&rows[at..], tile[at * TILE..].first_chunk_mut().expect("room for the rows"));
            match self.part {
                2 => transpose::<2>(rows, self.row_bytes, out),
                _ => transpose::<4>(rows, self.row_bytes, out),
            }
        }
    }

    #[inline(always)]
    fn place(&self, slot: usize) -> Place {
        let first_slot = slot / self.tile * self.tile;
        let (width, lane) = (self.tile.min(self.page_size - first_slot), slot - first_slot);
        let rest = self.row_bytes % self.part;
        let at = first_slot * self.row_bytes;
        Place {
            first: at + lane * self.part,
            step: width * self.part,
            rest: at + (self.row_bytes - rest) * width + lane * rest,
        }
    }

    /// Puts a key into its slot. `plane`: the keys of the head in the page.
    #[inline(always)]
    pub(crate) fn write(&self, row: &[u8], plane: &mut [u8], slot: usize) {
        match self.part {
            2 => self.write_parts::<2>(row, plane, slot),
            _ => self.write_parts::<4>(row, plane, slot),
        }
    }

    #[inline(always)]
    fn write_parts<const N: usize>(&self, row: &[u8], plane: &mut [u8], slot: usize) {
        assert_eq!((self.part, row.len()), (N, self.row_bytes), "a part, and a row");
        let place = self.place(slot);
        let (parts, rest) = row.as_chunks::<N>();
        for (i, part) in parts.iter().enumerate() {
            plane[place.first + i * place.step..][..N].copy_from_slice(part);
        }
        plane[place.rest..][..rest.len()].copy_from_slice(rest);
    }

    /// Takes a key out of its slot.
    #[inline(always)]
    pub(crate) fn read(&self, plane: &[u8], slot: usize, row: &mut [u8]) {
        match self.part {
            2 => self.read_parts::<2>(plane, slot, row),
            _ => self.read_parts::<4>(plane, slot, row),
        }
    }

    #[inline(always)]
    fn read_parts<const N: usize>(&self, plane: &[u8], slot: usize, row: &mut [u8]) {
        assert_eq!((self.part, row.len()), (N, self.row_bytes), "a part, and a row");
        let place = self.place(slot);
        let (parts, rest) = row.as_chunks_mut::<N>();
        for (i, part) in parts.iter_mut().enumerate() {
            part.copy_from_slice(&plane[place.first + i * place.step..][..N]);
        }
        rest.copy_from_slice(&plane[place.rest..][..rest.len()]);
    }

    /// Copies a key from its slot to one of a plane in another order.
    pub(crate) fn copy_key(&self, from: &[u8], slot: usize, order: &Self, to: &mut [u8], to_slot: usize) {
        let (place, to_place) = (self.place(slot), order.place(to_slot));
        for i in 0..self.row_bytes / self.part {
            let part = &from[place.first + i * place.step..][..self.part];
            to[to_place.first + i * to_place.step..][..self.part].copy_from_slice(part);
        }
        let rest = self.row_bytes % self.part;
        to[to_place.rest..][..rest].copy_from_slice(&from[place.rest..][..rest]);
    }

    /// Copies the first `slots` of a plane, and no other byte.
    pub(crate) fn copy(&self, from: &[u8], to: &mut [u8], slots: usize) {
        let whole = slots / self.tile * self.tile;
        let bytes = whole * self.row_bytes;
        to[..bytes].copy_from_slice(&from[..bytes]);
        for slot in whole..slots {
            self.copy_key(from, slot, self, to, slot);
        }
    }
}

/// The first sixteen bytes of keys that are `stride` apart, in parts of `N`: a part of all keys, and then the next.
#[cfg(target_arch = "x86_64")]
fn transpose<const N: usize>(rows: &[u8], stride: usize, out: &mut [u8; 16 * TILE]) {
    use std::arch::x86_64::*;
    assert!(rows.len() >= (TILE - 1) * stride + 16, "sixteen keys");
    // SAFETY: instructions that every processor of this kind has, on sixteen bytes each.
    unsafe {
        let mut x = [_mm_setzero_si128(); TILE];
        for (lane, x) in x.iter_mut().enumerate() {
            *x = _mm_loadu_si128(rows.as_ptr().add(lane * stride).cast());
        }
        // Parts of the first eight and of the last eight alternate: so often that they have changed places.
        for _ in 0..TILE.ilog2() {
            let old = x;
            for i in 0..TILE / 2 {
                let (a, b) = (old[i], old[i + TILE / 2]);
                [x[2 * i], x[2 * i + 1]] = match N {
                    2 => [_mm_unpacklo_epi16(a, b), _mm_unpackhi_epi16(a, b)],
                    _ => [_mm_unpacklo_epi32(a, b), _mm_unpackhi_epi32(a, b)],
                };
            }
        }
        for (i, x) in x.into_iter().enumerate() {
            _mm_storeu_si128(out.as_mut_ptr().add(16 * i).cast(), x);
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn transpose<const N: usize>(rows: &[u8], stride: usize, out: &mut [u8; 16 * TILE]) {
    for (i, part) in out.chunks_exact_mut(N).enumerate() {
        part.copy_from_slice(&rows[i % TILE * stride + i / TILE * N..][..N]);
    }
}

/// The elements of a tile of keys behind the last four, as four of which the others are 0.
///
/// # Safety
/// `tile` has sixteen keys of `dim` elements of so many bytes.
pub(crate) unsafe fn last_elements(tile: *const u8, dim: usize, bytes: usize) -> [u8; FOUR * TILE * 4] {
    let (whole, left) = (dim / FOUR * FOUR, dim % FOUR);
    let mut all = [0; FOUR * TILE * 4];
    // SAFETY: what is left of the tile is read, and `all` has room for it.
    unsafe {
        let from = tile.add(whole * TILE * bytes);
        if bytes == 1 {
            for lane in 0..TILE {
                let to = all[lane * FOUR..].as_mut_ptr();
                from.add(lane * left).copy_to_nonoverlapping(to, left);
            }
        } else {
            from.copy_to_nonoverlapping(all.as_mut_ptr(), left * TILE * bytes);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use octavo_types::KvDtype;

    fn layout(page_size: usize, head_dim: usize, dtype: KvDtype) -> PageLayout {
        PageLayout { layers: 1, kv_heads: 1, page_size, head_dim, dtype }
    }

    /// Every page size and width that has a shorter tile or part, or none.
    fn all() -> impl Iterator<Item = (KeyOrder, usize)> {
        let dtypes = [KvDtype::F32, KvDtype::F16, KvDtype::Fp8];
        let sizes = [1, 5, 15, 16, 17, 24, 32, 40];
        let layouts = dtypes.into_iter().flat_map(move |dtype| {
            sizes.into_iter().flat_map(move |size| [2, 7, 16, 19, 20].map(|dim| layout(size, dim, dtype)))
        });
        layouts.flat_map(|layout| {
            [KeyOrder::tiles(&layout), KeyOrder::rows(&layout)].map(|order| (order, layout.page_size))
        })
    }

    fn row(order: &KeyOrder, slot: usize) -> Vec<u8> {
        (0..order.row_bytes).map(|i| (1 + slot * 31 + i * 7) as u8).collect()
    }

    #[test]
    fn keys_fill_their_plane_and_come_back() {
        for (order, slots) in all() {
            let mut touched = vec![0; slots * order.row_bytes];
            let mut plane = touched.clone();
            for slot in 0..slots {
                let mut only = vec![0; plane.len()];
                order.write(&vec![1; order.row_bytes], &mut only, slot);
                touched.iter_mut().zip(only).for_each(|(sum, one)| *sum += one);
                order.write(&row(&order, slot), &mut plane, slot);
            }
            assert!(touched.iter().all(|n| *n == 1), "every byte belongs to one slot: {order:?}");
            let mut got = vec![0; order.row_bytes];
            for slot in 0..slots {
                order.read(&plane, slot, &mut got);
                assert_eq!(got, row(&order, slot), "slot {slot} of {order:?}");
            }
        }
    }

    #[test]
    fn a_copy_has_the_first_slots_and_nothing_else() {
        for (order, slots) in all() {
            let mut from = vec![0; slots * order.row_bytes];
            (0..slots).for_each(|slot| order.write(&row(&order, slot), &mut from, slot));
            for copied in 0..=slots {
                let (mut got, mut want) = (vec![0xee; from.len()], vec![0xee; from.len()]);
                order.copy(&from, &mut got, copied);
                (0..copied).for_each(|slot| order.write(&row(&order, slot), &mut want, slot));
                assert_eq!(got, want, "{copied} slots of {order:?}");
            }
        }
    }

    #[test]
    fn sixteen_rows_become_a_tile() {
        for (order, _) in all() {
            let rows: Vec<u8> = (0..TILE).flat_map(|slot| row(&order, slot)).collect();
            let (mut got, mut want) = (vec![0; rows.len()], vec![0; rows.len()]);
            order.tile_of_rows(&rows, &mut got);
            (0..TILE).for_each(|slot| order.one_tile().write(&row(&order, slot), &mut want, slot));
            assert_eq!(got, want, "{order:?}");
        }
    }

    #[test]
    fn sixteen_slots_lie_part_by_part() {
        let order = KeyOrder::tiles(&layout(32, 8, KvDtype::Int8));
        let mut plane = vec![0; 32 * 8];
        (0..32).for_each(|slot| order.write(&[slot as u8; 8], &mut plane, slot));
        for (i, slot) in plane.into_iter().enumerate() {
            let (tile, lane) = (i / (16 * 8), i % 64 / 4);
            assert_eq!(usize::from(slot), tile * 16 + lane, "byte {i}");
        }
        let order = KeyOrder::tiles(&layout(16, 2, KvDtype::F16));
        let mut plane = vec![0; 64];
        order.write(&[1, 2, 3, 4], &mut plane, 5);
        assert_eq!((&plane[10..12], &plane[42..44]), (&[1, 2][..], &[3, 4][..]));
    }
}
