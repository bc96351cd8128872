//! Every fixture model against Hugging Face transformers, and against itself run in other ways.

mod support;

use octavo_backend::{Backend, Reference, WeightFormat};
use octavo_types::{KvDtype, Tokens};
use serde_json::json;
use support::expected::Expected;
use support::run::{Part, Session, Setup, distance, spread};
use support::{changed_model, model_dir, model_names};

/// Share of the largest logit that rounding in another order may cost; measured: 6e-6.
const TOLERANCE: f32 = 1e-4;

fn session<B: Backend>(backend: B, name: &str) -> Session<B> {
    Session::open(backend, &model_dir(name), Setup::default())
}

fn check_logits<B: Backend>(backend: impl Fn() -> B) {
    for name in model_names() {
        let mut session = session(backend(), &name);
        let vocab = session.model.config().vocab();
        for prompt in Expected::read(&model_dir(&name)).prompts {
            let found = session.all_logits(&prompt.tokens, usize::MAX);
            let rows = found[prompt.first_row..].iter().zip(prompt.logits(vocab));
            for (row, (found, expected)) in rows.enumerate() {
                let off = distance(found, &expected);
                assert!(off < TOLERANCE, "{name}: {} tokens, row {row}: off by {off}", prompt.tokens.len());
            }
        }
    }
}

fn check_greedy<B: Backend>(backend: impl Fn() -> B) {
    for name in model_names() {
        let mut session = session(backend(), &name);
        for prompt in Expected::read(&model_dir(&name)).prompts {
            let found = session.greedy(&prompt.tokens, prompt.greedy.len());
            assert_eq!(found, prompt.greedy, "{name} after {:?}", prompt.tokens);
        }
    }
}

/// Decision 6 of the design, with `==`.
fn check_bits<B: Backend>(backend: impl Fn() -> B) {
    for name in model_names() {
        let prompts = Expected::read(&model_dir(&name)).prompts;
        let mut session = session(backend(), &name);
        let alone: Vec<_> =
            prompts.iter().map(|prompt| session.all_logits(&prompt.tokens, usize::MAX)).collect();
        for (prompt, alone) in prompts.iter().zip(&alone) {
            for chunk in [1, 7, 16] {
                assert!(session.all_logits(&prompt.tokens, chunk) == *alone, "{name} in chunks of {chunk}");
            }
        }
        let mut sequences: Vec<_> = prompts.iter().map(|_| session.sequence()).collect();
        let mut batch: Vec<Part<'_>> = sequences
            .iter_mut()
            .zip(&prompts)
            .map(|(sequence, prompt)| (sequence, &prompt.tokens[..], prompt.tokens.len()))
            .collect();
        assert!(session.step(&mut batch) == alone.concat(), "{name} in a batch");
    }
}

fn check_page_sizes<B: Backend>(backend: impl Fn() -> B) {
    for name in ["llama-gqa", "qwen3-window", "gemma3-mqa"] {
        let prompt = Expected::read(&model_dir(name)).prompts.pop().unwrap();
        let logits = |page_size| {
            let setup = Setup { page_size, ..Setup::default() };
            Session::open(backend(), &model_dir(name), setup).all_logits(&prompt.tokens, 9)
        };
        let usual = logits(16);
        for page_size in [1, 3, 64, 4096] {
            assert!(logits(page_size) == usual, "{name}: pages of {page_size}");
        }
    }
}

/// Cheaper storage is off by a little, and by more than nothing.
fn check_precisions<B: Backend>(backend: impl Fn() -> B) {
    let usual = Setup::default();
    let setups = [
        (Setup { kv: KvDtype::F16, ..usual }, 2e-3),
        (Setup { kv: KvDtype::Bf16, ..usual }, 2e-2),
        (Setup { kv: KvDtype::Int8, ..usual }, 5e-2),
        (Setup { kv: KvDtype::Fp8, ..usual }, 1.5e-1),
        (Setup { format: WeightFormat::Int8, ..usual }, 5e-2),
    ];
    for name in ["llama-gqa", "qwen3-gqa", "gemma3-gqa"] {
        let prompt = Expected::read(&model_dir(name)).prompts.pop().unwrap();
        let exact = session(backend(), name).all_logits(&prompt.tokens, usize::MAX).concat();
        for (setup, most) in setups {
            let mut session = Session::open(backend(), &model_dir(name), setup);
            let found = session.all_logits(&prompt.tokens, usize::MAX).concat();
            let off = spread(&found, &exact);
            let Setup { kv, format, .. } = setup;
            assert!(off > 0.0 && off < most, "{name}, {kv:?}, {format:?}: off by {off}");
        }
    }
}

