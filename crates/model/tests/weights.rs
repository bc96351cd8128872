mod support;

use octavo_backend::WeightDtype;
use octavo_model::{LoadError, Weights};
use std::path::Path;
use support::model_dir;

/// The bytes of a safetensors file: `(name, type, shape, data)`.
fn file(tensors: &[(&str, &str, &[usize], &[u8])]) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, dtype, shape, bytes) in tensors {
        let offsets = [data.len(), data.len() + bytes.len()];
        data.extend_from_slice(bytes);
        let entry = serde_json::json!({"dtype": dtype, "shape": shape, "data_offsets": offsets});
        header.insert((*name).to_owned(), entry);
    }
    let header = serde_json::Value::Object(header).to_string();
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat()
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn write(dir: &Path, name: &str, bytes: impl AsRef<[u8]>) {
    std::fs::write(dir.join(name), bytes).unwrap();
}

/// Two files of one tensor each, `a` and `b`.
fn two_shards(dir: &Path, second: &str) {
    write(dir, "one.safetensors", file(&[("a", "F32", &[1, 2], &floats(&[1.0, 2.0]))]));
    write(dir, "two.safetensors", file(&[(second, "F32", &[2], &floats(&[3.0, 4.0]))]));
}

fn error(dir: &Path) -> LoadError {
    Weights::open(dir).unwrap_err()
}

#[test]
fn tensors_are_read_where_they_lie_in_every_type() {
    let half = half::f16::from_f32(1.5).to_le_bytes();
    let brain = half::bf16::from_f32(-2.5).to_le_bytes();
    let dir = tempfile::tempdir().unwrap();
    let bytes = file(&[
        ("m", "F32", &[2, 3], &floats(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])),
        ("h", "F16", &[1], &half),
        ("b", "BF16", &[1, 1], &brain),
    ]);
    write(dir.path(), "model.safetensors", bytes);
    let weights = Weights::open(dir.path()).unwrap();
    let matrix = weights.tensor("m", [2, 3]).unwrap();
    assert_eq!((matrix.dtype(), matrix.get(1, 0), matrix.get(0, 2)), (WeightDtype::F32, 4.0, 3.0));
    assert_eq!(weights.tensor("h", [1, 1]).unwrap().get(0, 0), 1.5);
    assert_eq!(weights.tensor("b", [1, 1]).unwrap().get(0, 0), -2.5);
    assert_eq!(weights.bytes_under(""), 28);
    assert!(weights.contains("m") && !weights.contains("n"));
}

#[test]
fn weights_within_the_program_need_no_file() {
    let bytes: &'static [u8] = file(&[("a", "F32", &[2], &floats(&[7.0, 8.0]))]).leak();
    let weights = Weights::embedded("demo", bytes).unwrap();
    let tensor = weights.tensor("a", [1, 2]).unwrap();
    assert_eq!(tensor.get(0, 1), 8.0);
    assert!(bytes.as_ptr_range().contains(&tensor.bytes().as_ptr()), "not a copy");
    let error = Weights::embedded("demo", &bytes[..20]).unwrap_err().to_string();
    assert!(error.starts_with("demo is not a readable safetensors file"), "{error}");
}

#[test]
fn weights_made_in_memory_are_read_there() {
    let bytes = file(&[("a", "F32", &[1, 2], &floats(&[7.0, 8.0]))]);
    let weights = Weights::from_bytes("made", bytes.clone()).unwrap();
    assert_eq!(weights.tensor("a", [1, 2]).unwrap().get(0, 1), 8.0);
    let error = Weights::from_bytes("made", bytes[..20].to_vec()).unwrap_err().to_string();
    assert!(error.starts_with("made is not a readable safetensors file"), "{error}");
}

#[test]
fn a_sharded_model_is_found_by_its_index() {
    let weights = Weights::open(&model_dir("llama-sharded")).unwrap();
    for name in ["model.embed_tokens.weight", "lm_head.weight"] {
        weights.tensor(name, [200, 64]).unwrap();
    }
}

#[test]
fn files_without_an_index_are_all_opened() {
    let dir = tempfile::tempdir().unwrap();
    two_shards(dir.path(), "b");
    let weights = Weights::open(dir.path()).unwrap();
    assert_eq!(weights.tensor("a", [1, 2]).unwrap().get(0, 0), 1.0);
    assert_eq!(weights.tensor("b", [1, 2]).unwrap().get(0, 0), 3.0);
}

