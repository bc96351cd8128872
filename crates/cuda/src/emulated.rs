//! A device for tests: kernels compiled with g++ against `cu/emulation.h`, memory of the process.

use crate::backend::Cuda;
use crate::device::{Device, Grid, OwnWay, Processors, Product, Recorded};
use crate::kernels::Kernel;
use libloading::Library;
use octavo_backend::BackendError;
use octavo_backend::conformance::Tolerance;
use std::alloc::{Layout, alloc, dealloc};
use std::collections::{HashMap, HashSet};
use std::ffi::c_void;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::panicking;

const EMULATION: &str = include_str!("../cu/emulation.h");

/// Bytes behind every allocation, and what is in them until something is written where it does not belong.
const FENCE: usize = 256;
const UNTOUCHED: u8 = 0xa5;

type Launch = unsafe extern "C" fn(*const c_void, u32, u32, u32, u32);

/// The compiled kernels of this process; one that is being compiled is waited for.
static LOADED: OnceLock<Mutex<HashMap<Kernel, Arc<OnceLock<Library>>>>> = OnceLock::new();

#[derive(Default)]
pub(crate) struct Emulated {
    /// Its blocks have as little shared memory as those of any device.
    is_small: bool,
    allocated: Allocated,
    recording: Mutex<Option<Vec<Launched>>>,
    /// How many have been made.
    pub(crate) recordings: AtomicU64,
    /// Products that recur, and that do not.
    pub(crate) products: [AtomicU64; 2],
    moves: AtomicU64,
    /// How often somebody has waited.
    pub(crate) waits: AtomicU64,
    /// Kernels that were asked for in a rehearsal, if one is under way, and those that ran.
    pub(crate) rehearsed: Mutex<Option<HashSet<Kernel>>>,
    pub(crate) ran: Mutex<HashSet<Kernel>>,
}

/// By address. Whoever has memory has the device, too: at its end there is none.
#[derive(Default)]
struct Allocated(Mutex<HashMap<u64, Layout>>);

impl Drop for Allocated {
    fn drop(&mut self) {
        let left = self.0.get_mut().map_or(0, |left| left.len());
        assert!(left == 0 || panicking(), "{left} allocations were never released");
    }
}

#[derive(Debug)]
struct Launched {
    kernel: Kernel,
    grid: Grid,
    args: Vec<u64>,
}

#[derive(Debug)]
struct Launches(Vec<Launched>);

impl Recorded for Launches {
    fn replay(&self) -> Result<(), BackendError> {
        for launched in &self.0 {
            // SAFETY: the promise of whoever recorded it: recordings are dropped when anything they use moves.
            unsafe { run(launched.kernel, launched.grid, launched.args.as_ptr().cast()) };
        }
        Ok(())
    }

    fn kernels(&self) -> usize {
        self.0.len()
    }
}

impl Emulated {
    pub(crate) fn small() -> Self {
        Self { is_small: true, ..Self::default() }
    }

    /// A GPU refuses, or does what nobody meant.
    fn not_recording(&self) {
        assert!(self.recording.lock().unwrap().is_none(), "nothing but launches in a recording");
    }
}

/// # Safety
/// `args` points to what the kernel's text declares.
unsafe fn run(kernel: Kernel, grid: Grid, args: *const c_void) {
    let slot = loaded(kernel);
    let library = slot.get().expect("loaded");
    // SAFETY: `launch` of emulation.h has this signature.
    let launch = unsafe { library.get::<Launch>(b"launch").expect("an entry") };
    // SAFETY: the caller's promise.
    unsafe { launch(args, grid.blocks[0], grid.blocks[1], grid.threads, grid.shared) };
}

/// Compiles the text into a library that is kept between runs.
fn compile(kernel: Kernel) -> PathBuf {
    let text = format!("{EMULATION}\n{}", kernel.text());
    let folder = std::env::temp_dir().join("octavo-emulated");
    fs::create_dir_all(&folder).expect("a folder for compiled kernels");
    let name = format!("{}-{}", kernel.name, &blake3::hash(text.as_bytes()).to_hex()[..16]);
    let library = folder.join(format!("{name}.so"));
    if !library.exists() {
        let source = folder.join(format!("{name}-{}.cpp", std::process::id()));
        fs::write(&source, text).expect("the text of a kernel");
        run_compiler(&source, &library);
        fs::remove_file(&source).expect("the text of a kernel");
    }
    library
}

