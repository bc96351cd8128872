//! The built-in model's tokenizer, and text made by chance under a constraint.
#![allow(dead_code, unreachable_pub)]

use octavo_engine::{Constraint, GrammarCompiler, Sampler, SamplingParams};
use octavo_text::{SpecialTokens, Tokenizer, TokenizerConfig};
use std::path::Path;
use std::sync::OnceLock;

/// Texts that grow without end are no use to a test.
const MAX_TOKENS: u32 = 3000;

pub fn tokenizer() -> &'static Tokenizer {
    static TOKENIZER: OnceLock<Tokenizer> = OnceLock::new();
    TOKENIZER.get_or_init(|| {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo");
        let config = TokenizerConfig::from_dir(&dir).unwrap();
        Tokenizer::from_dir(&dir, &config).unwrap()
    })
}

/// The end tokens, lowest first.
pub fn eos() -> &'static [u32] {
    static EOS: OnceLock<Vec<u32>> = OnceLock::new();
    // As generation_config.json has them.
    EOS.get_or_init(|| vec![0, 2])
}

pub fn compiler() -> &'static GrammarCompiler {
    static COMPILER: OnceLock<GrammarCompiler> = OnceLock::new();
    COMPILER.get_or_init(|| GrammarCompiler::new(tokenizer(), eos()).unwrap())
}

/// A text of tokens chosen by chance among the allowed ones.
pub fn speak(constraint: &mut Constraint, seed: u64) -> String {
    let mut tokens = Vec::new();
    speak_with(constraint, seed, |_, token| tokens.push(token));
    tokenizer().decode(&tokens, SpecialTokens::Skip).unwrap()
}

/// The same; `watch` sees each token before the constraint does.
pub fn speak_with(constraint: &mut Constraint, seed: u64, mut watch: impl FnMut(&Constraint, u32)) {
    // What closes brackets is preferred: long texts end.
    let mut bias = Vec::new();
    for close in ["}", "]", "\"", ")", "\"}", "]}", "]]"] {
        bias.extend(tokenizer().token_id(close).map(|token| (token, 5.0)));
    }
    let params =
        SamplingParams { temperature: 1.0, logit_bias: bias.into(), seed, ..SamplingParams::default() };
    let mut sampler = Sampler::new(params, &[]).unwrap();
    for position in 0..MAX_TOKENS {
        if constraint.is_complete() && (seed + u64::from(position)).is_multiple_of(4) {
            return;
        }
        let mut logits = vec![0.0; tokenizer().vocab_size()];
        let mask = constraint.mask().unwrap();
        let token = sampler.sample(&mut logits, position, Some(mask)).unwrap().token;
        if eos().contains(&token) {
            assert!(constraint.is_complete());
            return;
        }
        watch(constraint, token);
        constraint.accept(token).unwrap();
    }
    panic!("no end after {MAX_TOKENS} tokens");
}
