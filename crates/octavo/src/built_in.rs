//! The model that is part of the program, so that it works with no file and no network.

pub(crate) const NAME: &str = "octavo-demo";
pub(crate) const CONFIG: &str = include_str!("../../../models/demo/config.json");
pub(crate) const GENERATION_CONFIG: &str = include_str!("../../../models/demo/generation_config.json");
pub(crate) const TOKENIZER: &[u8] = include_bytes!("../../../models/demo/tokenizer.json");
pub(crate) const TOKENIZER_CONFIG: &[u8] = include_bytes!("../../../models/demo/tokenizer_config.json");
pub(crate) const WEIGHTS: &[u8] = include_bytes!("../../../models/demo/model.safetensors");
pub(crate) const RECALL: &str = include_str!("../../../models/demo/eval/recall.jsonl");
