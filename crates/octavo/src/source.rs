use crate::built_in;
use crate::hub::{Download, Files, Hub, HubName};
use crate::llm::LoadError;
use octavo_model::{GenerationConfig, ModelConfig, Weights};
use octavo_text::{ChatTemplate, TemplateError, Tokenizer, TokenizerConfig};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// Where a model comes from.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Source {
    /// The one in the program.
    #[default]
    BuiltIn,
    /// A directory in the layout of the Hugging Face hub.
    Directory(PathBuf),
    /// One of the hub, in the directory of its cache.
    Hub { name: HubName, dir: PathBuf },
}

/// The parts of a model that are not on a device.
pub(crate) struct Parts {
    pub(crate) name: String,
    pub(crate) config: ModelConfig,
    pub(crate) generation: GenerationConfig,
    pub(crate) tokenizer: Tokenizer,
    /// None for a model that was not made for chat.
    pub(crate) template: Option<ChatTemplate>,
    pub(crate) weights: Weights,
}

impl Source {
    /// What a user calls a model: a path that exists is a directory; `org/name` or `org/name@revision` is found in
    /// the hub's cache or, with what `files` says is wanted, downloaded into it as long as `progress` says so.
    pub fn named(
        model: &Path,
        hub: &Hub,
        files: Files,
        progress: &mut dyn FnMut(Download<'_>) -> ControlFlow<()>,
    ) -> Result<Self, LoadError> {
        let name = model.to_str().and_then(|text| text.parse::<HubName>().ok());
        match name {
            Some(name) if !model.exists() => Ok(Self::Hub { dir: hub.fetch(&name, files, progress)?, name }),
            _ => Ok(Self::Directory(model.to_owned())),
        }
    }

    /// What people call the model.
    pub fn name(&self) -> String {
        match self {
            Self::BuiltIn => built_in::NAME.into(),
            Self::Directory(dir) => {
                dir.file_name().map_or_else(|| "model".into(), |name| name.to_string_lossy().into())
            }
            Self::Hub { name, .. } => name.to_string(),
        }
    }

    /// The model's geometry alone: of a directory, only `config.json` is read.
    pub fn config(&self) -> Result<ModelConfig, LoadError> {
        match self {
            Self::BuiltIn => Ok(ModelConfig::from_json(built_in::CONFIG)?),
            Self::Directory(dir) | Self::Hub { dir, .. } => Ok(ModelConfig::from_dir(existing(dir)?)?),
        }
    }

    /// The model's tokenizer alone.
    pub fn tokenizer(&self) -> Result<Tokenizer, LoadError> {
        match self {
            Self::BuiltIn => {
                let texts = TokenizerConfig::from_slice(built_in::TOKENIZER_CONFIG)?;
                Ok(Tokenizer::from_slice(built_in::TOKENIZER, &texts)?)
            }
            Self::Directory(dir) | Self::Hub { dir, .. } => {
                let dir = existing(dir)?;
                Ok(Tokenizer::from_dir(dir, &TokenizerConfig::from_dir(dir)?)?)
            }
        }
    }

    /// Conversations whose answers stand earlier in them, one JSON object a line with `messages` and `answer`:
    /// what a cache that loses or blurs something gets wrong. Only the built-in model has its own.
    pub fn recall(&self) -> Option<&'static str> {
        match self {
            Self::BuiltIn => Some(built_in::RECALL),
            Self::Directory(_) | Self::Hub { .. } => None,
        }
    }

    pub(crate) fn open(&self) -> Result<Parts, LoadError> {
        match self {
            Self::BuiltIn => open_built_in(),
            Self::Directory(dir) | Self::Hub { dir, .. } => {
                let dir = existing(dir)?;
                let texts = TokenizerConfig::from_dir(dir)?;
                Ok(Parts {
                    name: self.name(),
                    config: ModelConfig::from_dir(dir)?,
                    generation: GenerationConfig::from_dir(dir)?,
                    tokenizer: Tokenizer::from_dir(dir, &texts)?,
                    template: template(&texts)?,
                    weights: Weights::open(dir)?,
                })
            }
        }
    }
}

fn existing(dir: &Path) -> Result<&Path, LoadError> {
    if dir.is_dir() { Ok(dir) } else { Err(LoadError::NoDirectory(dir.to_owned())) }
}

fn open_built_in() -> Result<Parts, LoadError> {
    let texts = TokenizerConfig::from_slice(built_in::TOKENIZER_CONFIG)?;
    Ok(Parts {
        name: built_in::NAME.into(),
        config: ModelConfig::from_json(built_in::CONFIG)?,
        generation: GenerationConfig::from_json(built_in::GENERATION_CONFIG)?,
        tokenizer: Tokenizer::from_slice(built_in::TOKENIZER, &texts)?,
        template: template(&texts)?,
        weights: Weights::embedded("the built-in model", built_in::WEIGHTS)?,
    })
}

/// A model without a template is a base model; a template that is there must be right.
fn template(texts: &TokenizerConfig) -> Result<Option<ChatTemplate>, LoadError> {
    match ChatTemplate::from_config(texts) {
        Ok(template) => Ok(Some(template)),
        Err(TemplateError::Missing { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_called_what_its_last_part_is() {
        assert_eq!(Source::Directory("/models/Mine-1B/".into()).name(), "Mine-1B");
        assert_eq!(Source::Directory("/".into()).name(), "model");
    }

    #[test]
    fn a_template_that_is_wrong_is_not_taken_for_none() {
        let of = |json: &str| template(&TokenizerConfig::from_slice(json.as_bytes()).unwrap());
        assert!(of("{}").unwrap().is_none());
        assert!(of(r#"{"chat_template": "{{ messages[0].content }}"}"#).unwrap().is_some());
        assert!(matches!(of(r#"{"chat_template": "{% if %}"}"#), Err(LoadError::Template(_))));
    }
}
