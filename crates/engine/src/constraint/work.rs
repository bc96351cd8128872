use super::ConstraintError;
use std::time::Duration;

/// What following any text may take, and beside that each of its tokens: some ten times what a schema of sixty fields takes.
/// A grammar that can be read in many ways takes longer with every token, and everybody else waits meanwhile.
const START: Duration = Duration::from_secs(2);
const EACH_TOKEN: Duration = Duration::from_millis(5);

/// The time that following one text has taken.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Work {
    spent: Duration,
    tokens: u32,
}

impl Work {
    pub(super) fn add(&mut self, took: Duration) -> Result<(), ConstraintError> {
        self.spent += took;
        if self.spent <= START + EACH_TOKEN * self.tokens {
            return Ok(());
        }
        let reason = format!("{} tokens of it took {:.1} s", self.tokens, self.spent.as_secs_f64());
        Err(ConstraintError::TooComplex { reason })
    }

    pub(super) fn add_token(&mut self) {
        self.tokens = self.tokens.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_may_take_longer_the_longer_it_is() {
        let mut work = Work::default();
        assert_eq!(work.add(START), Ok(()));
        let reason = "0 tokens of it took 2.0 s".into();
        assert_eq!(work.add(Duration::from_millis(1)), Err(ConstraintError::TooComplex { reason }));
        (0..100).for_each(|_| work.add_token());
        assert_eq!(work.add(100 * EACH_TOKEN - Duration::from_millis(1)), Ok(()));
        let reason = "100 tokens of it took 2.6 s".into();
        assert_eq!(work.add(Duration::from_millis(100)), Err(ConstraintError::TooComplex { reason }));
    }
}