#[test]
fn one_file_is_enough_where_an_index_names_others() {
    let dir = tempfile::tempdir().unwrap();
    two_shards(dir.path(), "b");
    let index = r#"{"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}"#;
    write(dir.path(), "model.safetensors.index.json", index);
    write(dir.path(), "model.safetensors", file(&[("a", "F32", &[2], &floats(&[5.0, 6.0]))]));
    let weights = Weights::open(dir.path()).unwrap();
    assert_eq!(weights.tensor("a", [1, 2]).unwrap().get(0, 0), 5.0);
    assert!(!weights.contains("b"));
}

#[test]
fn a_tensor_in_two_files_is_named_with_both() {
    let dir = tempfile::tempdir().unwrap();
    two_shards(dir.path(), "a");
    let text = error(dir.path()).to_string();
    assert_eq!(text, "the tensor a is in both one.safetensors and two.safetensors");
}

#[test]
fn a_missing_tensor_is_named_with_the_files_searched() {
    let dir = tempfile::tempdir().unwrap();
    two_shards(dir.path(), "b");
    let text = Weights::open(dir.path()).unwrap().tensor("c", [1, 1]).unwrap_err().to_string();
    assert_eq!(text, "the tensor c is missing from one.safetensors, two.safetensors");
}

#[test]
fn a_wrong_shape_says_what_was_expected_and_what_was_found() {
    let dir = tempfile::tempdir().unwrap();
    two_shards(dir.path(), "b");
    let weights = Weights::open(dir.path()).unwrap();
    let text = weights.tensor("a", [2, 1]).unwrap_err().to_string();
    assert_eq!(text, "the tensor a in one.safetensors has the shape [1, 2]; config.json makes it [2, 1]");
    let text = weights.tensor("b", [1, 3]).unwrap_err().to_string();
    assert_eq!(text, "the tensor b in two.safetensors has the shape [2]; config.json makes it [3]");
}

#[test]
fn a_type_that_is_not_supported_is_named() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "model.safetensors", file(&[("a", "I8", &[1, 4], &[1, 2, 3, 4])]));
    let text = Weights::open(dir.path()).unwrap().tensor("a", [1, 4]).unwrap_err().to_string();
    assert_eq!(text, "the tensor a in model.safetensors is stored as I8; supported are F32, F16 and BF16");
}

#[test]
fn a_file_cut_short_anywhere_is_an_error_that_names_it() {
    let whole = file(&[("a", "F32", &[1, 2], &floats(&[1.0, 2.0]))]);
    let dir = tempfile::tempdir().unwrap();
    for len in 1..whole.len() {
        write(dir.path(), "model.safetensors", &whole[..len]);
        let text = error(dir.path()).to_string();
        assert!(text.contains("model.safetensors"), "{len} bytes: {text}");
    }
    write(dir.path(), "model.safetensors", [&whole[..], &[0]].concat());
    assert!(matches!(error(dir.path()), LoadError::Length { .. }), "a byte too many");
    write(dir.path(), "model.safetensors", whole);
    Weights::open(dir.path()).unwrap();
}

/// The tensor that the end lies in, not a later one; and one that cannot be what the header says.
#[test]
fn a_tensor_that_is_cut_off_or_described_wrongly_is_named() {
    let (a, b, c) = (floats(&[1.0, 2.0]), floats(&[3.0]), floats(&[4.0, 5.0, 6.0]));
    let whole = file(&[("a", "F32", &[1, 2], &a), ("b", "F32", &[1], &b), ("c", "F32", &[3], &c)]);
    let dir = tempfile::tempdir().unwrap();
    let (end_of_a, end_of_b) = (whole.len() - 16, whole.len() - 12);
    for (len, tensor) in [(end_of_a - 1, "a"), (end_of_a, "b"), (end_of_b, "c"), (whole.len() - 1, "c")] {
        write(dir.path(), "model.safetensors", &whole[..len]);
        let text = error(dir.path()).to_string();
        assert!(text.contains(&format!("the tensor {tensor} ends at byte")), "{len} bytes: {text}");
        assert!(text.contains("model.safetensors"), "{text}");
    }
    // In the order of their places, whatever that of the header; and what describes no tensor is passed over.
    let header = br#"{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[1],"data_offsets":[8,12]},
        "b":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}}"#;
    let whole = [&(header.len() as u64).to_le_bytes()[..], header, &a, &b].concat();
    write(dir.path(), "model.safetensors", &whole);
    Weights::open(dir.path()).unwrap();
    write(dir.path(), "model.safetensors", &whole[..whole.len() - 5]);
    let text = error(dir.path()).to_string();
    assert!(text.contains("the tensor b ends at byte"), "{text}");
    let too_short = file(&[("a", "F32", &[1, 2], &a), ("b", "F32", &[2], &b)]);
    let no_type = file(&[("a", "F32", &[1, 2], &a), ("b", "F33", &[1], &b)]);
    for bytes in [too_short, no_type] {
        write(dir.path(), "model.safetensors", bytes);
        let text = error(dir.path()).to_string();
        assert!(text.contains("the tensor b in model.safetensors is described wrongly"), "{text}");
    }
}