fn run_compiler(source: &Path, library: &Path) {
    let partial = source.with_extension("so");
    let result = Command::new("g++")
        .args(["-std=c++17", "-O1", "-fPIC", "-shared", "-ffp-contract=off", "-w", "-o"])
        .args([&partial, source])
        .output()
        .expect("these tests need g++: install it (Debian: apt-get install g++)");
    assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
    fs::rename(partial, library).expect("the compiled kernel");
}

fn loaded(kernel: Kernel) -> Arc<OnceLock<Library>> {
    let slot = LOADED.get_or_init(Mutex::default).lock().unwrap().entry(kernel).or_default().clone();
    slot.get_or_init(|| {
        // SAFETY: compiled from this crate's own texts; its initialisers fill a table.
        unsafe { Library::new(compile(kernel)).expect("the compiled kernel") }
    });
    slot
}

impl Device for Emulated {
    fn name(&self) -> String {
        "emulated".into()
    }

    fn processors(&self) -> Processors {
        Processors { count: 4, shared: if self.is_small { 99 << 10 } else { Processors::MANY.shared } }
    }

    fn capability(&self) -> (i32, i32) {
        crate::FIRST_WITH_FP8
    }

    fn free_memory(&self) -> Result<u64, BackendError> {
        Ok(1 << 30)
    }

    fn allocate(&self, bytes: usize) -> Result<u64, BackendError> {
        self.not_recording();
        let layout = Layout::from_size_align(bytes + FENCE, 256).unwrap();
        // SAFETY: at least the fence.
        let address = unsafe { alloc(layout) };
        // SAFETY: just allocated; NaNs in every precision, so that what was not written shows.
        unsafe { address.write_bytes(0xff, bytes) };
        // SAFETY: as above.
        unsafe { address.add(bytes).write_bytes(UNTOUCHED, FENCE) };
        self.allocated.0.lock().unwrap().insert(address as u64, layout);
        Ok(address as u64)
    }

    unsafe fn release(&self, address: u64) {
        let layout = self.allocated.0.lock().unwrap().remove(&address).expect("released once");
        let bytes = layout.size() - FENCE;
        // SAFETY: written when it was allocated.
        let fence = unsafe { std::slice::from_raw_parts((address as *const u8).add(bytes), FENCE) };
        let is_whole = fence.iter().all(|byte| *byte == UNTOUCHED);
        assert!(is_whole || panicking(), "something was written behind {bytes} bytes");
        // SAFETY: allocated above with this layout.
        unsafe { dealloc(address as *mut u8, layout) };
    }

    unsafe fn upload(&self, to: u64, from: &[u8]) -> Result<(), BackendError> {
        self.not_recording();
        // SAFETY: the caller's promise.
        unsafe { (to as *mut u8).copy_from(from.as_ptr(), from.len()) };
        Ok(())
    }

