//! Kernel texts to machine code, by NVRTC, kept on disk.

use crate::attention::GROUPING;
use crate::kernels::Kernel;
use cudarc::nvrtc::{result, sys};
use octavo_backend::BackendError;
use std::ffi::{CStr, CString};
use std::fs;
use std::path::{Path, PathBuf};

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
        if let Some(image) = kept.as_ref().and_then(|path| fs::read(path).ok()) {
            return Ok(image);
        }
        let image = translate(&text, &self.architecture)
            .map_err(|log| BackendError::Device(format!("NVRTC refused {}: {log}", kernel.name)))?;
        if let Some(path) = kept {
            keep(&path, &image);
        }
        Ok(image)
    }

    /// Changes with the text, the architecture and the compiler.
    fn file_name(&self, name: &str, text: &str) -> String {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: writes two numbers.
        unsafe { sys::nvrtcVersion(&mut major, &mut minor) };
        let mut hasher = blake3::Hasher::new();
        hasher.update(text.as_bytes()).update(format!("nvrtc {major}.{minor}").as_bytes());
        format!("{name}-{}-{}.cubin", self.architecture, &hasher.finalize().to_hex()[..24])
    }
}

/// Whole or not at all; a cache that cannot be written is no reason to fail.
fn keep(path: &Path, image: &[u8]) {
    let partial = path.with_extension(format!("{}.partial", std::process::id()));
    let folder = path.parent().expect("a file of a folder");
    let kept = fs::create_dir_all(folder)
        .and_then(|()| fs::write(&partial, image))
        .and_then(|()| fs::rename(&partial, path));
    if kept.is_err() {
        let _ = fs::remove_file(&partial);
    }
}

/// Sums are fused where the text says so and nowhere else: all instances of a kernel round alike.
fn translate(text: &str, architecture: &str) -> Result<Vec<u8>, String> {
    let source = CString::new(text).expect("a text without zeros");
    let options = [format!("--gpu-architecture={architecture}"), "--std=c++17".into(), "--fmad=false".into()];
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
mod tests {
    use super::*;
    use crate::attention::{ANGLES, ATTENTION, CHUNK, ROTATE};
    use crate::blocks::MOVE;
    use crate::choose::{CHOOSE, PEAKS};
    use crate::dense::{ADD, CONVERT, EMBED, GATED, LINEAR, NORM};
    use crate::gpu::bench::{FILL, READ};
    use crate::kernels::{
        AttentionOptions, ChunkOptions, NormOptions, ProductOptions, SeveralOptions, StreamOptions,
    };
    use crate::pages::{COPY, ROWS, ZERO};
    use crate::precision::Precision;
    use crate::several::SEVERAL;
    use crate::stream::STREAM;
    use octavo_backend::PageLayout;
    use octavo_types::KvDtype;

    /// Needs no GPU: `pip install nvidia-cuda-nvrtc==13.0.88` and LD_LIBRARY_PATH are enough.
    #[test]
    fn every_text_compiles_where_the_compiler_is_installed() {
        // SAFETY: loads a library of NVIDIA's.
        if !unsafe { sys::is_culib_present() } {
            println!("not run: libnvrtc.so cannot be loaded");
            return;
        }
        let compiler = Compiler::new((9, 0), None);
        let compiles = |kernel: Kernel| assert!(!compiler.compile(&kernel).unwrap().is_empty(), "{kernel:?}");
        let parts = ProductOptions { parts: 3, precision: Precision::F32 };
        let short = ProductOptions { parts: 1, precision: Precision::Bf16 };
        let plain = [
            ADD.with_product(parts),
            ANGLES,
            CONVERT,
            EMBED,
            GATED.with_product(parts),
            LINEAR,
            NORM.with_product(short).with_norm(NormOptions { kept: 2, min_blocks: 2, before: true }),
            FILL,
            READ,
            COPY,
            MOVE,
            ROWS,
            ZERO,
            PEAKS,
            CHOOSE,
        ];
        plain.into_iter().for_each(compiles);
        for (rows, warps) in [(1, 8), (24, 4), (64, 8)] {
            let options = StreamOptions { rows, sixteens: 2, warps, depth: 3, min_blocks: 16 / warps };
            compiles(STREAM.with_stream(options));
        }
        for (group, once) in [(2, false), (6, true)] {
            let options =
                SeveralOptions { rows: 24, sixteens: 3, warps: 8, depth: 6, group, once, min_blocks: 1 };
            compiles(SEVERAL.with_several(options));
        }
        for dtype in [KvDtype::F32, KvDtype::F16, KvDtype::Bf16, KvDtype::Fp8, KvDtype::Int8] {
            for (head_dim, blocks, small_pages) in [(64, 4, false), (96, 1, true), (256, 2, false)] {
                let layout = PageLayout { layers: 1, kv_heads: 1, page_size: 16, head_dim, dtype };
                let options = AttentionOptions { blocks, warps: 4, stages: 2, min_blocks: 1, small_pages };
                let chunk = ChunkOptions {
                    strips: 1,
                    warps: 8,
                    span: 32,
                    stages: 3,
                    min_blocks: 1,
                    staggered: small_pages,
                    grouped: false,
                };
                compiles(CHUNK.with_head(&layout).with_chunk(chunk));
                if layout.element_bytes() == 2 && head_dim == 64 {
                    let grouped = ChunkOptions { span: 128, staggered: true, grouped: true, ..chunk };
                    compiles(CHUNK.with_head(&layout).with_chunk(grouped));
                }
                compiles(ROTATE.with_head(&layout).with_product(parts));
                compiles(ATTENTION.with_head(&layout).with_attention(options));
            }
        }
    }
}
