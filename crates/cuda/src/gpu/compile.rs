//! Kernel texts to machine code, by NVRTC, kept on disk: each image is followed by its hash, so that a file that was cut
//! short or changed is as good as none.

use crate::attention::GROUPING;
use crate::kernels::Kernel;
use cudarc::nvrtc::{result, sys};
use octavo_backend::BackendError;
use std::ffi::{CStr, CString};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

pub(super) struct Compiler {
    architecture: String,
    cache: Option<PathBuf>,
}

impl Compiler {
    /// Kernels for a compute capability, kept in a folder within `cache`.
    pub(super) fn new((major, minor): (i32, i32), cache: Option<PathBuf>) -> Self {
        // With what this one has and no later one: products of groups of warps.
        let extra = if (major, minor) == GROUPING { "a" } else { "" };
        Self {
            architecture: format!("sm_{major}{minor}{extra}"),
            cache: cache.map(|folder| folder.join("octavo").join("kernels")),
        }
    }

    pub(super) fn compile(&self, kernel: &Kernel) -> Result<Vec<u8>, BackendError> {
        let text = kernel.text();
        let kept = self.cache.as_ref().map(|folder| folder.join(self.file_name(kernel.name, &text)));
        if let Some(image) = kept.as_ref().and_then(|path| read(path)) {
            return Ok(image);
        }
        let image = translate(&text, &self.architecture)
            .map_err(|log| BackendError::Device(format!("NVRTC refused {}: {log}", kernel.name)))?;
        if let Some(path) = kept {
            keep(&path, &image);
        }
        Ok(image)
    }

    /// Changes with the text, the architecture, the compiler and its options.
    fn file_name(&self, name: &str, text: &str) -> String {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: writes two numbers.
        unsafe { sys::nvrtcVersion(&mut major, &mut minor) };
        let mut hasher = blake3::Hasher::new();
        let options = options(&self.architecture);
        hasher.update(text.as_bytes()).update(format!("nvrtc {major}.{minor} {options:?}").as_bytes());
        format!("{name}-{}-{}.cubin", self.architecture, &hasher.finalize().to_hex()[..24])
    }
}

/// An image that was kept, if it is whole.
fn read(path: &Path) -> Option<Vec<u8>> {
    let mut image = fs::read(path).ok()?;
    let end = image.len().checked_sub(blake3::OUT_LEN)?;
    let hash = image.split_off(end);
    (hash == blake3::hash(&image).as_bytes()).then_some(image)
}

/// Whole or not at all; a cache that cannot be written is no reason to fail.
fn keep(path: &Path, image: &[u8]) {
    // Processes of different machines or containers may share the folder, and a number.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let partial = path.with_extension(format!("{}-{now}.partial", std::process::id()));
    let folder = path.parent().expect("a file of a folder");
    let hashed = [image, blake3::hash(image).as_bytes()].concat();
    let kept = fs::create_dir_all(folder)
        .and_then(|()| fs::write(&partial, hashed))
        .and_then(|()| fs::rename(&partial, path));
    if kept.is_err() {
        let _ = fs::remove_file(&partial);
    }
}

/// Sums are fused where the text says so and nowhere else: all instances of a kernel round alike.
fn options(architecture: &str) -> [String; 3] {
    [format!("--gpu-architecture={architecture}"), "--std=c++17".into(), "--fmad=false".into()]
}

fn translate(text: &str, architecture: &str) -> Result<Vec<u8>, String> {
    let source = CString::new(text).expect("a text without zeros");
    let options = options(architecture);
    let program = result::create_program(&source, None).map_err(|error| error.to_string())?;
    // SAFETY: `program` was created above and is destroyed once, below.
    let compiled = unsafe { result::compile_program(program, &options) };
    let image = match compiled {
        Ok(()) => machine_code(program).map_err(|error| error.to_string()),
        Err(error) => Err(format!("{error}\n{}", log_of(program))),
    };
    // SAFETY: as above.
    unsafe { result::destroy_program(program) }.map_err(|error| error.to_string())?;
    image
}

fn machine_code(program: sys::nvrtcProgram) -> Result<Vec<u8>, result::NvrtcError> {
    let mut size = 0;
    // SAFETY: a live program; the size is asked for, and that many bytes are written.
    unsafe {
        sys::nvrtcGetCUBINSize(program, &mut size).result()?;
        let mut image = vec![0u8; size];
        sys::nvrtcGetCUBIN(program, image.as_mut_ptr().cast()).result()?;
        Ok(image)
    }
}

