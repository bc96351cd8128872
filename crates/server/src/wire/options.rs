//! What completions and chat completions have in common.

use super::error::ApiError;
use super::fields::Fields;
use super::grammar::{self, Named};
use super::sampling::Sampling;
use octavo::{Constraint, Request, Scope, StopStrings, StopText, Texts, Tokens};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Everything about a request but its prompt, checked as far as that goes without a model.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) model: Option<String>,
    pub(crate) sampling: Sampling,
    pub(crate) choices: u32,
    pub(crate) best_of: u32,
    pub(crate) max_tokens: Option<u32>,
    /// The field that said so.
    pub(crate) limit_name: &'static str,
    pub(crate) stream: Option<StreamOptions>,
    min_tokens: u32,
    /// As they were given, to say which one ended a text.
    pub(crate) stops: Vec<String>,
    stop_strings: Option<StopStrings>,
    stop_token_ids: Vec<u32>,
    ignore_eos: bool,
    grammar: Option<Named>,
    priority: i32,
    time_limit: Option<Duration>,
    /// Since when that counts.
    asked: Instant,
    scope: Scope,
}

/// What a stream sends beside its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct StreamOptions {
    pub(crate) usage: bool,
    pub(crate) progress: bool,
}

/// Longer than anybody waits, and far from where a clock would overflow.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// Fields that change no answer here.
const HARMLESS: &[&str] = &[
    "metadata",
    "parallel_tool_calls",
    "prediction",
    "prompt_cache_key",
    "prompt_cache_retention",
    "request_id",
    "safety_identifier",
    "service_tier",
    "spaces_between_special_tokens",
    "store",
];

/// Fields that others honour and that would change the answer.
const UNSUPPORTED: &[(&str, &str)] = &[
    ("allowed_token_ids", "tokens cannot be restricted to a list; use logit_bias or a grammar"),
    ("bad_words", "words cannot be ruled out; use logit_bias or a grammar"),
    ("length_penalty", "there is no beam search"),
    ("logits_processors", "code cannot be sent"),
    ("prompt_logprobs", "use echo with logprobs on /v1/completions"),
    ("truncate_prompt_tokens", "a prompt is never cut; shorten it"),
    ("use_beam_search", "there is no beam search"),
];

