//! A model that is nothing but its memory: what it says next is a hash of the tokens it reads back through the page
//! tables. A wrong page, a lost page, a missed copy or a stale prefix changes what it says.
#![allow(dead_code, unreachable_pub)]

mod bench;

pub use bench::Bench;

use octavo_backend::BackendError;
use octavo_engine::{Batch, Logits, Request, Runner, Sampler};
use octavo_types::{PageId, PageSize, Pages, Tokens};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub const VOCAB: usize = 64;

/// A span as the runner met it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The token at position 0, by which tests know their requests.
    pub who: u32,
    pub start: u32,
    pub rows: usize,
}

/// The spans of every step.
#[derive(Clone, Debug, Default)]
pub struct Log(Arc<Mutex<Vec<Vec<Span>>>>);

impl Log {
    pub fn steps(&self) -> Vec<Vec<Span>> {
        self.0.lock().unwrap().clone()
    }
    pub fn clear(&self) {
        self.0.lock().unwrap().clear();
    }
    /// Tokens computed in all.
    pub fn computed(&self) -> usize {
        self.steps().iter().flatten().map(|span| span.rows).sum()
    }
    /// The spans of one request, in order.
    pub fn of(&self, who: u32) -> Vec<Span> {
        self.steps().into_iter().flatten().filter(|span| span.who == who).collect()
    }
    /// The steps that one request was in.
    pub fn steps_of(&self, who: u32) -> Vec<usize> {
        let steps = self.steps().into_iter().enumerate();
        steps.filter(|(_, spans)| spans.iter().any(|span| span.who == who)).map(|(step, _)| step).collect()
    }
}

/// How a step goes wrong. In every case it has left rubbish where its results were to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    NotStarted,
    PanicAtStart,
    Error,
    Lost,
    Panic,
    TooFewRows,
    TooManyRows,
    /// The first row is no numbers.
    NoNumbers,
}

/// Which steps fail.
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Mutex<BTreeMap<usize, Fault>>>);

impl Faults {
    pub fn at(&self, step: usize, fault: Fault) {
        self.0.lock().unwrap().insert(step, fault);
    }
}

#[derive(Debug)]
pub struct PageRunner {
    page_size: usize,
    pages: Vec<Vec<u32>>,
    pub log: Log,
    pub faults: Faults,
    /// Of the step that was started.
    fault: Option<Fault>,
    /// Tokens that there are: those beyond the first [`VOCAB`] are never likely.
    pub vocab: usize,
    /// How long a row takes.
    pub pace: Duration,
    /// Whether to read everything back; without, it only stores.
    pub reads: bool,
    /// Whether a page must be empty when its first slot is written.
    pub wants_empty: bool,
    /// Whether every wanted row must say how its token is chosen.
    pub wants_choices: bool,
    /// Whether the sequences of each step were said to be apart.
    pub apart: Arc<Mutex<Vec<bool>>>,
    /// Pages zeroed so far.
    pub zeroed: Arc<AtomicUsize>,
    /// How often zeroing fails before it succeeds.
    pub zeroing_fails: usize,
}

/// What is in a slot that was never written.
const RUBBISH: u32 = u32::MAX;

impl PageRunner {
    pub fn new(total: Pages, page_size: PageSize) -> Self {
        let page_size = page_size.as_usize();
        let pages = vec![vec![RUBBISH; page_size]; total.as_usize()];
        Self {
            page_size,
            pages,
            log: Log::default(),
            faults: Faults::default(),
            fault: None,
            vocab: VOCAB,
            pace: Duration::ZERO,
            reads: true,
            wants_empty: false,
            wants_choices: false,
            apart: Arc::default(),
            zeroed: Arc::default(),
            zeroing_fails: 0,
        }
    }

    fn slot(&mut self, table: &[PageId], position: usize) -> &mut u32 {
        let page = table[position / self.page_size];
        &mut self.pages[page.index()][position % self.page_size]
    }

