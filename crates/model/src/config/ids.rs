use serde::Deserialize;

/// Token ids as `config.json` and `generation_config.json` write them.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged, expecting = "expected a token id or a list of them")]
pub(crate) enum OneOrMany {
    One(i64),
    Many(Vec<i64>),
}

impl OneOrMany {
    /// The ids a token can have: some files write -1 for none.
    pub(crate) fn into_vec(self) -> Vec<u32> {
        let ids = match self {
            Self::One(id) => vec![id],
            Self::Many(ids) => ids,
        };
        ids.into_iter().filter_map(|id| u32::try_from(id).ok()).collect()
    }
}