/// A chunk of a prompt that is not its last.
fn check_nothing_wanted<B: Backend>(backend: impl Fn() -> B) {
    let mut session = session(backend(), "gemma3-gqa");
    let prompt = Expected::read(&model_dir("gemma3-gqa")).prompts.pop().unwrap();
    let whole = session.all_logits(&prompt.tokens, usize::MAX);
    let (head, tail) = prompt.tokens.split_at(30);
    let mut sequence = session.sequence();
    assert!(session.step(&mut [(&mut sequence, head, 0)]).is_empty());
    assert!(session.step(&mut [(&mut sequence, tail, 1)])[0] == whole[69]);
}

/// The suite, for one back end.
macro_rules! parity {
    ($name:ident, $backend:expr) => {
        mod $name {
            use super::*;

            #[test]
            fn logits_are_those_of_transformers() {
                check_logits(|| $backend);
            }
            #[test]
            fn greedy_tokens_are_those_of_transformers() {
                check_greedy(|| $backend);
            }
            #[test]
            fn logits_have_the_same_bits_in_chunks_and_in_a_batch() {
                check_bits(|| $backend);
            }
            #[test]
            fn logits_have_the_same_bits_whatever_the_page_size() {
                check_page_sizes(|| $backend);
            }
            #[test]
            fn cheaper_storage_costs_a_little_accuracy() {
                check_precisions(|| $backend);
            }
            #[test]
            fn a_chunk_without_wanted_rows_only_fills_the_cache() {
                check_nothing_wanted(|| $backend);
            }
        }
    };
}

parity!(reference, Reference);

/// Agreement proves something only if the fixtures would show a mistake: each setting, slightly wrong.
#[test]
fn the_fixtures_notice_a_wrong_window_rope_scale_or_norm() {
    let llama3 = json!({"rope_type": "llama3", "factor": 9.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 64});
    let cases = [
        ("gemma3-mqa", json!({"sliding_window": 9})),
        ("gemma3-mqa", json!({"sliding_window_pattern": 5})),
        ("gemma3-mqa", json!({"rope_local_base_freq": 10500.0})),
        ("gemma3-mqa", json!({"rope_theta": 1500000.0})),
        ("gemma3-gqa", json!({"query_pre_attn_scalar": 50})),
        ("gemma3-gqa", json!({"hidden_activation": "silu"})),
        ("qwen3-window", json!({"sliding_window": 7})),
        ("qwen3-gqa", json!({"rms_norm_eps": 1e-2})),
        ("llama-gqa", json!({"rope_scaling": llama3})),
        ("llama-wide-head", json!({"rope_parameters": {"rope_theta": 10000.0}})),
    ];
    for (name, change) in cases {
        let dir = model_dir(name);
        let config = changed_model(name, change.clone());
        let mut session = Session::with_config(Reference, config, &dir, Setup::default());
        let prompt = Expected::read(&dir).prompts.pop().unwrap();
        let found = session.all_logits(&prompt.tokens, usize::MAX).pop().unwrap();
        let off = distance(&found, &prompt.logits(200).pop().unwrap());
        assert!(off > 3e-3, "{name} with {change}: off by {off} only");
    }
}

#[test]
fn a_window_given_by_the_user_is_the_window_attention_has() {
    let dir = model_dir("qwen3-gqa");
    let tokens = Expected::read(&dir).prompts.pop().unwrap().tokens;
    let mut given = Session::open(Reference, &dir, Setup { window: Some(Tokens(8)), ..Setup::default() });
    let change =
        json!({"use_sliding_window": true, "sliding_window": 8, "layer_types": vec!["sliding_attention"; 3]});
    let made = changed_model("qwen3-gqa", change);
    let mut made = Session::with_config(Reference, made, &dir, Setup::default());
    let narrow = given.all_logits(&tokens, 5);
    assert!(narrow == made.all_logits(&tokens, 5));
    assert!(narrow != session(Reference, "qwen3-gqa").all_logits(&tokens, 5));
}
