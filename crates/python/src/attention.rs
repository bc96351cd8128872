//! Attention over blocks, on the CPU.

use crate::arena::{Arena, SharedArena};
use crate::errors::value;
use crate::ints::{Ints, positive, same_length, tokens};
use numpy::{IntoPyArray, PyArray3, PyReadonlyArray2, PyReadonlyArray3, ndarray};
use octavo_backend::{AttentionSpec, Heads, Rows, Span, TableView};
use octavo_cpu::{Buf, Cpu, Level, Pool};
use octavo_types::{PageId, Tokens};
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, PoisonError};

/// One sequence's part of a call.
struct Part {
    span: Span,
    pages: Vec<PageId>,
}

/// `softmax(q · kᵀ * scale) · v` for ragged queries, `[tokens, heads, head_dim]`: the last `query_lens[i]` of the
/// `context_lens[i]` positions of sequence `i`, whose blocks are row `i` of `tables`.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "what attention is made of")]
pub(crate) fn attention<'py>(
    py: Python<'py>,
    arena: &Bound<'py, Arena>,
    layer: i64,
    query: PyReadonlyArray3<'py, f32>,
    tables: PyReadonlyArray2<'py, i32>,
    context_lens: Ints,
    query_lens: Ints,
    scale: f32,
    window: Option<i64>,
) -> PyResult<Bound<'py, PyArray3<f32>>> {
    let arena = &arena.get().0;
    let (rows, q, dim) = query.as_array().dim();
    let heads = heads(arena, q, dim)?;
    let window = window.map(|window| positive("window", window)).transpose()?;
    let spec = AttentionSpec { heads, scale, window, layer: arena.check_layer(layer)? };
    let parts = parts(arena, &tables, &context_lens, &query_lens, rows)?;
    let query = query.as_slice().map_err(|_| value("query must be contiguous"))?;
    let out = py.detach(|| attend(arena, &spec, &parts, query, rows));
    let out = ndarray::Array3::from_shape_vec((rows, q, dim), out).map_err(value)?;
    Ok(out.into_pyarray(py))
}

fn heads(arena: &SharedArena, q: usize, dim: usize) -> PyResult<Heads> {
    let (kv, need) = (arena.layout().kv_heads, arena.layout().head_dim);
    if dim != need {
        return Err(value(format!("query heads have {dim} numbers, the cache's have {need}")));
    }
    if q == 0 || !q.is_multiple_of(kv) {
        return Err(value(format!("{q} query heads cannot share {kv} KV heads: they must be a multiple")));
    }
    Ok(Heads { q, kv, dim })
}

/// Checks everything that the kernel takes for granted.
fn parts(
    arena: &SharedArena,
    tables: &PyReadonlyArray2<'_, i32>,
    context: &Ints,
    query: &Ints,
    rows: usize,
) -> PyResult<Vec<Part>> {
    let tables = tables.as_array();
    same_length([("block tables", tables.nrows()), ("context_lens", context.0.len())])?;
    same_length([("context_lens", context.0.len()), ("query_lens", query.0.len())])?;
    let (mut parts, mut first_row) = (Vec::with_capacity(context.0.len()), 0usize);
    for (row, (&context, &query)) in tables.rows().into_iter().zip(context.0.iter().zip(&query.0)) {
        let (Tokens(context), Tokens(query)) =
            (tokens("context_lens", context)?, tokens("query_lens", query)?);
        if query > context {
            return Err(value(format!(
                "{query} queries at the end of {context} tokens: the context counts them too"
            )));
        }
        let blocks = context.div_ceil(arena.layout().page_size as u32) as usize;
        if blocks > row.len() {
            return Err(value(format!(
                "{context} tokens are in {blocks} blocks, the table has {}",
                row.len()
            )));
        }
        let pages = row.iter().take(blocks).map(|page| arena.check_page((*page).into()));
        let pages = pages.collect::<PyResult<_>>()?;
        parts.push(Part { span: Span { first_row, rows: query as usize, start: context - query }, pages });
        first_row += query as usize;
    }
    if first_row != rows {
        return Err(value(format!("query has {rows} rows, query_lens add up to {first_row}")));
    }
    Ok(parts)
}

fn attend(arena: &SharedArena, spec: &AttentionSpec, parts: &[Part], query: &[f32], rows: usize) -> Vec<f32> {
    let width = spec.heads.q * spec.heads.dim;
    let mut qkv = Buf::new(rows, spec.heads.qkv_cols());
    for (row, from) in query.chunks_exact(width).enumerate() {
        qkv.row_mut(row)[..width].copy_from_slice(from);
    }
    let mut out = Buf::new(rows, width);
    let spans: Vec<Span> = parts.iter().map(|part| part.span).collect();
    let tables: Vec<TableView<'_>> =
        parts.iter().map(|part| TableView { first: 0, pages: &part.pages }).collect();
    let tokens = vec![0; rows];
    let cpu = cpu();
    let batch = Rows::new(&tokens, &spans);
    octavo_cpu::attention(cpu.level(), cpu.pool(), &qkv, spec, batch, &tables, &arena.read(), &mut out);
    out.data().to_vec()
}

/// The threads that compute, made when they are first needed. A process that was forked has none of its parent's.
fn cpu() -> Arc<Cpu> {
    static CPU: Mutex<Option<(u32, Arc<Cpu>)>> = Mutex::new(None);
    let mut made = CPU.lock().unwrap_or_else(PoisonError::into_inner);
    let process = std::process::id();
    match &*made {
        Some((maker, cpu)) if *maker == process => cpu.clone(),
        _ => {
            let cpu = Arc::new(Cpu::new(Pool::usual(), Level::detect()));
            // Waiting for the parent's threads would never end.
            std::mem::forget(made.replace((process, cpu.clone())));
            cpu
        }
    }
}