impl Options {
    /// `max_tokens` are the names that the limit goes by.
    pub(crate) fn take(fields: &mut Fields<'_>, max_tokens: &[&'static str]) -> Result<Self, ApiError> {
        let choices = fields.take("n")?.unwrap_or(1);
        let (limit_name, max_tokens) = first(fields, max_tokens)?;
        let (stops, stop_strings) = stop_strings(fields)?;
        let options = Self {
            model: fields.take("model")?,
            sampling: Sampling::take(fields)?,
            choices,
            best_of: fields.take("best_of")?.unwrap_or(choices),
            max_tokens,
            limit_name,
            min_tokens: fields.take("min_tokens")?.unwrap_or(0),
            stops,
            stop_strings,
            stop_token_ids: fields.take("stop_token_ids")?.unwrap_or_default(),
            ignore_eos: fields.take("ignore_eos")?.unwrap_or(false),
            grammar: grammar::take(fields)?,
            priority: fields.take("priority")?.unwrap_or(0),
            time_limit: time_limit(fields)?,
            asked: Instant::now(),
            scope: scope(fields)?,
            stream: stream(fields)?,
        };
        if fields.take("skip_special_tokens")? == Some(false) {
            return Err(ApiError::unsupported("skip_special_tokens", "special tokens never show"));
        }
        // Whoever it is gets the same answer.
        fields.take::<String>("user")?;
        for (name, why) in UNSUPPORTED {
            fields.refuse(name, why)?;
        }
        fields.ignore(HARMLESS);
        options.check()
    }

    fn check(self) -> Result<Self, ApiError> {
        if self.choices == 0 {
            return Err(ApiError::field("n", "at least one choice must be asked for"));
        }
        if self.best_of < self.choices {
            return Err(ApiError::field("best_of", format_args!("cannot be less than n, {}", self.choices)));
        }
        if self.best_of > self.choices && self.stream.is_some() {
            return Err(ApiError::unsupported("best_of", "the best are known at the end: not with stream"));
        }
        if self.max_tokens.is_some_and(|most| most < self.min_tokens) {
            return Err(ApiError::field(
                "min_tokens",
                format_args!("cannot be more than {}", self.limit_name),
            ));
        }
        Ok(self)
    }

    /// The requests for these prompts. The grammar is compiled here, once.
    pub(crate) fn requests(
        &self,
        prompts: Vec<Vec<u32>>,
        defaults: Defaults,
        texts: &Texts,
    ) -> Result<Vec<Request>, ApiError> {
        let vocabulary = texts.tokenizer().vocab_size();
        self.sampling.check_vocabulary(vocabulary)?;
        if let Some(token) = self.stop_token_ids.iter().find(|token| **token as usize >= vocabulary) {
            let message = format!("there is no token {token}; the vocabulary has {vocabulary}");
            return Err(ApiError::field("stop_token_ids", message));
        }
        let constraint = self.constraint(texts)?;
        let mut stop_tokens = BTreeSet::from_iter(self.stop_token_ids.iter().copied());
        if !self.ignore_eos {
            stop_tokens.extend(texts.stop_tokens());
        }
        let stop_tokens: Arc<[u32]> = stop_tokens.into_iter().collect();
        let request = |prompt: Vec<u32>| {
            let room = defaults.max_len.0.saturating_sub(u32::try_from(prompt.len()).unwrap_or(u32::MAX));
            // A prompt that leaves no room is refused for that, not for asking for nothing.
            let room = room.max(1);
            let wanted = self.max_tokens.or(defaults.max_tokens).unwrap_or(room);
            let mut sampling = self.sampling.over(texts.default_sampling());
            sampling.logprobs = defaults.logprobs;
            Request {
                scope: self.scope,
                sampling,
                min_tokens: self.min_tokens,
                stop_tokens: stop_tokens.clone(),
                stop_strings: self.stop_strings.clone(),
                constraint: constraint.clone(),
                choices: self.choices,
                best_of: self.best_of,
                prompt_logprobs: defaults.prompt_logprobs,
                priority: self.priority,
                time_limit: self.time_limit,
                waited: self.asked.elapsed(),
                ..Request::new(prompt, wanted.min(room))
            }
        };
        Ok(prompts.into_iter().map(request).collect())
    }

    /// The field that asks for a grammar.
    pub(crate) fn grammar_field(&self) -> Option<&str> {
        self.grammar.as_ref().map(|grammar| grammar.name.as_str())
    }

    pub(crate) fn time_limit(&self) -> Option<Duration> {
        self.time_limit
    }

    fn constraint(&self, texts: &Texts) -> Result<Option<Constraint>, ApiError> {
        let Some(Named { name, grammar }) = &self.grammar else { return Ok(None) };
        match texts.grammar(grammar) {
            Ok(constraint) => Ok(Some(constraint)),
            Err(error) => Err(ApiError::field(name.as_str(), error).with_code("invalid_grammar")),
        }
    }
}

/// What one of the two forms of request adds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Defaults {
    /// The most tokens a prompt and its answer may have.
    pub(crate) max_len: Tokens,
    /// Where the request names no limit; `None` for as many as fit.
    pub(crate) max_tokens: Option<u32>,
    pub(crate) logprobs: Option<u8>,
    pub(crate) prompt_logprobs: Option<u8>,
}

/// The first of these fields that is there, with its name; all of them must be right.
fn first(fields: &mut Fields<'_>, names: &[&'static str]) -> Result<(&'static str, Option<u32>), ApiError> {
    let mut found = (names[0], None);
    for name in names {
        // More than fit is no error, however many.
        let value = fields.take::<u64>(name)?.map(|limit| u32::try_from(limit).unwrap_or(u32::MAX));
        if found.1.is_none() && value.is_some() {
            found = (name, value);
        }
    }
    Ok(found)
}

/// A string or a list of them.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of strings")]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

