//! A context of 200 000 tokens, prefilled in chunks by a runner that computes nothing: the bookkeeping of the cache.

use octavo_backend::BackendError;
use octavo_engine::{Batch, Logits, Runner, Wanted};
use octavo_kv::{Claim, KvCache, Prompt, Reuse, Scope, Settings};
use octavo_types::{Bytes, GroupId, KvDtype, KvSpec, PageId, PageSize, Pages, SeqId, Tokens};

const CONTEXT: Tokens = Tokens(200_000);
const CHUNK: Tokens = Tokens(2048);
const LIMIT: Bytes = Bytes(4_000_000_000);

/// Looks at every batch and computes none.
#[derive(Default)]
struct NullRunner {
    most_rows: usize,
    end: u32,
}

impl Runner for NullRunner {
    fn finish(&mut self, batch: &Batch, _: &mut Logits) -> Result<(), BackendError> {
        let rows = batch.rows();
        self.most_rows = self.most_rows.max(rows.tokens.len());
        assert_eq!(batch.copies(), []);
        for (span, table) in rows.spans.iter().zip(&batch.tables()[0]) {
            assert_eq!(span.start, self.end, "each chunk begins where the last one ended");
            assert_eq!((table.first, table.pages.len()), (0, span.end().div_ceil(16) as usize));
            self.end = span.end();
        }
        Ok(())
    }
    fn zero(&mut self, _: &[PageId]) -> Result<(), BackendError> {
        Ok(())
    }
    fn vocab(&self) -> usize {
        1
    }

    fn device(&self) -> String {
        "nothing".into()
    }
}

/// Runs one step of `n` tokens; pages that it took.
fn step(cache: &mut KvCache, runner: &mut NullRunner, batch: &mut Batch, seq: SeqId, n: Tokens) -> Pages {
    let before = cache.counts().used;
    cache.schedule(seq, n, Claim::New).unwrap();
    batch.fill(cache, |_| Wanted::Nothing);
    runner.step(batch, &mut Logits::default()).unwrap();
    cache.complete();
    cache.counts().used - before
}

#[test]
fn two_hundred_thousand_tokens_are_prefilled_in_chunks_within_4_gb_and_without_a_spike() {
    // 24 layers with 2 key-value heads of 128 in FP8.
    let spec = KvSpec::full_attention(24, 2, 128, KvDtype::Fp8, PageSize::DEFAULT).unwrap();
    let mut cache = KvCache::new(Settings::for_model(&spec, LIMIT)).unwrap();
    let (mut runner, mut batch) = (NullRunner::default(), Batch::default());
    let prompt = Prompt::new((0..CONTEXT.0).collect(), Scope::default(), PageSize::DEFAULT).unwrap();
    let (seq, _) = cache.admit(prompt, Reuse::Longest).unwrap();

    let (mut done, most) = (Tokens::ZERO, PageSize::DEFAULT.pages_for(CHUNK));
    while done < CONTEXT {
        let n = CHUNK.min(CONTEXT - done);
        let taken = step(&mut cache, &mut runner, &mut batch, seq, n);
        done += n;
        assert!(taken <= most, "{taken} for a chunk of {n}");
        assert_eq!(cache.counts().used, PageSize::DEFAULT.pages_for(done), "after {done}");
    }
    assert_eq!((runner.end, runner.most_rows), (CONTEXT.0, CHUNK.as_usize()));
    assert_eq!(cache.sequence(seq).unwrap().computed(), CONTEXT);
    assert_eq!(cache.sequence(seq).unwrap().table(GroupId(0)).pages().count(), 12_500);

    let snapshot = cache.snapshot();
    assert_eq!(snapshot.peak_used, Pages(12_500), "never more than in the end");
    let bytes = u64::from(snapshot.peak_used.0) * spec.page_bytes().0;
    assert_eq!(bytes, 2_534_400_000);
    assert!(Bytes(bytes) <= LIMIT);
    cache.check().unwrap();
}

#[test]
fn a_context_that_never_fits_the_limit_is_refused_before_anything_is_taken() {
    // The same in twice the precision and four times the heads: 19.7 GB.
    let spec = KvSpec::full_attention(24, 8, 128, KvDtype::F16, PageSize::DEFAULT).unwrap();
    let mut cache = KvCache::new(Settings::for_model(&spec, LIMIT)).unwrap();
    let prompt = Prompt::new((0..CONTEXT.0).collect(), Scope::default(), PageSize::DEFAULT).unwrap();
    assert!(cache.admit(prompt, Reuse::Longest).is_err());
    assert_eq!(cache.counts().used, Pages::ZERO);
}
