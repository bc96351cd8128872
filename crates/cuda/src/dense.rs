//! Rows by themselves: embeddings, norms, gates, products.

use crate::backend::{Cuda, Only};
use crate::device::{Grid, Product};
use crate::kernels::{Kernel, NormOptions, NumberOptions, ProductOptions};
use crate::memory::{Memory, launch};
use crate::precision::Precision;
use crate::steps::Need;
use crate::stream::FEW_ROWS;
use crate::values::{CudaBuf, CudaMatrix, CudaVector};
use octavo_backend::{Activation, BackendError, NormSpec};

/// Waits for the whole of the kernel before it, and with it all that come after: rotation reads angles early.
pub(crate) const EMBED: Kernel = Kernel::new::<EmbedArgs>("embed");
pub(crate) const NORM: Kernel = Kernel::new::<NormArgs>("norm").overlapping();
pub(crate) const GATED: Kernel = Kernel::new::<GatedArgs>("gated").overlapping();
pub(crate) const CONVERT: Kernel = Kernel::new::<ConvertArgs>("convert").overlapping();
pub(crate) const ADD: Kernel = Kernel::new::<AddArgs>("add").overlapping();
pub(crate) const LINEAR: Kernel = Kernel::new::<LinearArgs>("linear");

#[repr(C)]
struct AddArgs {
    x: u64,
    count: u64,
}

#[repr(C)]
struct EmbedArgs {
    table: u64,
    tokens: u64,
    out: u64,
    cols: u32,
    precision: i32,
    scale: f32,
    unused: i32,
}

#[repr(C)]
struct NormArgs {
    x: u64,
    delta: u64,
    before: u64,
    weight: u64,
    out: u64,
    before_eps: f32,
    eps: f32,
    cols: u32,
    rows: u32,
}

#[repr(C)]
struct GatedArgs {
    gate_up: u64,
    out: u64,
    cols: u32,
    act: i32,
    rows: u32,
    unused: i32,
}

#[repr(C)]
struct ConvertArgs {
    from: u64,
    to: u64,
    rows: u64,
    cols: u32,
    precision: i32,
    to_precision: i32,
    unused: i32,
}

#[repr(C)]
struct LinearArgs {
    x: u64,
    w: u64,
    out: u64,
    rows: u32,
    outputs: u32,
    cols: u32,
    precision: i32,
    out_precision: i32,
    unused: i32,
}

impl Cuda {
    pub(crate) fn run_embed(
        &self,
        table: &CudaMatrix,
        tokens: &[u32],
        scale: f32,
        out: &mut CudaBuf,
    ) -> Result<(), BackendError> {
        assert_eq!(out.shape(), [self.padded(tokens.len()), table.cols], "shape of the embeddings");
        assert!(tokens.iter().all(|&token| (token as usize) < table.rows), "tokens of {} rows", table.rows);
        let ids = self.input(Need::Tokens, out.rows(), tokens)?;
        let args = EmbedArgs {
            table: table.memory.address(),
            tokens: ids.address,
            out: out.overwrite(Precision::F32),
            cols: table.cols as u32,
            precision: table.precision as i32,
            scale,
            unused: 0,
        };
        let grid = Grid::new(ids.count, 1, threads_for(table.cols, 256));
        if self.left_out(Only::Kernel("embed")) {
            return Ok(());
        }
        // SAFETY: a block a token; the ids were checked against the table, the output's shape against both.
        unsafe { launch(&*self.device, EMBED, grid, &args) }
    }

