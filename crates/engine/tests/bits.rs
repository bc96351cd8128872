//! One promise as a matrix: a sequence's logits have the same bits however it is run, for every KV precision and
//! weight format, in every architecture.

mod support;

use octavo_backend::WeightFormat;
use octavo_types::{KvDtype, Pages, Tokens};
use support::{Rig, Scores, Setup, assert_same_bits, tokens};

const MODELS: [&str; 4] = ["llama-gqa", "qwen3-gqa", "gemma3-mqa", "qwen3-bf16"];
const DTYPES: [KvDtype; 5] = [KvDtype::F32, KvDtype::F16, KvDtype::Bf16, KvDtype::Fp8, KvDtype::Int8];
const LEN: usize = 53;

/// Runs `check` for every model, precision and format, with the logits of a sequence run alone in one piece.
fn for_each_combination(check: impl Fn(&str, Setup, &[u32], &Scores)) {
    for model in MODELS {
        for kv in DTYPES {
            for format in [WeightFormat::AsStored, WeightFormat::Int8] {
                let setup = Setup::new(kv, format);
                let tokens = tokens(LEN, 1);
                let alone = Rig::new(model, setup).score(&tokens, LEN as u32);
                check(model, setup, &tokens, &alone);
            }
        }
    }
}

#[test]
fn chunks_of_any_size_change_no_bit() {
    for_each_combination(|model, setup, tokens, alone| {
        for chunk in [1, 7, 16] {
            let found = Rig::new(model, setup).score(tokens, chunk);
            assert_same_bits(alone, &found, &format!("{model} {setup:?}, chunks of {chunk}"));
        }
    });
}

#[test]
fn pages_of_any_size_and_one_page_a_sequence_change_no_bit() {
    for_each_combination(|model, setup, tokens, alone| {
        for page_size in [1, 5, 32, 2048] {
            let found = Rig::new(model, Setup { page_size, ..setup }).score(tokens, 20);
            assert_same_bits(alone, &found, &format!("{model} {setup:?}, pages of {page_size}"));
        }
    });
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    for_each_combination(|model, setup, tokens, alone| {
        for threads in [2, 3] {
            let found = Rig::new(model, Setup { threads, ..setup }).score(tokens, 20);
            assert_same_bits(alone, &found, &format!("{model} {setup:?}, {threads} threads"));
        }
    });
}

#[test]
fn neighbours_in_the_batch_change_no_bit() {
    for_each_combination(|model, setup, first, alone| {
        let mut rig = Rig::new(model, setup);
        let [a, b, c] = [first.to_vec(), tokens(31, 2), tokens(70, 3)].map(|t| rig.admit(&t));
        let (mut found, mut other, mut third) = (Scores::new(), Scores::new(), Scores::new());
        // A decode beside chunks, a chunk beside decodes, all at different places.
        rig.step(&mut [(b, 30, &mut other), (a, 17, &mut found)]);
        rig.step(&mut [(a, 1, &mut found), (c, 50, &mut third), (b, 1, &mut other)]);
        let left = rig.left(a);
        rig.step(&mut [(c, 20, &mut third), (a, left, &mut found)]);
        assert_same_bits(alone, &found, &format!("{model} {setup:?}, in a batch"));
    });
}

#[test]
fn pages_shared_with_others_change_no_bit() {
    for_each_combination(|model, setup, tokens, alone| {
        let mut rig = Rig::new(model, Setup { prefix_cache: true, ..setup });
        // Somebody was here with the first 40 tokens; of the third page only the beginning fits.
        let other = [&tokens[..40], &[149; 13]].concat();
        rig.score(&other, 64);
        let seq = rig.admit(tokens);
        assert_eq!(rig.cache.sequence(seq).unwrap().computed(), Tokens(40));
        assert_eq!(rig.cache.step().copies().len(), rig.cache.settings().windows.len());
        let found = rig.finish(seq, 64);
        assert_same_bits(alone, &found, &format!("{model} {setup:?}, from the prefix cache"));
    });
}

#[test]
fn forks_change_no_bit() {
    for_each_combination(|model, setup, tokens, alone| {
        let mut rig = Rig::new(model, setup);
        let parent = rig.admit(&tokens[..37]);
        rig.finish(parent, 64);
        let child = rig.cache.fork(parent).unwrap();
        rig.cache.append(parent, 3).unwrap();
        rig.finish(parent, 64);
        for &token in &tokens[37..] {
            rig.cache.append(child, token).unwrap();
        }
        let found = rig.finish(child, 4);
        assert_same_bits(alone, &found, &format!("{model} {setup:?}, forked"));
    });
}

#[test]
fn preemption_changes_no_bit() {
    for_each_combination(|model, setup, tokens, alone| {
        let mut rig = Rig::new(model, Setup { prefix_cache: true, ..setup });
        let seq = rig.admit(tokens);
        let mut found = Scores::new();
        rig.step(&mut [(seq, 40, &mut found)]);
        let prompt = rig.cache.preempt(seq).unwrap();
        rig.cache.evict(Pages(1));
        let (again, hit) = rig.cache.admit(prompt, octavo_kv::Reuse::Longest).unwrap();
        assert!(hit.tokens < Tokens(40), "something was lost");
        let found = rig.finish(again, 9);
        assert_same_bits(alone, &found, &format!("{model} {setup:?}, preempted"));
    });
}
