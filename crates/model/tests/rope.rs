mod support;

use octavo_model::{ModelConfig, RopeKind};
use serde_json::Value;
use support::{config, model_dir, model_names};

/// Frequencies of the fixture models, as transformers has them.
#[test]
fn frequencies_are_those_of_transformers() {
    for name in model_names() {
        let dir = model_dir(&name);
        let config = ModelConfig::from_dir(&dir).unwrap();
        let text = std::fs::read_to_string(dir.join("expected.json")).unwrap();
        let expected: Value = serde_json::from_str(&text).unwrap();
        for (kind, expected) in expected["inv_freq"].as_object().unwrap() {
            let kind = match kind.as_str() {
                "full_attention" => RopeKind::Full,
                _ => RopeKind::Sliding,
            };
            let (found, scale) = config.inv_freq(kind);
            assert_eq!(f64::from(scale), expected["scale"].as_f64().unwrap());
            let expected: Vec<f64> =
                expected["values"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
            assert_eq!(found.len(), expected.len(), "{name}");
            for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
                let difference = (f64::from(*found) / expected - 1.0).abs();
                assert!(difference < 3e-7, "{name}, {kind:?}, {i}: {found} for {expected}");
            }
        }
    }
}

#[test]
fn llama3_scaling_keeps_short_waves_and_stretches_long_ones() {
    let (scaled, _) = config("llama-3.2-3b").inv_freq(RopeKind::Full);
    assert_eq!(scaled.len(), 64);
    let plain = |i: usize| 1.0 / 500_000f64.powf(i as f64 / 64.0);
    assert_eq!(scaled[0], 1.0);
    assert!((f64::from(scaled[10]) / plain(10) - 1.0).abs() < 1e-6);
    assert!((f64::from(scaled[63]) / plain(63) - 1.0 / 32.0).abs() < 1e-6);
    assert!(scaled.windows(2).all(|pair| pair[1] < pair[0]));
}