fn log_of(program: sys::nvrtcProgram) -> String {
    // SAFETY: a live program; the log ends with a zero.
    let log = unsafe { result::get_program_log(program) }.unwrap_or_default();
    let bytes: Vec<u8> = log.iter().map(|&c| c as u8).collect();
    CStr::from_bytes_until_nul(&bytes).map(|log| log.to_string_lossy().into_owned()).unwrap_or_default()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::attention::{ANGLES, ATTENTION, CHUNK, ROTATE};
    use crate::blocks::MOVE;
    use crate::choose::{CHOOSE, PEAKS};
    use crate::dense::{ADD, CONVERT, EMBED, GATED, LINEAR, NORM};
    use crate::gpu::bench::{FILL, READ};
    use crate::gpu::rehearsal::compile_all;
    use crate::kernels::{
        AttentionOptions, ChunkOptions, NormOptions, NumberOptions, Paging, ProductOptions, SeveralOptions,
        StreamOptions,
    };
    use crate::pages::{COPY, ROWS, ZERO};
    use crate::precision::Precision;
    use crate::several::SEVERAL;
    use crate::stream::STREAM;
    use octavo_backend::PageLayout;
    use octavo_types::KvDtype;

    #[test]
    fn a_kept_image_that_is_not_whole_is_none() {
        let folder = std::env::temp_dir().join(format!("octavo-kernels-{}", std::process::id()));
        let path = folder.join("kernel.cubin");
        keep(&path, b"an image");
        assert_eq!(read(&path).as_deref(), Some(&b"an image"[..]));
        let whole = fs::read(&path).unwrap();
        let mut changed = whole.clone();
        changed[3] ^= 1;
        for bad in [&[][..], &whole[..5], &whole[..whole.len() - 1], &changed] {
            fs::write(&path, bad).unwrap();
            assert_eq!(read(&path), None);
        }
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "nothing else is left");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn of_an_image_that_cannot_be_kept_nothing_is_left() {
        let folder = std::env::temp_dir().join(format!("octavo-unkept-{}", std::process::id()));
        let path = folder.join("kernel.cubin");
        // What is in its place is a folder.
        fs::create_dir_all(path.join("in the way")).unwrap();
        keep(&path, b"an image");
        assert_eq!(read(&path), None);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "nothing else is left");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn kernels_are_for_the_one_architecture_and_for_all_it_has() {
        let of = |capability| Compiler::new(capability, None).architecture;
        assert_eq!([(8, 9), (9, 0), (12, 0)].map(of), ["sm_89", "sm_90a", "sm_120"]);
    }

    /// Whether NVRTC is installed, which needs no GPU: `cargo xtask test --only kernels` installs it, and then it must be.
    pub(crate) fn has_compiler() -> bool {
        // SAFETY: loads a library of NVIDIA's.
        let is_there = unsafe { sys::is_culib_present() };
        assert!(is_there || std::env::var_os("OCTAVO_NEEDS_NVRTC").is_none(), "libnvrtc.so cannot be loaded");
        if !is_there {
            println!("not run: libnvrtc.so cannot be loaded");
        }
        is_there
    }

    #[test]
    fn every_text_compiles_where_the_compiler_is_installed() {
        if !has_compiler() {
            return;
        }
        // The oldest, the one that groups warps, and the first and the newest with fp8.
        for (capability, dtypes) in [
            ((8, 0), &[KvDtype::F32, KvDtype::F16, KvDtype::Bf16, KvDtype::Int8][..]),
            ((8, 9), &[KvDtype::Fp8]),
            ((9, 0), &[KvDtype::F32, KvDtype::F16, KvDtype::Bf16, KvDtype::Fp8, KvDtype::Int8]),
            ((12, 0), &[KvDtype::Fp8]),
        ] {
            let mut kernels: Vec<Kernel> =
                dtypes.iter().flat_map(|dtype| by_head(capability, *dtype)).collect();
            if dtypes.len() > 1 {
                kernels.extend(plain());
            }
            let images = compile_all(&Compiler::new(capability, None), &kernels).unwrap();
            assert!(images.len() == kernels.len() && images.iter().all(|(_, image)| !image.is_empty()));
        }
    }

    const PARTS: ProductOptions = ProductOptions { parts: 3, precision: Precision::F32 };

    fn plain() -> Vec<Kernel> {
        let short = ProductOptions { parts: 1, precision: Precision::Bf16 };
        let norm = NormOptions { kept: 2, min_blocks: 2, before: true, precision: Precision::F32 };
        let [odd, whole] = [false, true].map(|fours| NumberOptions { short: Precision::Bf16, fours });
        let mut kernels = vec![
            ADD.with_product(PARTS),
            ANGLES,
            CONVERT,
            EMBED,
            GATED.with_numbers(odd).with_product(PARTS),
            LINEAR,
            NORM.with_numbers(odd).with_product(short).with_norm(norm),
            NORM.with_numbers(whole).with_product(PARTS).with_norm(norm),
            FILL,
            READ,
            COPY,
            MOVE,
            ROWS,
            ZERO,
            PEAKS,
            CHOOSE,
        ];
        for (rows, warps) in [(1, 8), (24, 4), (64, 8)] {
            let options = StreamOptions { rows, sixteens: 2, warps, depth: 3, min_blocks: 16 / warps };
            kernels.push(STREAM.with_numbers(odd).in_parts(2).with_stream(options));
        }
        for (group, once) in [(2, false), (6, true)] {
            let options =
                SeveralOptions { rows: 24, sixteens: 3, warps: 8, depth: 6, group, once, min_blocks: 1 };
            kernels.push(SEVERAL.with_numbers(whole).in_parts(1).with_several(options));
        }
        kernels
    }

    fn by_head(capability: (i32, i32), dtype: KvDtype) -> Vec<Kernel> {
        let mut kernels = Vec::new();
        for (head_dim, blocks, paging) in
            [(64, 4, Paging::Large), (96, 1, Paging::Small), (256, 2, Paging::Tiles)]
        {
            let layout = PageLayout { layers: 1, kv_heads: 1, page_size: 16, head_dim, dtype };
            let options = AttentionOptions {
                blocks,
                warps: 4,
                stages: 2,
                min_blocks: 1,
                paging,
                group: 3,
                kv_heads: 1,
            };
            let chunk = ChunkOptions {
                strips: 1,
                warps: 8,
                span: 32,
                stages: 3,
                min_blocks: 1,
                staggered: paging == Paging::Small,
                grouped: false,
            };
            kernels.push(CHUNK.with_head(&layout).with_chunk(chunk));
            if layout.element_bytes() == 2 && head_dim == 64 && capability == GROUPING {
                let grouped = ChunkOptions { span: 128, staggered: true, grouped: true, ..chunk };
                kernels.push(CHUNK.with_head(&layout).with_chunk(grouped));
            }
            kernels.push(ROTATE.with_head(&layout).with_product(PARTS));
            kernels.push(ATTENTION.with_head(&layout).with_attention(options));
        }
        kernels
    }
}
