//! Logits of a text itself, with the built-in model.

use octavo::{Llm, Options, Pages, ScoreError, SubmitError, Tokens};

const TEXT: &str = "Removes the last element from a vector and returns it, or `None` if it is empty.";

fn llm(chunk: u32) -> Llm {
    let options =
        Options { chunk: (Tokens(chunk), Tokens(chunk)), max_len: Some(Tokens(64)), ..Options::default() };
    Llm::load(&options, &mut |_| {}).unwrap()
}

/// The logits of every position, which must come in order.
fn score(llm: &mut Llm, tokens: &[u32]) -> Result<Vec<Vec<f32>>, ScoreError> {
    let mut rows: Vec<Vec<f32>> = Vec::new();
    let mut each = |at: Tokens, logits: &[f32]| {
        assert_eq!(at.as_usize(), rows.len());
        rows.push(logits.to_vec());
    };
    llm.engine().score(tokens.to_vec(), &mut each)?;
    Ok(rows)
}

#[test]
fn every_position_is_scored_with_the_same_bits_whatever_the_chunk() {
    let (mut whole, mut pieces) = (llm(512), llm(5));
    let tokens = whole.encode_prompt(TEXT).unwrap();
    let rows = score(&mut whole, &tokens).unwrap();
    assert_eq!(rows.len(), tokens.len());
    assert_eq!(rows, score(&mut pieces, &tokens).unwrap());
}

#[test]
fn a_text_scored_again_is_computed_again() {
    let mut llm = llm(16);
    let tokens = llm.encode_prompt(TEXT).unwrap();
    let first = score(&mut llm, &tokens).unwrap();
    assert_eq!(first, score(&mut llm, &tokens).unwrap());
    assert_eq!(llm.engine().cache().snapshot().pages.used, Pages(0), "nothing stays held");
}

#[test]
fn the_last_position_says_what_would_be_generated_next() {
    let mut llm = llm(512);
    let tokens = llm.encode_prompt("Removes the last element from a vector and").unwrap();
    let rows = score(&mut llm, &tokens).unwrap();
    let last = rows.last().unwrap();
    let likeliest = (0..last.len()).max_by(|&a, &b| last[a].total_cmp(&last[b])).unwrap();
    let expected = llm.complete(tokens, 1).unwrap();
    let said = llm.tokenizer().decode(&[likeliest as u32], octavo::SpecialTokens::Skip).unwrap();
    assert_eq!(said, expected);
}

#[test]
fn what_is_empty_or_too_long_is_refused_and_takes_nothing() {
    let mut llm = llm(512);
    assert!(matches!(score(&mut llm, &[]), Err(ScoreError::Refused(SubmitError::EmptyPrompt))));
    assert!(matches!(score(&mut llm, &[1; 65]), Err(ScoreError::Refused(SubmitError::PromptTooLong { .. }))));
    assert_eq!(llm.engine().cache().snapshot().pages.used, Pages(0));
    assert_eq!(score(&mut llm, &[1; 64]).unwrap().len(), 64);
}