    fn store(&mut self, batch: &Batch, fault: Option<Fault>) {
        for &(from, to, slots) in batch.copies() {
            let copied = self.pages[from.index()][..slots].to_vec();
            self.pages[to.index()][..slots].copy_from_slice(&copied);
        }
        let tables = batch.tables();
        let rows = batch.rows();
        for (span, table) in rows.spans.iter().zip(&tables[0]) {
            assert_eq!(table.first, 0, "no window");
            for row in 0..span.rows {
                let token = rows.tokens[span.first_row + row];
                let position = span.start as usize + row;
                if self.wants_empty && position.is_multiple_of(self.page_size) {
                    let page = table.pages[position / self.page_size];
                    assert!(
                        self.pages[page.index()].iter().all(|slot| *slot == RUBBISH),
                        "{page} was used before"
                    );
                }
                let stored = if matches!(fault, None | Some(Fault::NoNumbers)) { token } else { RUBBISH };
                *self.slot(table.pages, position) = stored;
            }
        }
    }

    /// A batch whose sequences are said to be apart has no page that one of them fills and another one holds.
    fn note_apart(&mut self, batch: &Batch) {
        let (rows, tables) = (batch.rows(), batch.tables());
        self.apart.lock().unwrap().push(rows.apart);
        let holders = tables[0].iter().flat_map(|table| table.pages);
        let holders = holders.fold(BTreeMap::new(), |mut holders, page| {
            *holders.entry(*page).or_insert(0) += 1;
            holders
        });
        for (span, table) in rows.spans.iter().zip(&tables[0]).filter(|_| rows.apart) {
            let filled = &table.pages[span.start as usize / self.page_size..];
            assert!(filled.iter().all(|page| holders[page] == 1), "{filled:?} are others' too");
        }
    }

    /// The hash of what is read at every row whose logits are wanted, but for the first if that is `broken`. Where a token is wanted, this device chooses it
    /// in every other step.
    fn read(&mut self, batch: &Batch, mut broken: bool, logits: &mut Logits) {
        let tables = batch.tables();
        let mut wanted = batch.wanted().iter().peekable();
        let mut choices = batch.choices().iter();
        let chooses = self.log.0.lock().unwrap().len().is_multiple_of(2);
        for (span, table) in batch.rows().spans.iter().zip(&tables[0]) {
            let rows = span.first_row as u32..(span.first_row + span.rows) as u32;
            let mut state = SEED;
            let mut position = 0;
            while let Some(&row) = wanted.next_if(|row| rows.contains(row)) {
                let end = span.start as usize + (row - rows.start) as usize;
                while self.reads && position <= end {
                    state = mix(state, *self.slot(table.pages, position));
                    position += 1;
                }
                let choice = choices.next().expect("one a wanted row");
                assert!(choice.is_some() || !self.wants_choices, "logits are wanted");
                if std::mem::take(&mut broken) {
                    logits.push(&vec![f32::NAN; self.vocab]);
                    continue;
                }
                match choice {
                    Some(choice) if chooses => {
                        logits.push_token(choice.of(&mut distribution(state)).expect("numbers"));
                    }
                    _ => logits.push(&self.widened(&distribution(state))),
                }
            }
        }
    }

    /// A row with a logit for every token.
    fn widened<'a>(&self, row: &'a [f32; VOCAB]) -> Cow<'a, [f32]> {
        match self.vocab {
            VOCAB => Cow::Borrowed(row),
            vocab => [row, &vec![f32::NEG_INFINITY; vocab - VOCAB][..]].concat().into(),
        }
    }

    fn note(&mut self, batch: &Batch) -> usize {
        let tables = batch.tables();
        let spans = batch.rows().spans.iter().zip(&tables[0]);
        let spans = spans.map(|(span, table)| {
            let who = *self.slot(table.pages, 0);
            Span { who, start: span.start, rows: span.rows }
        });
        let spans = spans.collect();
        let mut log = self.log.0.lock().unwrap();
        log.push(spans);
        log.len() - 1
    }
}

