//! Does attention over pages read memory as fast as the machine can, and as fast as over contiguous slots?
//!
//! One decode step of one layer: K and V of at least `GIB` (default 1), four query heads a kv head, head_dim 128,
//! context 4096, pages in random order. `attention_speed [GIB] [THREADS] [LEVEL]`.

use octavo_backend::{AttentionSpec, Heads, PageLayout, Random, Rows, Span, TableView};
use octavo_cpu::{Arena, Buf, Level, Pool, attention};
use octavo_types::{KvDtype, KvSpec, PageId, PageSize, Pages};
use std::num::NonZeroUsize;
use std::time::Instant;

const CONTEXT: usize = 4096;
const HEADS: Heads = Heads { q: 32, kv: 8, dim: 128 };
const ROUNDS: usize = 7;

struct Case {
    arena: Arena,
    tables: Vec<Vec<PageId>>,
    qkv: Buf,
    out: Buf,
}

impl Case {
    fn new(dtype: KvDtype, page_size: usize, bytes: usize) -> Self {
        let size = PageSize::new(page_size as u32).expect("a page size");
        let spec =
            KvSpec::full_attention(1, HEADS.kv as u32, HEADS.dim as u32, dtype, size).expect("a geometry");
        let layout = PageLayout::new(&spec);
        let pages_each = CONTEXT / page_size;
        let sequences = bytes.div_ceil(pages_each * layout.page_bytes());
        let pages = sequences * pages_each;
        let mut arena = Arena::new(layout, Pages(pages as u32)).expect("memory");
        let mut random = Random::new(3);
        fill(&mut arena, &mut random);
        let mut order: Vec<PageId> = (0..pages as u32).map(PageId).collect();
        random.shuffle(&mut order);
        let mut qkv = Buf::new(sequences, HEADS.qkv_cols());
        qkv.data_mut().copy_from_slice(&random.values(sequences * HEADS.qkv_cols(), 1.0));
        let out = Buf::new(sequences, HEADS.q * HEADS.dim);
        Self { arena, tables: order.chunks(pages_each).map(<[_]>::to_vec).collect(), qkv, out }
    }

    fn sequences(&self) -> usize {
        self.tables.len()
    }

    fn bytes(&self) -> usize {
        self.arena.pages() * self.arena.layout().page_bytes()
    }

    /// Seconds of one step.
    fn step(&mut self, level: Level, pool: &Pool) -> f64 {
        let spans: Vec<Span> = (0..self.sequences())
            .map(|row| Span { first_row: row, rows: 1, start: CONTEXT as u32 - 1 })
            .collect();
        let tables: Vec<_> = self.tables.iter().map(|pages| TableView { first: 0, pages }).collect();
        let tokens = vec![0; self.sequences()];
        let rows = Rows { tokens: &tokens, spans: &spans };
        let spec = AttentionSpec { heads: HEADS, scale: 0.088, window: None, layer: 0 };
        let start = Instant::now();
        attention(level, pool, &self.qkv, &spec, rows, &tables, &self.arena, &mut self.out);
        start.elapsed().as_secs_f64()
    }

    /// Seconds of reading every byte once.
    fn read(&self, pool: &Pool) -> f64 {
        let start = Instant::now();
        let pages = self.arena.pages();
        let part = pages.div_ceil(pool.threads() * 8);
        pool.run(pages.div_ceil(part), &|i| {
            for page in i * part..((i + 1) * part).min(pages) {
                std::hint::black_box(sum(self.arena.page(PageId(page as u32))));
            }
        });
        start.elapsed().as_secs_f64()
    }
}

/// Small numbers in every precision, and scales that are numbers.
fn fill(arena: &mut Arena, random: &mut Random) {
    let layout = *arena.layout();
    let mut page = vec![0u8; layout.page_bytes()];
    for slot in 0..layout.page_size * layout.kv_heads * 2 {
        let row = random.values(layout.head_dim, 1.0);
        let (bytes, parameters) = (layout.row_bytes(), layout.parameter_bytes());
        let all = layout.page_size * layout.kv_heads * 2;
        let (rows, rest) = page.split_at_mut(all * bytes);
        octavo_backend::codec::encode(
            layout.dtype,
            &row,
            &mut rows[slot * bytes..][..bytes],
            &mut rest[slot * parameters..][..parameters],
        );
    }
    for i in 0..arena.pages() {
        arena.page_mut(PageId(i as u32)).copy_from_slice(&page);
    }
}

fn sum(bytes: &[u8]) -> u64 {
    let (lines, _) = bytes.as_chunks::<64>();
    // Four streams at once keep more lines in flight than one.
    let (quarter, mut sums) = (lines.len() / 4, [0u64; 8]);
    for i in 0..quarter {
        for stream in 0..4 {
            let line = &lines[stream * quarter + i];
            for (sum, word) in sums.iter_mut().zip(line.as_chunks::<8>().0) {
                *sum = sum.wrapping_add(u64::from_le_bytes(*word));
            }
        }
    }
    sums.iter().fold(0, |a, b| a.wrapping_add(*b))
}

fn best(mut seconds: impl FnMut() -> f64) -> f64 {
    (0..ROUNDS).map(|_| seconds()).fold(f64::INFINITY, f64::min)
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let gib: f64 = arguments.next().map_or(1.0, |x| x.parse().expect("GIB is a number"));
    let threads = arguments.next().map_or(2, |x| x.parse().expect("THREADS is a number"));
    let level = match arguments.next().as_deref() {
        None => Level::detect(),
        Some("avx512") => Level::Avx512,
        Some("avx2") => Level::Avx2,
        Some(_) => Level::Portable,
    };
    let pool = Pool::new(NonZeroUsize::new(threads).expect("at least one thread"));
    let bytes = (gib * f64::from(1 << 30)) as usize;
    println!("{level:?}, {threads} threads, {gib} GiB, context {CONTEXT}, {HEADS:?}");
    println!("codec   pages         GB/s   read GB/s   fraction   tokens/s   against contiguous");
    for dtype in [KvDtype::F16, KvDtype::Bf16, KvDtype::Int8, KvDtype::Fp8, KvDtype::F32] {
        let mut contiguous = 0.0;
        for (name, page_size) in [("contiguous", CONTEXT), ("paged 16", 16)] {
            let mut case = Case::new(dtype, page_size, bytes);
            let (mut seconds, mut read) = (f64::INFINITY, f64::INFINITY);
            // Taken in turns, so that a neighbour's load hits both.
            for _ in 0..ROUNDS {
                seconds = seconds.min(case.step(level, &pool));
                read = read.min(case.read(&pool));
            }
            read = read.min(best(|| case.read(&pool)));
            let (speed, ceiling) = (case.bytes() as f64 / seconds / 1e9, case.bytes() as f64 / read / 1e9);
            let tokens = case.sequences() as f64 / seconds;
            if page_size == CONTEXT {
                contiguous = tokens;
            }
            println!(
                "{dtype:<7?} {name:<10} {speed:>7.1} {ceiling:>11.1} {:>10.2} {tokens:>10.0} {:>10.3}",
                speed / ceiling,
                tokens / contiguous
            );
        }
    }
}
