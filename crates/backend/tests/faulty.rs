//! The suite finds what it is there to find: back ends with one fault each.

use octavo_backend::conformance::{self, Tolerance};
use octavo_backend::reference::{ReferenceArena, ReferenceBuf, ReferenceMatrix};
use octavo_backend::{
    Activation, AttentionSpec, Backend, BackendError, Choice, NormSpec, PageLayout, Reference, Rows, Span,
    TableView, TensorRef, WeightDtype, WeightFormat,
};
use octavo_types::{PageId, Pages, SlotId};
use std::ops::Range;
use std::sync::Mutex;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Fault {
    None,
    EmbedForgetsScale,
    NormForgetsEpsilonAndWeight,
    ActivationsSwapped,
    RowsReversed,
    LinearDependsOnBatch,
    LinearLosesPrecision,
    TurnsBackwards,
    StoresThroughBf16,
    WindowIgnored,
    WindowOneShort,
    ScaleSlightlyOff,
    ReadsBeyondTheEnd,
    DependsOnChunk,
    DependsOnBatch,
    DependsOnPage,
    GatherIgnoresStart,
    CopiesOneSlotLess,
    CopiesAllAtOnce,
    ZeroesNothing,
    ScattersOneSlotOn,
    ScattersKeysOnly,
    /// This one and the next are of back ends that choose.
    ChoosesRightly,
    ChoosesTheLastOfEquals,
    ChoosesBeforeCutting,
}

/// What is wrong with it, and the tokens it chose.
struct Faulty(Fault, Mutex<Vec<Option<u32>>>);

impl Faulty {
    fn has(&self, fault: Fault) -> bool {
        self.0 == fault
    }
}

type Done = Result<(), BackendError>;

/// Changes every element of a buffer.
fn rewrite(buf: &mut ReferenceBuf, change: impl Fn(f32) -> f32) -> Done {
    let bytes: Vec<u8> = buf.values().iter().flat_map(|&x| change(x).to_le_bytes()).collect();
    let view = TensorRef::new(WeightDtype::F32, buf.rows(), buf.cols(), &bytes).unwrap();
    let table = Reference.matrix(&[view], WeightFormat::AsStored)?;
    let tokens: Vec<u32> = (0..buf.rows() as u32).collect();
    Reference.embed(&table, &tokens, 1.0, buf)
}

/// One bit up.
fn nudge(x: f32) -> f32 {
    f32::from_bits(x.to_bits() + 1)
}

impl Backend for Faulty {
    type Buf = ReferenceBuf;
    type Matrix = ReferenceMatrix;
    type Vector = Vec<f32>;
    type Arena = ReferenceArena;

