//! Questions whose answers stand earlier in the conversation: whoever has a blurred cache gets them wrong.

use anyhow::{Context, Result, ensure};
use octavo::{Llm, Markup, Message};
use serde::Deserialize;
use std::path::Path;

/// A line of the file.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Question {
    messages: Vec<Message>,
    answer: String,
}

pub(super) fn read(path: &Path) -> Result<Vec<Question>> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {name}"))?;
    let questions = parse(&text, &name)?;
    ensure!(!questions.is_empty(), "{name} has no conversations: write one JSON object a line");
    Ok(questions)
}

/// One object a line; empty lines are passed over.
pub(super) fn parse(text: &str, name: &str) -> Result<Vec<Question>> {
    let lines = text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty());
    lines
        .map(|(line, number)| {
            serde_json::from_str(line).with_context(|| format!("line {number} of {name} is no conversation"))
        })
        .collect()
}

/// How many are answered word for word, taking the likeliest token every time.
pub(super) fn measure(llm: &mut Llm, questions: &[Question], progress: &mut dyn FnMut()) -> Result<usize> {
    let mut right = 0;
    for question in questions {
        let prompt = llm.encode_chat(&question.messages)?;
        let answer = llm.tokenizer().encode(&question.answer, Markup::Literal)?;
        // One more than the answer, so that going on is told from ending.
        let said = llm.complete(prompt, answer.len() as u32 + 1)?;
        right += usize::from(said.trim() == question.answer.trim());
        progress();
    }
    Ok(right)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_conversations_can_all_be_read() {
        let text = octavo::Source::BuiltIn.recall().unwrap();
        assert_eq!(parse(text, "recall").unwrap().len(), 160);
        assert_eq!(octavo::Source::Directory("elsewhere".into()).recall(), None);
    }

    #[test]
    fn a_line_that_is_no_conversation_is_named_by_its_number() {
        let text = "{\"messages\": [], \"answer\": \"\"}\n\n{\"messages\": 1}\n";
        let error = parse(text, "mine.jsonl").unwrap_err().to_string();
        assert_eq!(error, "line 3 of mine.jsonl is no conversation");
    }
}
