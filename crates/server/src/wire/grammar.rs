//! What the text must look like: OpenAI's `response_format` and vLLM's fields for the same.

use super::error::ApiError;
use super::fields::Fields;
use octavo::Grammar;
use serde_json::Value;

/// The one grammar that was asked for, by whatever name.
pub(crate) fn take(fields: &mut Fields<'_>) -> Result<Option<Named>, ApiError> {
    let mut asked = Vec::new();
    asked.extend(response_format(fields)?);
    asked.extend(structured_outputs(fields)?);
    let mut add = |name: &str, grammar: Option<Grammar>| {
        asked.extend(grammar.map(|grammar| Named { name: name.into(), grammar }));
    };
    add(
        "guided_json",
        fields.take_json::<Value>("guided_json")?.map(|value| schema("guided_json", value)).transpose()?,
    );
    add("guided_regex", fields.take("guided_regex")?.map(Grammar::Regex));
    add("guided_grammar", fields.take("guided_grammar")?.map(Grammar::Lark));
    add(
        "guided_choice",
        fields.take("guided_choice")?.map(|list| choice("guided_choice", list)).transpose()?,
    );
    fields.ignore(&["guided_decoding_backend"]);
    fields.refuse("guided_whitespace_pattern", "whitespace cannot be chosen")?;
    let mut asked = asked.into_iter();
    match (asked.next(), asked.next()) {
        (only, None) => Ok(only),
        (None, Some(_)) => unreachable!("an iterator that ended"),
        (Some(first), Some(second)) => {
            let (first, second) = (first.name, second.name);
            Err(ApiError::field(second, format_args!("cannot be had together with {first}")))
        }
    }
}

/// A grammar, and the field that asked for it.
#[derive(Debug, Clone)]
pub(crate) struct Named {
    pub(crate) name: String,
    pub(crate) grammar: Grammar,
}

fn response_format(fields: &mut Fields<'_>) -> Result<Option<Named>, ApiError> {
    let Some(mut format) = fields.object("response_format")? else { return Ok(None) };
    let kind: String = format.need("type")?;
    let (name, grammar) = match kind.as_str() {
        "text" => {
            format.end()?;
            return Ok(None);
        }
        "json_object" => ("response_format", Grammar::JsonObject),
        "json_schema" => ("response_format.json_schema.schema", json_schema(&mut format)?),
        other => {
            let message = format!("{other:?} is not supported: use text, json_object or json_schema");
            return Err(ApiError::unsupported("response_format.type", message));
        }
    };
    format.end()?;
    Ok(Some(Named { name: name.into(), grammar }))
}

fn json_schema(format: &mut Fields<'_>) -> Result<Grammar, ApiError> {
    const PATH: &str = "response_format.json_schema";
    let outer: Option<serde_json::Map<String, Value>> = format.take_json("json_schema")?;
    let mut outer = outer.ok_or_else(|| ApiError::field(PATH, "this field is required"))?;
    for known in ["name", "description", "strict"] {
        outer.remove(known);
    }
    let schema = outer.remove("schema").filter(|schema| !schema.is_null());
    if let Some(name) = outer.keys().next() {
        return Err(ApiError::field(format!("{PATH}.{name}"), "unknown field"));
    }
    match schema {
        // As OpenAI has it: any object.
        None => Ok(Grammar::JsonObject),
        Some(schema) => self::schema(&format!("{PATH}.schema"), schema),
    }
}

fn structured_outputs(fields: &mut Fields<'_>) -> Result<Option<Named>, ApiError> {
    let Some(mut outputs) = fields.object("structured_outputs")? else { return Ok(None) };
    let mut asked = Vec::new();
    if let Some(value) = outputs.take_json::<Value>("json")? {
        asked.push(("json", schema("structured_outputs.json", value)?));
    }
    asked.extend(outputs.take("regex")?.map(|regex| ("regex", Grammar::Regex(regex))));
    asked.extend(outputs.take("grammar")?.map(|lark| ("grammar", Grammar::Lark(lark))));
    if let Some(list) = outputs.take("choice")? {
        asked.push(("choice", choice("structured_outputs.choice", list)?));
    }
    if outputs.take("json_object")? == Some(true) {
        asked.push(("json_object", Grammar::JsonObject));
    }
    outputs.end()?;
    if asked.len() > 1 {
        return Err(ApiError::field(
            "structured_outputs",
            "one of json, regex, grammar, choice, json_object",
        ));
    }
    Ok(asked.pop().map(|(name, grammar)| Named { name: format!("structured_outputs.{name}"), grammar }))
}

