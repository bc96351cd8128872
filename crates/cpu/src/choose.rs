use crate::scratch::with_scratch;
use crate::{Buf, Pool};
use octavo_backend::Choice;

/// A token for each row of `logits` that there is a choice for; see [`Choice::of`].
pub fn choose(pool: &Pool, logits: &Buf, choices: &[Choice], tokens: &mut [Option<u32>]) {
    assert!(choices.len() <= logits.rows() && choices.len() == tokens.len(), "a row for each choice");
    pool.run_chunks(tokens, 1, &|row, token| {
        let (choice, logits) = (choices[row], logits.row(row));
        token[0] = if choice.temperature == 0.0 {
            octavo_backend::choice::likeliest(logits)
        } else {
            with_scratch(logits.len(), |own: &mut [f32]| {
                own.copy_from_slice(logits);
                choice.of(own)
            })
        };
    });
}