impl Runner for PageRunner {
    fn start(&mut self, batch: &Batch) -> Result<(), BackendError> {
        let step = self.log.0.lock().unwrap().len();
        let fault = self.faults.0.lock().unwrap().remove(&step);
        // Of no rows none can be missing.
        let fault = fault.filter(|fault| *fault != Fault::TooFewRows || !batch.wanted().is_empty());
        self.store(batch, fault);
        self.note(batch);
        self.note_apart(batch);
        match fault {
            Some(Fault::NotStarted) => return Err(BackendError::Device("it is on strike".into())),
            Some(Fault::PanicAtStart) => panic!("the queue is gone"),
            _ => self.fault = fault,
        }
        Ok(())
    }

    fn finish(&mut self, batch: &Batch, logits: &mut Logits) -> Result<(), BackendError> {
        std::thread::sleep(self.pace * batch.rows().tokens.len() as u32);
        logits.clear(self.vocab);
        match self.fault.take() {
            None => self.read(batch, false, logits),
            Some(Fault::NoNumbers) => self.read(batch, true, logits),
            Some(Fault::NotStarted | Fault::PanicAtStart) => panic!("finished what was not started"),
            Some(Fault::Error) => return Err(BackendError::Device("it is on fire".into())),
            Some(Fault::Lost) => return Err(BackendError::Lost("it fell off the bus".into())),
            Some(Fault::Panic) => panic!("the kernel is gone"),
            Some(Fault::TooFewRows) => {}
            Some(Fault::TooManyRows) => {
                (0..=batch.wanted().len()).for_each(|_| logits.push(&vec![0.0; self.vocab]));
            }
        }
        Ok(())
    }

    fn zero(&mut self, pages: &[PageId]) -> Result<(), BackendError> {
        if let Some(left) = self.zeroing_fails.checked_sub(1) {
            self.zeroing_fails = left;
            return Err(BackendError::Device("it zeroes nothing".into()));
        }
        self.zeroed.fetch_add(pages.len(), Ordering::Relaxed);
        pages.iter().for_each(|page| self.pages[page.index()].fill(RUBBISH));
        Ok(())
    }

    fn vocab(&self) -> usize {
        self.vocab
    }
    fn device(&self) -> String {
        "memory".into()
    }
}

const SEED: u64 = 0x243f_6a88_85a3_08d3;

fn mix(state: u64, token: u32) -> u64 {
    let mut z = (state ^ u64::from(token)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ z >> 31
}

/// Logits between 0 and 3, and one of 4.
fn distribution(state: u64) -> [f32; VOCAB] {
    let mut logits = [0.0; VOCAB];
    for (token, logit) in (1..).zip(&mut logits) {
        *logit = (mix(state, token) >> 40) as f32 / (1u64 << 24) as f32 * 3.0;
    }
    logits[(state % VOCAB as u64) as usize] = 4.0;
    logits
}

/// What the model says after `tokens`.
pub fn logits_after(tokens: &[u32]) -> [f32; VOCAB] {
    distribution(tokens.iter().fold(SEED, |state, token| mix(state, *token)))
}

/// The tokens that a choice of a request has, computed from nothing but the request.
pub fn expected(request: &Request, choice: u32, max_len: Tokens) -> Vec<u32> {
    let mut tokens = request.prompt.clone();
    let mut sampler = Sampler::new(request.sampling.clone(), &request.prompt).unwrap().fork(choice);
    let mut out = Vec::new();
    while out.len() < request.max_tokens as usize && tokens.len() < max_len.as_usize() {
        let mut logits = logits_after(&tokens);
        if out.len() < request.min_tokens as usize {
            request.stop_tokens.iter().for_each(|stop| logits[*stop as usize] = f32::NEG_INFINITY);
        }
        let token = sampler.sample(&mut logits, tokens.len() as u32, None).unwrap().token;
        if request.stop_tokens.contains(&token) {
            break;
        }
        out.push(token);
        tokens.push(token);
    }
    out
}

/// `len` tokens of a prompt that begins with `who`, the same for the same `who`.
pub fn prompt(who: u32, len: usize) -> Vec<u32> {
    let mut state = mix(SEED, who);
    let rest = std::iter::repeat_with(|| {
        state = mix(state, 1);
        (state >> 33) as u32 % VOCAB as u32
    });
    std::iter::once(who).chain(rest).take(len).collect()
}