    fn name(&self) -> String {
        format!("{:?}", self.0)
    }
    fn buf(&self, rows: usize, cols: usize) -> Result<ReferenceBuf, BackendError> {
        Reference.buf(rows, cols)
    }
    fn resize(&self, buf: &mut ReferenceBuf, rows: usize) -> Done {
        Reference.resize(buf, rows)
    }
    fn matrix(&self, parts: &[TensorRef<'_>], format: WeightFormat) -> Result<ReferenceMatrix, BackendError> {
        Reference.matrix(parts, format)
    }
    fn vector(&self, values: TensorRef<'_>, plus: f32) -> Result<Vec<f32>, BackendError> {
        Reference.vector(values, plus)
    }
    fn arena(&self, layout: PageLayout, pages: Pages) -> Result<ReferenceArena, BackendError> {
        Reference.arena(layout, pages)
    }
    fn read(&self, buf: &ReferenceBuf, out: &mut Vec<f32>) -> Done {
        Reference.read(buf, out)
    }
    fn chooses(&self) -> bool {
        [Fault::ChoosesRightly, Fault::ChoosesTheLastOfEquals, Fault::ChoosesBeforeCutting].contains(&self.0)
    }
    fn choose(&self, logits: &ReferenceBuf, choices: &[Choice]) -> Done {
        let token = |(row, choice): (usize, &Choice)| {
            let mut logits = logits.row(row).to_vec();
            let cut = !self.has(Fault::ChoosesBeforeCutting);
            let choice = if cut { *choice } else { Choice { top_k: 0, top_p: 1.0, ..*choice } };
            let equal = |token: u32| logits.iter().rposition(|logit| *logit == logits[token as usize]);
            match self.has(Fault::ChoosesTheLastOfEquals) && choice.temperature == 0.0 {
                true => choice.of(&mut logits.clone()).and_then(equal).map(|token| token as u32),
                false => choice.of(&mut logits),
            }
        };
        *self.1.lock().unwrap() = choices.iter().enumerate().map(token).collect();
        Ok(())
    }
    fn chosen(&self, count: usize) -> Result<Vec<Option<u32>>, BackendError> {
        Ok(self.1.lock().unwrap()[..count].to_vec())
    }
    fn read_row(&self, buf: &ReferenceBuf, row: usize, out: &mut Vec<f32>) -> Done {
        *out = buf.row(row).to_vec();
        Ok(())
    }
    fn embed(&self, table: &ReferenceMatrix, tokens: &[u32], scale: f32, out: &mut ReferenceBuf) -> Done {
        let scale = if self.has(Fault::EmbedForgetsScale) { 1.0 } else { scale };
        Reference.embed(table, tokens, scale, out)
    }
    fn rms_norm(&self, x: &ReferenceBuf, norm: NormSpec<'_, Vec<f32>>, out: &mut ReferenceBuf) -> Done {
        let ones = vec![1.0; x.cols()];
        let plain = NormSpec { weight: &ones, eps: 1e-12 };
        Reference.rms_norm(x, if self.has(Fault::NormForgetsEpsilonAndWeight) { plain } else { norm }, out)
    }
    fn add_rms_norm(
        &self,
        x: &mut ReferenceBuf,
        delta: &ReferenceBuf,
        before: Option<NormSpec<'_, Vec<f32>>>,
        norm: NormSpec<'_, Vec<f32>>,
        out: &mut ReferenceBuf,
    ) -> Done {
        Reference.add_rms_norm(x, delta, before, norm, out)
    }
    fn linear(&self, w: &ReferenceMatrix, x: &ReferenceBuf, out: &mut ReferenceBuf) -> Done {
        Reference.linear(w, x, out)?;
        if self.has(Fault::LinearDependsOnBatch) && x.rows() > 4 {
            rewrite(out, nudge)?;
        }
        if self.has(Fault::LinearLosesPrecision) {
            rewrite(out, |x| x * 1.0002)?;
        }
        Ok(())
    }
    fn gated(&self, act: Activation, gate_up: &ReferenceBuf, out: &mut ReferenceBuf) -> Done {
        let act = if self.has(Fault::ActivationsSwapped) { Activation::Silu } else { act };
        Reference.gated(act, gate_up, out)
    }
    fn pick_rows(&self, x: &ReferenceBuf, rows: &[u32], out: &mut ReferenceBuf) -> Done {
        let mut rows = rows.to_vec();
        if self.has(Fault::RowsReversed) {
            rows.reverse();
        }
        Reference.pick_rows(x, &rows, out)
    }
    fn angles(&self, spans: &[Span], inv_freq: &[f32], scale: f32, out: &mut ReferenceBuf) -> Done {
        let sign = if self.has(Fault::TurnsBackwards) { -1.0 } else { 1.0 };
        let inv_freq: Vec<f32> = inv_freq.iter().map(|f| f * sign).collect();
        Reference.angles(spans, &inv_freq, scale, out)
    }
    fn rotate_and_store(
        &self,
        qkv: &mut ReferenceBuf,
        norms: Option<[NormSpec<'_, Vec<f32>>; 2]>,
        angles: &ReferenceBuf,
        spec: &AttentionSpec,
        rows: Rows<'_>,
        tables: &[TableView<'_>],
        arena: &mut ReferenceArena,
    ) -> Done {
        if self.has(Fault::StoresThroughBf16) {
            rewrite(qkv, |x| half::bf16::from_f32(x).to_f32())?;
        }
        Reference.rotate_and_store(qkv, norms, angles, spec, rows, tables, arena)
    }
    fn attention(
        &self,
        qkv: &ReferenceBuf,
        spec: &AttentionSpec,
        rows: Rows<'_>,
        tables: &[TableView<'_>],
        arena: &ReferenceArena,
        out: &mut ReferenceBuf,
    ) -> Done {
        let mut spec = *spec;
        match self.0 {
            Fault::WindowIgnored => spec.window = spec.window.map(|_| 50),
            Fault::WindowOneShort => spec.window = spec.window.map(|w| (w - 1).max(1)),
            Fault::ScaleSlightlyOff => spec.scale *= 1.001,
            _ => {}
        }
        Reference.attention(qkv, &spec, rows, tables, arena, out)?;
        let lone = rows.spans.iter().filter(|span| span.rows > 0).count() == 1;
        let wrong = match self.0 {
            Fault::DependsOnChunk => rows.spans.iter().any(|span| span.rows > 20),
            Fault::DependsOnBatch => !lone,
            Fault::DependsOnPage => tables.iter().any(|t| t.pages.first() == Some(&PageId(0))),
            _ => false,
        };
        if wrong {
            rewrite(out, nudge)?;
        }
        if self.has(Fault::ReadsBeyondTheEnd) && beyond_is_nan(&spec, rows, tables, arena) {
            rewrite(out, |_| f32::NAN)?;
        }
        Ok(())
    }
    fn copy_pages(&self, arena: &mut ReferenceArena, copies: &[(PageId, PageId, usize)]) -> Done {
        if self.has(Fault::CopiesOneSlotLess) {
            let copies: Vec<_> = copies.iter().map(|&(from, to, slots)| (from, to, slots - 1)).collect();
            return Reference.copy_pages(arena, &copies);
        }
        if self.has(Fault::CopiesAllAtOnce) {
            let copies: Vec<_> = copies.iter().rev().copied().collect();
            return Reference.copy_pages(arena, &copies);
        }
        Reference.copy_pages(arena, copies)
    }
    fn zero_pages(&self, arena: &mut ReferenceArena, pages: &[PageId]) -> Done {
        if self.has(Fault::ZeroesNothing) { Ok(()) } else { Reference.zero_pages(arena, pages) }
    }
    fn gather(
        &self,
        arena: &ReferenceArena,
        layer: usize,
        table: TableView<'_>,
        positions: Range<u32>,
    ) -> Result<[Vec<f32>; 2], BackendError> {
        let len = positions.len() as u32;
        let positions = if self.has(Fault::GatherIgnoresStart) { 0..len } else { positions };
        Reference.gather(arena, layer, table, positions)
    }
    fn scatter(&self, arena: &mut ReferenceArena, layer: usize, slots: &[SlotId], kv: [&[f32]; 2]) -> Done {
        let [keys, values] = kv;
        match self.0 {
            Fault::ScattersOneSlotOn => {
                let last = slots.last().map_or(SlotId(0), |slot| *slot);
                let on: Vec<SlotId> = slots.iter().skip(1).copied().chain([last]).collect();
                Reference.scatter(arena, layer, &on, kv)
            }
            Fault::ScattersKeysOnly => {
                Reference.scatter(arena, layer, slots, [keys, &vec![0.0; values.len()]])
            }
            _ => Reference.scatter(arena, layer, slots, kv),
        }
    }
}

/// Whether the slot after a span's last token, if its page has one, holds a NaN.
fn beyond_is_nan(
    spec: &AttentionSpec,
    rows: Rows<'_>,
    tables: &[TableView<'_>],
    arena: &ReferenceArena,
) -> bool {
    let size = arena.layout().page_size as u32;
    rows.spans.iter().zip(tables).filter(|(span, _)| span.end() % size != 0).any(|(span, table)| {
        let [_, values] = Reference.gather(arena, spec.layer, *table, span.end()..span.end() + 1).unwrap();
        values.iter().any(|x| x.is_nan())
    })
}

type Property = fn(&Faulty, Tolerance);

fn fails(property: Property, fault: Fault) -> bool {
    std::panic::catch_unwind(|| property(&Faulty(fault, Mutex::default()), Tolerance::F32)).is_err()
}

#[test]
fn each_fault_is_found_by_the_property_that_names_it() {
    let cases: [(Fault, Property); 23] = [
        (Fault::EmbedForgetsScale, conformance::embeddings_match_the_reference),
        (Fault::NormForgetsEpsilonAndWeight, conformance::norms_match_the_reference),
        (Fault::ActivationsSwapped, conformance::activations_match_the_reference),
        (Fault::RowsReversed, conformance::rows_are_picked_exactly),
        (Fault::LinearDependsOnBatch, conformance::dense_rows_alone_equal_rows_in_a_batch),
        (Fault::LinearLosesPrecision, conformance::linear_matches_the_reference),
        (Fault::TurnsBackwards, conformance::rotation_matches_the_reference),
        (Fault::StoresThroughBf16, conformance::what_is_gathered_is_what_was_encoded),
        (Fault::WindowIgnored, conformance::attention_matches_the_reference),
        (Fault::WindowOneShort, conformance::attention_matches_the_reference),
        (Fault::ScaleSlightlyOff, conformance::attention_matches_the_reference),
        (Fault::ReadsBeyondTheEnd, conformance::stale_contents_of_pages_never_reach_a_result),
        (Fault::DependsOnChunk, conformance::one_chunk_equals_many),
        (Fault::DependsOnBatch, conformance::attention_alone_equals_attention_in_a_batch),
        (Fault::DependsOnPage, conformance::where_pages_lie_and_how_large_they_are_does_not_matter),
        (Fault::GatherIgnoresStart, conformance::what_is_gathered_is_what_was_encoded),
        (Fault::CopiesOneSlotLess, conformance::copied_pages_attend_like_their_originals),
        (Fault::CopiesAllAtOnce, conformance::copies_run_one_after_another),
        (Fault::ZeroesNothing, conformance::zeroed_pages_decode_to_zero),
        (Fault::ScattersOneSlotOn, conformance::what_is_written_at_slots_is_gathered_in_token_order),
        (Fault::ScattersKeysOnly, conformance::what_is_written_at_slots_is_gathered_in_token_order),
        (Fault::ChoosesTheLastOfEquals, conformance::tokens_are_those_of_the_definition),
        (Fault::ChoosesBeforeCutting, conformance::tokens_are_those_of_the_definition),
    ];
    for (fault, property) in cases {
        assert!(fails(property, fault), "{fault:?} was not found");
    }
}

#[test]
fn a_change_of_one_bit_passes_the_tolerances_and_only_they() {
    assert!(!fails(conformance::linear_matches_the_reference, Fault::LinearDependsOnBatch));
    assert!(!fails(conformance::stale_contents_of_pages_never_reach_a_result, Fault::None));
    assert!(!fails(conformance::copies_run_one_after_another, Fault::None));
    assert!(!fails(conformance::tokens_are_those_of_the_definition, Fault::ChoosesRightly));
}
