//! Figures of a bench's report.

use serde_json::Value;

pub(crate) fn figure(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or_else(|| panic!("no {key} in {value}"))
}

/// The goal whose words contain `part`.
pub(crate) fn goal<'a>(report: &'a Value, part: &str) -> &'a Value {
    let goals = report["goals"].as_array().unwrap();
    let named = |goal: &&Value| goal["goal"].as_str().unwrap().contains(part);
    goals.iter().find(named).unwrap_or_else(|| panic!("no {part} in {report}"))
}

/// What was reached of it.
pub(crate) fn reached(report: &Value, part: &str) -> f64 {
    figure(goal(report, part), "figure")
}

pub(crate) fn assert_near(found: f64, expected: f64, what: &str) {
    assert!((found / expected - 1.0).abs() < 1e-9, "{what}: {found} for {expected}");
}