    /// `delta` is added to `x` first, normed by `before` where that is given.
    pub(crate) fn run_norm(
        &self,
        x: &CudaBuf,
        delta: Option<&CudaBuf>,
        before: Option<NormSpec<'_, CudaVector>>,
        norm: NormSpec<'_, CudaVector>,
        out: &mut CudaBuf,
    ) -> Result<(), BackendError> {
        assert_eq!(x.shape(), out.shape(), "shapes of a norm");
        assert!(delta.is_none_or(|delta| delta.shape() == x.shape()), "shapes of a sum");
        let specs = [Some(norm), before];
        assert!(
            specs.into_iter().flatten().all(|n| n.weight.len == x.cols()),
            "columns and weights of a norm"
        );
        let args = NormArgs {
            x: x.address(),
            delta: delta.map_or(0, CudaBuf::address),
            before: before.map_or(0, |n| n.weight.memory.address()),
            weight: norm.weight.memory.address(),
            out: out.overwrite(self.short()),
            before_eps: before.map_or(0.0, |n| n.eps),
            eps: norm.eps,
            cols: x.cols() as u32,
            rows: x.rows() as u32,
        };
        // Many rows are better off with several blocks on a multiprocessor, but the order of sums depends on it.
        let many = !self.deterministic() && x.rows() > self.device.processors().count;
        let (fours, min_blocks) = (x.cols().div_ceil(4), if many { 2 } else { 1 });
        let kept = fours.div_ceil(NormOptions::MOST_THREADS / min_blocks).clamp(1, 2);
        let options = NormOptions { kept, min_blocks, before: before.is_some(), precision: x.precision() };
        let grid = Grid::new(x.rows(), 1, threads_for(fours.div_ceil(kept), options.most_threads()));
        let product = delta.map_or(ProductOptions::WHOLE, ProductOptions::of);
        if self.left_out(Only::Kernel("norm")) {
            return Ok(());
        }
        // SAFETY: a block a row of buffers whose shapes were found equal, weights of as many columns.
        let kernel = NORM.with_numbers(self.numbers(x.cols())).with_product(product).with_norm(options);
        unsafe { launch(&*self.device, kernel, grid, &args) }
    }

    pub(crate) fn run_gated(
        &self,
        act: Activation,
        gate_up: &CudaBuf,
        out: &mut CudaBuf,
    ) -> Result<(), BackendError> {
        assert_eq!(gate_up.shape(), [out.rows(), 2 * out.cols()], "shapes of a gate");
        let args = GatedArgs {
            gate_up: gate_up.address(),
            out: out.overwrite(self.short()),
            cols: out.cols() as u32,
            act: i32::from(act == Activation::Gelu),
            rows: out.rows() as u32,
            unused: 0,
        };
        // `FOURS` of `cu/gated.cu`.
        let fours = if gate_up.precision() == Precision::F32 { 1 } else { 2 };
        let threads = threads_for(out.cols().div_ceil(4 * fours), 256);
        let grid = Grid::new(out.rows(), out.cols().div_ceil(4 * fours * threads as usize), threads);
        if self.left_out(Only::Kernel("gated")) {
            return Ok(());
        }
        // SAFETY: the kernel stays within rows and columns, and the shapes were checked.
        let kernel = GATED.with_numbers(self.numbers(out.cols())).with_product(ProductOptions::of(gate_up));
        unsafe { launch(&*self.device, kernel, grid, &args) }
    }

    /// Of rows of so many columns.
    fn numbers(&self, cols: usize) -> NumberOptions {
        NumberOptions { short: self.short(), fours: cols.is_multiple_of(4) }
    }

    pub(crate) fn run_pick(&self, x: &CudaBuf, rows: &[u32], out: &mut CudaBuf) -> Result<(), BackendError> {
        self.settle(x)?;
        assert_eq!(out.shape(), [rows.len(), x.cols()], "rows picked and rows of the output");
        assert!(rows.iter().all(|&row| (row as usize) < x.rows()), "rows of {}", x.rows());
        let picked = Memory::of(&self.device, rows)?;
        let to = out.overwrite(x.precision());
        // SAFETY: the rows were checked against `x`, the output's shape against their number.
        unsafe { self.convert(x, picked.address(), rows.len(), to, x.precision()) }
    }

    /// # Safety
    /// `to` has room for `count` rows; `rows` is 0, or has that many that `x` has.
    unsafe fn convert(
        &self,
        x: &CudaBuf,
        rows: u64,
        count: usize,
        to: u64,
        to_precision: Precision,
    ) -> Result<(), BackendError> {
        let args = ConvertArgs {
            from: x.address(),
            to,
            rows,
            cols: x.cols() as u32,
            precision: x.precision() as i32,
            to_precision: to_precision as i32,
            unused: 0,
        };
        let grid = Grid::new(count, 1, threads_for(x.cols(), 256));
        // SAFETY: a block a row; the caller's promise.
        unsafe { launch(&*self.device, CONVERT, grid, &args) }
    }