fn stop_strings(fields: &mut Fields<'_>) -> Result<(Vec<String>, Option<StopStrings>), ApiError> {
    let kept = fields.take("include_stop_str_in_output")?.unwrap_or(false);
    let stops = match fields.take("stop")? {
        None => Vec::new(),
        Some(OneOrMany::One(stop)) => vec![stop],
        Some(OneOrMany::Many(stops)) => stops,
    };
    if stops.is_empty() {
        return Ok((stops, None));
    }
    let text = if kept { StopText::Keep } else { StopText::Drop };
    let strings = StopStrings::new(&stops, text).map_err(|error| ApiError::field("stop", error))?;
    Ok((stops, Some(strings)))
}

fn time_limit(fields: &mut Fields<'_>) -> Result<Option<Duration>, ApiError> {
    let Some(limit) = fields.take("time_limit_ms")?.map(Duration::from_millis) else { return Ok(None) };
    if limit.is_zero() || limit > LONGEST {
        let most = LONGEST.as_millis();
        return Err(ApiError::field("time_limit_ms", format_args!("choose 1 to {most}")));
    }
    Ok(Some(limit))
}

/// Requests of different salts never share cached pages.
pub(crate) fn scope(fields: &mut Fields<'_>) -> Result<Scope, ApiError> {
    match fields.take::<String>("cache_salt")? {
        None => Ok(Scope::default()),
        Some(salt) if salt.is_empty() => Err(ApiError::field("cache_salt", "cannot be empty; leave it out")),
        Some(salt) => Ok(Scope::new(salt.as_bytes(), b"")),
    }
}

fn stream(fields: &mut Fields<'_>) -> Result<Option<StreamOptions>, ApiError> {
    let stream = fields.take("stream")?.unwrap_or(false);
    let Some(mut options) = fields.object("stream_options")? else {
        return Ok(stream.then(StreamOptions::default));
    };
    let wanted = StreamOptions {
        usage: options.take("include_usage")?.unwrap_or(false),
        progress: options.take("include_progress")?.unwrap_or(false),
    };
    options.ignore(&["include_obfuscation"]);
    options.refuse("continuous_usage_stats", "usage comes once, at the end: use include_usage")?;
    options.end()?;
    if !stream {
        return Err(ApiError::field("stream_options", "only with stream: true"));
    }
    Ok(Some(wanted))
}

#[cfg(test)]
mod tests {
    use super::*;
    use octavo::Llm;

    fn options(body: &str) -> Result<Options, ApiError> {
        let mut fields = Fields::parse(body.as_bytes())?;
        let options = Options::take(&mut fields, &["max_completion_tokens", "max_tokens"])?;
        fields.end().map(|()| options)
    }

    #[test]
    fn nothing_said_means_one_choice_without_a_stream() {
        let options = options("{}").unwrap();
        assert_eq!((options.choices, options.best_of, options.max_tokens), (1, 1, None));
        assert_eq!(options.stream, None);
    }