    unsafe fn download(&self, from: u64, to: &mut [u8]) -> Result<(), BackendError> {
        self.not_recording();
        // SAFETY: the caller's promise.
        unsafe { (from as *const u8).copy_to(to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    unsafe fn zero(&self, at: u64, bytes: usize) -> Result<(), BackendError> {
        self.not_recording();
        // SAFETY: the caller's promise.
        unsafe { (at as *mut u8).write_bytes(0, bytes) };
        Ok(())
    }

    unsafe fn launch(&self, kernel: Kernel, grid: Grid, args: *const c_void) -> Result<(), BackendError> {
        if let Some(asked) = &mut *self.rehearsed.lock().unwrap() {
            asked.insert(kernel);
            return Ok(());
        }
        assert!(grid.shared as usize <= self.processors().shared, "shared memory of {kernel:?}: {grid:?}");
        self.ran.lock().unwrap().insert(kernel);
        if let Some(launches) = &mut *self.recording.lock().unwrap() {
            let mut copy = vec![0u64; kernel.args_bytes().div_ceil(8)];
            // SAFETY: as many bytes as the kernel's arguments have.
            unsafe { copy.as_mut_ptr().cast::<u8>().copy_from(args.cast(), kernel.args_bytes()) };
            launches.push(Launched { kernel, grid, args: copy });
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { run(kernel, grid, args) };
        Ok(())
    }

    unsafe fn multiply(&self, p: Product, _: Option<OwnWay<'_>>) -> Result<Option<usize>, BackendError> {
        self.products[usize::from(!p.recurs)].fetch_add(1, Ordering::Relaxed);
        Ok(None)
    }

    fn rehearse(&self, begins: bool) -> Result<(), BackendError> {
        *self.rehearsed.lock().unwrap() = begins.then(HashSet::new);
        Ok(())
    }

    fn allocate_host(&self, bytes: usize) -> Result<*mut u8, BackendError> {
        self.allocate(bytes).map(|address| address as *mut u8)
    }

    unsafe fn release_host(&self, address: *mut u8, _: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.release(address as u64) };
    }

    unsafe fn upload_later(&self, to: u64, from: &[u8]) -> Result<(), BackendError> {
        // SAFETY: the caller's promise.
        unsafe { self.upload(to, from) }
    }

    fn wait(&self) -> Result<(), BackendError> {
        self.not_recording();
        self.waits.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn record(&self) -> Result<(), BackendError> {
        self.not_recording();
        *self.recording.lock().unwrap() = Some(Vec::new());
        Ok(())
    }

    fn recorded(&self) -> Result<Box<dyn Recorded>, BackendError> {
        let launches = self.recording.lock().unwrap().take().expect("a recording");
        self.recordings.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(Launches(launches)))
    }

    fn note_move(&self) {
        self.moves.fetch_add(1, Ordering::Relaxed);
    }

    fn moves(&self) -> u64 {
        self.moves.load(Ordering::Relaxed)
    }
}

pub(crate) fn emulated(deterministic: bool) -> Cuda {
    Cuda::on(Arc::new(Emulated::default()), deterministic, true)
}

mod same_bits_whatever_the_batch {
    octavo_backend::conformance!(super::emulated(true), super::Tolerance::BF16);
}

mod fast {
    use super::{Tolerance, emulated};
    use crate::kernels::ChunkOptions;
    use crate::plan::Tuning;
    use octavo_backend::conformance;

    /// Long sequences would take long to emulate: short ones in parts of one tile or two merge as many.
    #[test]
    fn parts_of_a_sequence_merge_into_what_it_is_in_one() {
        let cuda = emulated(false);
        cuda.tuning.set(Tuning { part_tiles: 1, ..Tuning::default() });
        conformance::attention_matches_the_reference(&cuda, Tolerance::BF16);
        let cuda = emulated(true);
        cuda.tuning.set(Tuning { part_tiles: 2, ..Tuning::default() });
        conformance::one_chunk_equals_many(&cuda, Tolerance::BF16);
        conformance::attention_alone_equals_attention_in_a_batch(&cuda, Tolerance::BF16);
    }

    /// Chunks of two rows and more, as the kernel for many rows sees them: strips of one and two, all codecs.
    #[test]
    fn rows_of_a_chunk_attend_like_rows_by_themselves() {
        let of = |strips, span, stages| ChunkOptions {
            strips,
            warps: 5 - stages,
            span,
            stages,
            min_blocks: 1,
            staggered: stages == 3,
            grouped: false,
        };
        for chunk in [of(1, 32, 2), of(2, 16, 3)] {
            let cuda = emulated(false);
            cuda.tuning.set(Tuning {
                chunk_lines: 2,
                chunk: Some(chunk),
                part_tiles: 3,
                ..Tuning::default()
            });
            conformance::attention_matches_the_reference(&cuda, Tolerance::BF16);
            conformance::stale_contents_of_pages_never_reach_a_result(&cuda, Tolerance::BF16);
        }
    }

    /// With the blocks that measurements prefer; every precision, pages of all kinds.
    #[test]
    fn stale_contents_of_pages_never_reach_a_result() {
        conformance::stale_contents_of_pages_never_reach_a_result(&emulated(false), Tolerance::BF16);
    }
}