/// A schema as JSON, or as JSON in a string.
fn schema(path: &str, value: Value) -> Result<Grammar, ApiError> {
    match value {
        Value::Object(_) | Value::Bool(_) => Ok(Grammar::JsonSchema(value)),
        Value::String(text) => match serde_json::from_str(&text) {
            Ok(schema @ Value::Object(_)) => Ok(Grammar::JsonSchema(schema)),
            Ok(_) => Err(ApiError::field(path, "this string does not hold a JSON object")),
            Err(error) => Err(ApiError::field(path, format_args!("this string is not JSON: {error}"))),
        },
        _ => Err(ApiError::field(path, "a schema is a JSON object")),
    }
}

fn choice(path: &str, list: Vec<String>) -> Result<Grammar, ApiError> {
    if list.is_empty() {
        return Err(ApiError::field(path, "there is nothing to choose from"));
    }
    Ok(Grammar::Choice(list))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grammar(body: &str) -> Result<Option<Named>, ApiError> {
        let mut fields = Fields::parse(body.as_bytes())?;
        let grammar = take(&mut fields)?;
        fields.end().map(|()| grammar)
    }

    #[test]
    fn every_way_to_ask_for_a_grammar_is_understood() {
        for (body, expected) in [
            (r#"{"response_format": {"type": "json_object"}}"#, "JsonObject"),
            (r#"{"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}"#, "JsonObject"),
            (
                r#"{"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": true,
                    "schema": {"type": "object"}}}}"#,
                "JsonSchema",
            ),
            (
                r#"{"response_format": {"type": "json_schema", "json_schema": {"description": "x", "schema": null}}}"#,
                "JsonObject",
            ),
            (r#"{"guided_json": {"type": "object"}, "guided_decoding_backend": "x"}"#, "JsonSchema"),
            (r#"{"guided_json": true}"#, "JsonSchema"),
            (r#"{"guided_json": "{\"type\": \"object\"}"}"#, "JsonSchema"),
            (r#"{"guided_regex": "[0-9]+"}"#, "Regex"),
            (r#"{"guided_grammar": "start: \"a\""}"#, "Lark"),
            (r#"{"guided_choice": ["a", "b"]}"#, "Choice"),
            (r#"{"structured_outputs": {"json": {}}}"#, "JsonSchema"),
            (r#"{"structured_outputs": {"regex": "a"}}"#, "Regex"),
            (r#"{"structured_outputs": {"choice": ["a"]}}"#, "Choice"),
            (r#"{"structured_outputs": {"grammar": "start: \"a\""}}"#, "Lark"),
            (r#"{"structured_outputs": {"json_object": true}}"#, "JsonObject"),
        ] {
            let named = grammar(body).unwrap().expect(body);
            assert!(format!("{:?}", named.grammar).starts_with(expected), "{body}: {:?}", named.grammar);
        }
        let schema = r#"{"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}"#;
        assert_eq!(grammar(schema).unwrap().unwrap().name, "response_format.json_schema.schema");
        assert!(grammar(r#"{"response_format": {"type": "text"}}"#).unwrap().is_none());
        assert!(grammar(r#"{"structured_outputs": null}"#).unwrap().is_none());
        assert!(grammar(r#"{"structured_outputs": {"json_object": false}}"#).unwrap().is_none());
    }

    #[test]
    fn what_is_wrong_with_a_grammar_is_said_by_path() {
        for (body, path) in [
            (r#"{"response_format": {"type": "xml"}}"#, "response_format.type"),
            (r#"{"response_format": {}}"#, "response_format.type"),
            (r#"{"response_format": "json"}"#, "response_format"),
            (r#"{"response_format": {"type": "json_schema"}}"#, "response_format.json_schema"),
            (
                r#"{"response_format": {"type": "json_schema", "json_schema": {"schema": 3}}}"#,
                "response_format.json_schema.schema",
            ),
            (
                r#"{"response_format": {"type": "json_schema", "json_schema": {"x": 3}}}"#,
                "response_format.json_schema.x",
            ),
            (r#"{"guided_json": "{"}"#, "guided_json"),
            (r#"{"guided_json": "3"}"#, "guided_json"),
            (r#"{"guided_choice": []}"#, "guided_choice"),
            (r#"{"guided_choice": [1]}"#, "guided_choice[0]"),
            (r#"{"guided_regex": "a", "guided_choice": ["a"]}"#, "guided_choice"),
            (r#"{"structured_outputs": {"regex": "a", "choice": ["a"]}}"#, "structured_outputs"),
        ] {
            let error = grammar(body).unwrap_err();
            assert!(error.message().starts_with(&format!("{path}: ")), "{body}: {}", error.message());
        }
        for (body, path) in [
            (r#"{"response_format": {"type": "text", "x": 3}}"#, "response_format.x"),
            (r#"{"response_format": {"type": "json_object", "x": 3}}"#, "response_format.x"),
            (r#"{"structured_outputs": {"regex": "a", "x": 3}}"#, "structured_outputs.x"),
        ] {
            let error = grammar(body).unwrap_err();
            assert_eq!(error.message(), format!("unknown or unsupported: {path}"), "{body}");
        }
    }
}