    #[test]
    fn the_first_name_of_the_limit_wins() {
        let both = options(r#"{"max_tokens": 5, "max_completion_tokens": 7}"#).unwrap();
        assert_eq!(both.max_tokens, Some(7));
        assert_eq!(options(r#"{"max_tokens": 5}"#).unwrap().max_tokens, Some(5));
        let most = options(r#"{"max_tokens": 9223372036854775807}"#).unwrap();
        assert_eq!(most.max_tokens, Some(u32::MAX), "more than fit");
    }

    #[test]
    fn a_stream_sends_usage_and_progress_if_asked() {
        let body = r#"{"stream": true, "stream_options": {"include_usage": true, "include_progress": true}}"#;
        assert_eq!(options(body).unwrap().stream, Some(StreamOptions { usage: true, progress: true }));
        assert_eq!(options(r#"{"stream": true}"#).unwrap().stream, Some(StreamOptions::default()));
    }

    #[test]
    fn harmless_fields_are_accepted() {
        options(
            r#"{"user": "x", "metadata": {"a": 1}, "store": true, "service_tier": "auto", "parallel_tool_calls": true,
                "prediction": {}, "prompt_cache_key": "x", "safety_identifier": "x", "request_id": "x"}"#,
        )
        .unwrap();
        options(r#"{"skip_special_tokens": true, "n": 2, "best_of": 2, "stream": true}"#).unwrap();
        options(r#"{"use_beam_search": false, "prompt_logprobs": null, "bad_words": []}"#).unwrap();
        let stream = r#"{"include_obfuscation": true, "continuous_usage_stats": false}"#;
        options(&format!(r#"{{"stream": true, "stream_options": {stream}}}"#)).unwrap();
        options(r#"{"max_tokens": 3, "min_tokens": 3, "time_limit_ms": 86400000}"#).unwrap();
    }

    #[test]
    fn the_engine_is_asked_for_what_the_client_asked_for() {
        let texts = Llm::load(&octavo::Options::default(), &mut |_| {}).unwrap().serve().texts;
        let body = r#"{"n": 2, "best_of": 3, "min_tokens": 4, "priority": -5, "time_limit_ms": 6000}"#;
        let defaults =
            Defaults { max_len: Tokens(20), max_tokens: None, logprobs: Some(1), prompt_logprobs: Some(2) };
        let asked = options(body).unwrap();
        let of = |prompt: Vec<u32>| asked.requests(vec![prompt], defaults, &texts).unwrap().remove(0);
        let request = of(vec![7; 8]);
        assert_eq!((request.choices, request.best_of, request.min_tokens), (2, 3, 4));
        assert_eq!((request.priority, request.time_limit), (-5, Some(Duration::from_secs(6))));
        assert_eq!((request.sampling.logprobs, request.prompt_logprobs), (Some(1), Some(2)));
        // As many tokens as fit, and what it took to get here counts.
        assert_eq!((request.max_tokens, of(vec![7; 20]).max_tokens), (12, 1));
        assert!(request.waited > Duration::ZERO);
        let last = texts.tokenizer().vocab_size() - 1;
        for (token, fine) in [(last, true), (last + 1, false)] {
            let asked = options(&format!(r#"{{"stop_token_ids": [{token}]}}"#)).unwrap();
            assert_eq!(asked.requests(vec![vec![7]], defaults, &texts).is_ok(), fine, "{token}");
        }
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_by_name() {
        for (body, param) in [
            (r#"{"n": 0}"#, "n"),
            (r#"{"n": -1}"#, "n"),
            (r#"{"n": 1e9}"#, "n"),
            (r#"{"n": 3, "best_of": 2}"#, "best_of"),
            (r#"{"n": 1, "best_of": 2, "stream": true}"#, "best_of"),
            (r#"{"max_tokens": 18446744073709551616}"#, "max_tokens"),
            (r#"{"max_tokens": 3, "min_tokens": 4}"#, "min_tokens"),
            (r#"{"stop": 3}"#, "stop"),
            (r#"{"stop": [""]}"#, "stop"),
            (r#"{"stop": ["1","2","3","4","5","6","7","8","9","0","a","b","c","d","e","f","g"]}"#, "stop"),
            (r#"{"time_limit_ms": 0}"#, "time_limit_ms"),
            (r#"{"time_limit_ms": 86400001}"#, "time_limit_ms"),
            (r#"{"time_limit_ms": 18446744073709551615}"#, "time_limit_ms"),
            (
                r#"{"stream": true, "stream_options": {"continuous_usage_stats": true}}"#,
                "stream_options.continuous_usage_stats",
            ),
            (r#"{"cache_salt": ""}"#, "cache_salt"),
            (r#"{"stream_options": {"include_usage": true}}"#, "stream_options"),
            (r#"{"stream": "yes"}"#, "stream"),
            (r#"{"skip_special_tokens": false}"#, "skip_special_tokens"),
            (r#"{"use_beam_search": true}"#, "use_beam_search"),
            (r#"{"prompt_logprobs": 1}"#, "prompt_logprobs"),
            (r#"{"temprature": 1}"#, "temprature"),
            (r#"{"temperature": "hot"}"#, "temperature"),
            (r#"{"temperature": 1e999}"#, "temperature"),
        ] {
            let error = options(body).expect_err(body);
            let json: serde_json::Value = serde_json::from_str(&error.body()).unwrap();
            assert_eq!((error.status().as_u16(), &json["error"]["param"]), (400, &param.into()), "{body}");
        }
    }
}
