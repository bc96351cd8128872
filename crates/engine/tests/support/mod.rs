//! A cache and a model on the CPU, driven by hand.
#![allow(dead_code, unreachable_pub)]

use octavo_backend::WeightFormat;
use octavo_cpu::{Cpu, Level};
use octavo_engine::{Batch, Logits, ModelRunner, Runner, Wanted};
use octavo_kv::{Claim, KvCache, Prompt, Reuse, Scope, Settings};
use octavo_model::{Model, ModelConfig, Weights};
use octavo_types::{KvDtype, PageSize, Pages, SeqId, Tokens};
use std::num::NonZeroUsize;
use std::path::PathBuf;

pub fn model_dir(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models").join(name)
}

/// How a model is run. None of it but `kv` and `format` may change a bit of any logit.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub kv: KvDtype,
    pub format: WeightFormat,
    pub page_size: u32,
    pub threads: usize,
    pub prefix_cache: bool,
}

impl Setup {
    pub fn new(kv: KvDtype, format: WeightFormat) -> Self {
        Self { kv, format, page_size: 16, threads: 1, prefix_cache: false }
    }
}

pub struct Rig {
    pub cache: KvCache,
    runner: ModelRunner<Cpu>,
    batch: Batch,
    logits: Logits,
}

/// Logits by position: empty where none were computed.
pub type Scores = Vec<Vec<f32>>;

impl Rig {
    pub fn new(model: &str, setup: Setup) -> Self {
        let dir = model_dir(model);
        let config = ModelConfig::from_dir(&dir).unwrap();
        let page_size = PageSize::new(setup.page_size).unwrap();
        let spec = config.kv_spec(setup.kv, page_size, None).unwrap();
        let cpu = Cpu::new(NonZeroUsize::new(setup.threads).unwrap(), Level::detect());
        let weights = Weights::open(&dir).unwrap();
        let model = Model::load(&cpu, config, &spec, &weights, setup.format, &mut |_| {}).unwrap();
        let total = Pages(2048u32.div_ceil(setup.page_size).max(8) * spec.groups().len() as u32);
        let settings = Settings {
            page_size,
            windows: spec.windows(),
            prefix_cache: setup.prefix_cache,
            ..Settings::new(total)
        };
        let runner = ModelRunner::new(cpu, model, &spec, total).unwrap();
        Self {
            cache: KvCache::new(settings).unwrap(),
            runner,
            batch: Batch::default(),
            logits: Logits::default(),
        }
    }

    pub fn admit(&mut self, tokens: &[u32]) -> SeqId {
        let page_size = self.cache.settings().page_size;
        let prompt = Prompt::new(tokens.to_vec(), Scope::default(), page_size).unwrap();
        self.cache.admit(prompt, Reuse::Longest).unwrap().0
    }

    /// One step: so many tokens of each sequence. Their logits are put in their places.
    pub fn step(&mut self, parts: &mut [(SeqId, u32, &mut Scores)]) {
        for (seq, n, _) in parts.iter() {
            self.cache.schedule(*seq, Tokens(*n), Claim::Running).unwrap();
        }
        self.batch.fill(&self.cache, |_| Wanted::All);
        self.runner.step(&self.batch, &mut self.logits).unwrap();
        let mut row = 0;
        for (span, (_, _, scores)) in self.cache.step().spans().iter().zip(parts) {
            for position in span.positions.start.as_usize()..span.positions.end.as_usize() {
                scores.resize(scores.len().max(position + 1), Vec::new());
                scores[position] = self.logits.row(row).to_vec();
                row += 1;
            }
        }
        assert_eq!(row, self.logits.rows());
        self.cache.complete();
        self.cache.check().unwrap();
    }

    /// Computes what `seq` has left, `chunk` tokens a step.
    pub fn finish(&mut self, seq: SeqId, chunk: u32) -> Scores {
        let mut scores = Scores::new();
        while self.left(seq) > 0 {
            self.step(&mut [(seq, self.left(seq).min(chunk), &mut scores)]);
        }
        scores
    }

    pub fn left(&self, seq: SeqId) -> u32 {
        let sequence = self.cache.sequence(seq).unwrap();
        (sequence.prompt().len() - sequence.computed()).0
    }

    /// Every logit of `tokens`, computed alone.
    pub fn score(&mut self, tokens: &[u32], chunk: u32) -> Scores {
        let seq = self.admit(tokens);
        let scores = self.finish(seq, chunk);
        self.cache.free(seq).unwrap();
        scores
    }
}

/// Tokens of a small vocabulary, the same for the same seed.
pub fn tokens(len: usize, seed: u64) -> Vec<u32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % 150) as u32
        })
        .collect()
}

/// Compares bits, wherever both sides have logits.
pub fn assert_same_bits(expected: &Scores, found: &Scores, what: &str) {
    let mut compared = 0;
    for (position, (a, b)) in expected.iter().zip(found).enumerate().filter(|(_, (_, b))| !b.is_empty()) {
        let bits = |row: &[f32]| row.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert!(bits(a) == bits(b), "{what}: position {position} differs");
        compared += 1;
    }
    assert!(compared > 0, "{what}: nothing was compared");
}