#[test]
fn damaged_headers_are_errors_that_name_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let wrong_len = file(&[("a", "F32", &[3], &floats(&[1.0]))]);
    let huge = [&u64::MAX.to_le_bytes()[..], b"{}"].concat();
    let not_json = [&2u64.to_le_bytes()[..], b"[]"].concat();
    for bytes in [wrong_len, huge, not_json, Vec::new()] {
        write(dir.path(), "model.safetensors", bytes);
        let text = error(dir.path()).to_string();
        assert!(text.contains("model.safetensors"), "{text}");
    }
}

#[test]
fn a_directory_without_weights_is_named() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(error(dir.path()), LoadError::NoWeights { .. }));
}

#[test]
fn an_index_is_held_to_its_promises() {
    let dir = tempfile::tempdir().unwrap();
    two_shards(dir.path(), "b");
    let index = |map| write(dir.path(), "model.safetensors.index.json", format!("{{\"weight_map\": {map}}}"));
    index(r#"{"a": "one.safetensors", "b": "two.safetensors"}"#);
    Weights::open(dir.path()).unwrap();
    index(r#"{"a": "one.safetensors", "b": "one.safetensors"}"#);
    let text = error(dir.path()).to_string();
    assert_eq!(text, "the index places the tensor b in one.safetensors, which does not have it");
    index(r#"{"a": "two.safetensors", "b": "one.safetensors"}"#);
    let text = error(dir.path()).to_string();
    assert_eq!(text, "the index places the tensor a in two.safetensors, which does not have it");
    index(r#"{"a": "three.safetensors"}"#);
    assert!(error(dir.path()).to_string().contains("three.safetensors"));
    index(r#"{"a": "../one.safetensors"}"#);
    assert!(error(dir.path()).to_string().contains("\"../one.safetensors\", which is not a file beside it"));
    write(dir.path(), "model.safetensors.index.json", "{");
    assert!(matches!(error(dir.path()), LoadError::Index { .. }));
}

#[test]
fn no_damaged_byte_of_a_header_makes_a_panic() {
    let whole = file(&[("a", "F32", &[1, 2], &floats(&[1.0, 2.0])), ("b", "F16", &[2], &[0; 4])]);
    for at in 0..whole.len() - 12 {
        for byte in [0, b'0', b'9', b'"', b'{', b',', 0xff] {
            let mut bytes = whole.clone();
            bytes[at] = byte;
            // Either is fine; what is read must lie within the file.
            if let Ok(weights) = Weights::from_bytes("damaged", bytes) {
                for name in ["a", "b"] {
                    let _ = weights.tensor(name, [1, 2]);
                }
            }
        }
    }
}

/// Opening a pipe waits for someone to write into it.
#[cfg(unix)]
#[test]
fn what_is_not_a_file_is_refused_before_it_is_opened() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "model.safetensors.index.json", r#"{"weight_map": {"a": "pipe.safetensors"}}"#);
    let made = std::process::Command::new("mkfifo").arg(dir.path().join("pipe.safetensors")).status();
    assert!(made.unwrap().success());
    let (tell, told) = std::sync::mpsc::channel();
    let path = dir.path().to_owned();
    std::thread::spawn(move || tell.send(error(&path).to_string()));
    let error = told.recv_timeout(std::time::Duration::from_secs(20)).expect("it waits");
    assert!(error.contains("pipe.safetensors is not a regular file"), "{error}");
}
