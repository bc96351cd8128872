//! Choosing tokens, where the device does it.

use super::Tolerance;
use super::transfer::upload;
use crate::{Backend, Choice, Random};

/// Choices that take every way through the definition.
fn choices(random: &mut Random) -> Vec<Choice> {
    let cut = [(0, 1.0), (1, 1.0), (3, 1.0), (40, 0.9), (0, 0.5), (0, 0.95), (500, 0.99)];
    let mut all = vec![Choice::LIKELIEST];
    for (top_k, top_p) in cut {
        for (temperature, min_p) in [(1.0, 0.0), (0.7, 0.1), (20.0, 0.0)] {
            let uniform = f64::from(random.unit().abs());
            all.push(Choice { uniform, temperature, top_k, top_p, min_p });
        }
    }
    all
}

/// Logits of which some are equal, some rule a token out and some are no numbers.
fn logits(random: &mut Random, vocab: usize, kind: usize) -> Vec<f32> {
    let mut row = random.short_values(vocab, [12.0, 1.0, 3.0][kind % 3]);
    match kind {
        1 => row.iter_mut().step_by(3).for_each(|logit| *logit = f32::NEG_INFINITY),
        2 => row.iter_mut().skip(1).step_by(2).for_each(|logit| *logit = f32::NAN),
        3 => row.iter_mut().for_each(|logit| *logit = logit.round()),
        4 => row.fill(f32::NAN),
        5 => row.fill(f32::NEG_INFINITY),
        6 => row[vocab / 2] = f32::INFINITY,
        _ => {}
    }
    row
}

/// Exactly the same tokens; a device may leave flat distributions, and those alone, to whoever reads the row, and leaves what
/// has no likeliest token.
pub fn tokens_are_those_of_the_definition<B: Backend>(backend: &B, _: Tolerance) {
    if !backend.chooses() {
        return;
    }
    let mut random = Random::new(11);
    for vocab in [1, 5, 300, 5000] {
        for kind in 0..7 {
            let choices = choices(&mut random);
            let rows: Vec<Vec<f32>> = choices.iter().map(|_| logits(&mut random, vocab, kind)).collect();
            let buf = upload(backend, rows.len(), vocab, &rows.concat());
            backend.choose(&buf, &choices).unwrap();
            let chosen = backend.chosen(choices.len()).unwrap();
            for ((choice, mut row), chosen) in choices.iter().zip(rows).zip(chosen) {
                let case = format!("{choice:?} of {vocab} tokens, logits {kind}");
                match chosen {
                    Some(token) => assert_eq!(Some(token), choice.of(&mut row), "{case}"),
                    None if choice.of(&mut row.clone()).is_none() => {}
                    None => assert!(vocab > 1000 && !choice.keeps_few(), "left open: {case}"),
                }
            }
        }
    }
    let row = logits(&mut random, 300, 0);
    let mut back = Vec::new();
    let buf = upload(backend, 3, 300, &[row.clone(), logits(&mut random, 300, 1), row.clone()].concat());
    backend.read_row(&buf, 2, &mut back).unwrap();
    assert_eq!(back, row, "a row read alone");
}
