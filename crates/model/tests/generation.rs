use octavo_model::GenerationConfig;

#[test]
fn preferences_are_read_with_one_or_several_ends() {
    let text = r#"{"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.05,
        "repetition_penalty": 1.1, "eos_token_id": [151645, 151643], "pad_token_id": 151643}"#;
    let config = GenerationConfig::from_json(text).unwrap();
    assert_eq!(config.do_sample, Some(true));
    assert_eq!((config.temperature, config.top_k), (Some(0.6), Some(20)));
    assert_eq!((config.top_p, config.min_p, config.repetition_penalty), (Some(0.95), Some(0.05), Some(1.1)));
    assert_eq!(config.eos, [151_645, 151_643]);
    assert_eq!(GenerationConfig::from_json(r#"{"eos_token_id": 2}"#).unwrap().eos, [2]);
}

#[test]
fn a_model_without_the_file_has_no_preferences() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(GenerationConfig::from_dir(dir.path()).unwrap(), GenerationConfig::default());
}

#[test]
fn a_damaged_file_is_named() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("generation_config.json"), r#"{"top_k": "all"}"#).unwrap();
    let error = GenerationConfig::from_dir(dir.path()).unwrap_err().to_string();
    assert!(error.contains("generation_config.json: invalid type"), "{error}");
}

#[test]
fn a_file_that_cannot_be_read_is_not_taken_for_none() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("generation_config.json")).unwrap();
    let error = GenerationConfig::from_dir(dir.path()).unwrap_err().to_string();
    assert!(error.starts_with("cannot read") && error.contains("generation_config.json"), "{error}");
}

#[test]
fn a_top_k_that_cuts_nothing_off_is_off_however_it_is_written() {
    let top_k = |text: &str| {
        GenerationConfig::from_json(&format!("{{\"top_k\": {text}}}")).map(|config| config.top_k)
    };
    assert_eq!(top_k("-1").unwrap(), Some(0));
    assert_eq!(top_k("0").unwrap(), Some(0));
    assert_eq!(top_k("50.0").unwrap(), Some(50));
    assert_eq!(top_k("null").unwrap(), None);
    for wrong in ["50.5", "1e20", "\"all\""] {
        let error = top_k(wrong).unwrap_err().to_string();
        assert!(error.starts_with("generation_config.json: invalid"), "{wrong}: {error}");
    }
}

#[test]
fn an_end_below_zero_is_none() {
    assert!(GenerationConfig::from_json(r#"{"eos_token_id": -1}"#).unwrap().eos.is_empty());
    assert_eq!(GenerationConfig::from_json(r#"{"eos_token_id": [-1, 2]}"#).unwrap().eos, [2]);
    let error = GenerationConfig::from_json(r#"{"eos_token_id": "</s>"}"#).unwrap_err().to_string();
    assert!(error.contains("a token id or a list of them"), "{error}");
}