    /// `short` is what results may be rounded to: they are where there are many, and bits may depend on how many.
    /// Where `gate` tells what is made of them next, it may be made at once: whether it was.
    pub(crate) fn run_linear(
        &self,
        w: &CudaMatrix,
        x: &CudaBuf,
        out: &mut CudaBuf,
        short: Precision,
        gate: Option<(Activation, &mut CudaBuf)>,
    ) -> Result<bool, BackendError> {
        assert_eq!([x.cols(), out.rows(), out.cols()], [w.cols, x.rows(), w.rows], "shapes of a product");
        if x.rows() == 0 {
            return Ok(false);
        }
        self.settle(x)?;
        let mut converted = None;
        if x.precision() != w.precision {
            let memory = Memory::new(&self.device, x.rows() * x.cols() * w.precision.bytes())?;
            // SAFETY: room for all rows of `x` was allocated just now.
            unsafe { self.convert(x, 0, x.rows(), memory.address(), w.precision)? };
            converted = Some(memory);
        }
        let may_be_few = !self.deterministic() && x.rows() <= FEW_ROWS && w.cols.is_multiple_of(8);
        let many = !self.deterministic() && x.rows() > FEW_ROWS;
        let out_precision = if many { short } else { Precision::F32 };
        let cut = may_be_few.then(|| self.cut(x.rows(), w.rows, w.cols)).flatten();
        let few = cut.is_some();
        let parts = cut.map_or(1, |cut| cut.parts);
        // By a kernel of ours for few rows, where nobody else has a part of the sums.
        // What a gate makes has the bits of the weights' type there, and those of the last weights loaded elsewhere.
        let may_gate = few && parts == 1 && w.rows.is_multiple_of(16) && w.precision == self.short();
        let gate = gate.filter(|_| may_gate);
        assert!(
            gate.as_ref().is_none_or(|(_, to)| [to.rows(), 2 * to.cols()] == out.shape()),
            "shapes of a gate"
        );
        let gated = gate.as_ref().map(|(act, to)| (*act, to.address()));
        out.make_room(&self.device, parts)?;
        let product = Product {
            x: converted.as_ref().map_or(x.address(), Memory::address),
            w: w.memory.address(),
            out: out.overwrite(out_precision),
            rows: x.rows(),
            outputs: w.rows,
            cols: w.cols,
            precision: w.precision,
            out_precision,
            deterministic: self.deterministic(),
            // Where numbers are short there is room for two.
            most_parts: if few { 1 } else { Precision::F32.bytes() / out_precision.bytes() },
            recurs: !self.passes_once(),
        };
        if self.left_out(Only::Product(w.rows, w.cols)) {
            return Ok(gated.is_some());
        }
        let own = || match (cut, gated) {
            // SAFETY: the shapes were checked above.
            (Some(cut), Some((act, to))) => unsafe {
                self.multiply_few(Product { out: to, out_precision: self.short(), ..product }, cut.gated(act))
            },
            // SAFETY: the shapes were checked above, and room for the parts was made.
            (Some(cut), None) => unsafe { self.multiply_few(product, cut) },
            // SAFETY: the shapes were checked above.
            (None, _) => unsafe { self.multiply(product) },
        };
        // SAFETY: the shapes were checked above.
        match unsafe { self.device.multiply(product, few.then_some(&own))? } {
            Some(parts) => out.set_parts(parts),
            None => {
                own()?;
                out.set_parts(parts);
                if let Some((_, to)) = gate {
                    to.overwrite(self.short());
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// What is in parts becomes whole.
    pub(crate) fn settle(&self, x: &CudaBuf) -> Result<(), BackendError> {
        if x.parts() == 1 {
            return Ok(());
        }
        let count = x.rows() * x.cols();
        let args = AddArgs { x: x.address(), count: count as u64 };
        let kernel = ADD.with_product(ProductOptions::of(x));
        x.set_parts(1);
        // SAFETY: there is room for the parts.
        unsafe { launch(&*self.device, kernel, Grid::new(count.div_ceil(256), 1, 256), &args) }
    }

    /// # Safety
    /// The addresses have room for the shapes.
    unsafe fn multiply(&self, p: Product) -> Result<(), BackendError> {
        let args = LinearArgs {
            x: p.x,
            w: p.w,
            out: p.out,
            rows: p.rows as u32,
            outputs: p.outputs as u32,
            cols: p.cols as u32,
            precision: p.precision as i32,
            out_precision: p.out_precision as i32,
            unused: 0,
        };
        let grid = Grid::new(p.outputs.div_ceil(4), p.rows, 128);
        // SAFETY: the caller's promise; a warp an output, those beyond the last do nothing.
        unsafe { launch(&*self.device, LINEAR, grid, &args) }
    }
}

/// Whole warps, no more than there are columns for: a function of the columns alone.
pub(crate) fn threads_for(cols: usize, most: u32) -> u32 {
    (cols.div_ceil(32) as u32 * 32).clamp(32, most)
}

#[cfg(test)]
mod tests;
