//! What ends a text: the end tokens of its grammar, the grammar itself, stop strings, and none of them too early.

mod fake;

use fake::{Bench, PageRunner, VOCAB, expected, prompt};
use octavo_engine::{
    Engine, EngineConfig, Failure, FinishReason, Flow, Grammar, GrammarCompiler, Output, Outputs, Request,
    SamplingParams,
};
use octavo_text::{StopStrings, StopText, Tokenizer, TokenizerConfig};
use octavo_types::Tokens;
use serde_json::json;

/// The last token, which is special.
const END: u32 = VOCAB as u32 - 1;

/// Every other token is a character of its own.
fn character(token: u32) -> char {
    char::from_u32('0' as u32 + token).expect("printable")
}

fn tokenizer() -> Tokenizer {
    let mut vocab: serde_json::Map<_, _> = (0..END).map(|id| (character(id).into(), json!(id))).collect();
    vocab.insert("<end>".into(), json!(END));
    let end = json!({"id": END, "content": "<end>", "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true});
    let json = json!({"version": "1.0", "added_tokens": [end], "normalizer": null, "pre_tokenizer": null,
        "post_processor": null, "truncation": null, "padding": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "0"}});
    Tokenizer::from_slice(json.to_string().as_bytes(), &TokenizerConfig::default()).unwrap()
}

fn outputs(request: Request) -> Outputs {
    let settings = Bench::pool(24, 4);
    let runner = PageRunner::new(settings.total, settings.page_size);
    let config = EngineConfig::new(1, Tokens(96));
    let mut engine = Engine::new(config, settings, Box::new(runner), Some(tokenizer())).unwrap();
    engine.generate(vec![request], &mut |_, _| Flow::Continue).unwrap().remove(0)
}

fn answer(request: Request) -> Output {
    let mut outputs = outputs(request);
    assert_eq!(outputs.failure, None);
    outputs.choices.remove(0)
}

/// A model that would end its text at once, under a grammar.
fn under(regex: &str, max_tokens: u32, stop_tokens: &[u32]) -> Output {
    let compiler = GrammarCompiler::new(&tokenizer(), &[END]).unwrap();
    let constraint = Some(compiler.compile(&Grammar::Regex(regex.into())).unwrap());
    let sampling = SamplingParams { logit_bias: [(END, 100.0)].into(), ..SamplingParams::default() };
    let request = Request { constraint, sampling, ..Request::new(prompt(1, 4), max_tokens) };
    answer(Request { stop_tokens: stop_tokens.into(), ..request })
}

#[test]
fn a_text_ends_where_its_grammar_says_so_whatever_the_model_says() {
    for max_tokens in [3, 9] {
        let output = under("[A-C]{3}", max_tokens, &[]);
        assert_eq!((output.finish, output.text.len()), (Some(FinishReason::Stop), 3), "{output:?}");
        assert!(output.text.chars().all(|c| ('A'..='C').contains(&c)), "{output:?}");
    }
    let nothing = under("", 9, &[]);
    assert_eq!((nothing.finish, nothing.tokens.len()), (Some(FinishReason::Stop), 0), "{nothing:?}");
}

#[test]
fn the_end_token_of_a_grammar_ends_a_text_that_may_end_only_if_it_was_asked_for() {
    let asked = under("[A-C]{2,}", 9, &[END]);
    assert_eq!((asked.finish, asked.text.len()), (Some(FinishReason::Stop), 2), "{asked:?}");
    let not_asked = under("[A-C]{2,}", 9, &[]);
    assert_eq!((not_asked.finish, not_asked.text.len()), (Some(FinishReason::Length), 9), "{not_asked:?}");
}

#[test]
fn a_grammar_is_kept_to_by_a_model_that_chooses_by_itself() {
    let compiler = GrammarCompiler::new(&tokenizer(), &[END]).unwrap();
    let constraint = Some(compiler.compile(&Grammar::Regex("(AB)*".into())).unwrap());
    let output = answer(Request { constraint, ..Request::new(prompt(1, 4), 8) });
    assert_eq!(output.text, "ABABABAB");
}

#[test]
fn a_text_that_no_token_continues_as_its_grammar_wants_fails_with_that_reason() {
    let compiler = GrammarCompiler::new(&tokenizer(), &[END]).unwrap();
    let constraint = Some(compiler.compile(&Grammar::Regex("A(é|ü)".into())).unwrap());
    let outputs = outputs(Request { constraint, ..Request::new(prompt(1, 4), 8) });
    let why = "the tokenizer has no token that continues the text as the grammar wants".to_string();
    assert_eq!(outputs.failure, Some(Failure::Constraint(why)));
    assert_eq!(outputs.choices[0].text, "A");
}

/// With every character as many rules more may end at once, which a parser follows up to a limit.
const RULES: usize = 40;

#[test]
fn a_grammar_that_gets_too_complex_while_it_is_followed_fails_its_request_alone() {
    let rules: String = (0..RULES).map(|n| format!("r{n}: r{} | \"B\" r{}\n", n + 1, n + 1)).collect();
    let grammar = format!("start: \"A\" r0 | \"A\"\n{rules}r{RULES}: start\n");
    let compiler = GrammarCompiler::new(&tokenizer(), &[END]).unwrap();
    let constraint = Some(compiler.compile(&Grammar::Lark(grammar)).expect("harmless at first"));
    let only_a =
        SamplingParams { logit_bias: [('A' as u32 - '0' as u32, 100.0)].into(), ..Default::default() };
    let mut bench = Bench::small(60, 4, 2);
    let other = bench.send(Request::new(prompt(2, 4), 90));
    let id = bench.send(Request { constraint, sampling: only_a, ..Request::new(prompt(1, 4), 90) });
    bench.run();
    let outputs = bench.outputs(id);
    let Some(Failure::TooComplex(reason)) = outputs.failure else { panic!("{:?}", outputs.failure) };
    assert!(reason.contains("max is 2000"), "{reason}");
    let said = &outputs.choices[0].tokens;
    assert!((10..90).contains(&said.len()), "{} tokens", said.len());
    assert!(said.iter().all(|token| character(*token) == 'A'), "{said:?}");
    bench.assert_right(other);
    bench.assert_nothing_left();
}

#[test]
fn a_stop_string_ends_a_text_but_not_before_the_least_number_of_tokens() {
    let request = Request::new(prompt(1, 4), 9);
    let tokens = expected(&request, 0, Tokens(96));
    let text: String = tokens.iter().map(|token| character(*token)).collect();
    assert!(
        !tokens.contains(&END) && text.find(&text[3..4]) == Some(3) && text.rfind(&text[3..4]) == Some(3)
    );
    for (min_tokens, ends) in [(0, true), (3, true), (4, false), (9, false)] {
        let stop_strings = Some(StopStrings::new(&["never", &text[3..4]], StopText::Drop).unwrap());
        let output = answer(Request { stop_strings, min_tokens, ..request.clone() });
        let (len, tokens, finish, matched) = match ends {
            true => (3, 4, FinishReason::Stop, Some(1)),
            false => (9, 9, FinishReason::Length, None),
        };
        assert_eq!((output.text.as_str(), output.matched), (&text[..len], matched), "{min_tokens}");
        assert_eq!((output.tokens.len(), output.finish), (tokens, Some(finish)));
    }
}

#[test]
fn special_tokens_leave_no_text() {
    let sampling = SamplingParams { logit_bias: [(END, 100.0)].into(), ..SamplingParams::default() };
    let output = answer(Request { sampling, ..Request::new(prompt(1, 4), 3) });
    assert_eq!((output.tokens.as_slice(), output.text.as_str()), (&[END; 3][..], ""));
}
