//! `[[knowledge_bases]]` of `agent-host.toml`.

use serde::{Deserialize, Serialize};

/// Passages below this say too little to be found by their meaning.
const MIN_PASSAGE_CHARS: usize = 100;
/// Fifty passages of this size are still an answer that a host call may have.
const MAX_PASSAGE_CHARS: usize = 8_000;
/// The id is the name of a folder.
const MAX_ID_BYTES: usize = 64;

/// A knowledge base, as the configuration describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KnowledgeBaseConfig {
    /// Id, for grants and calls. Lower-case letters, digits, `-` and `_`; also the name of its folder.
    pub id: String,
    /// For people; the id where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The model, one of `[[models]]`, whose embeddings find passages by meaning beside the text search.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embedding_model: Option<String>,
    /// The model, one of `[[models]]`, that puts the best passages into their final order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rerank_model: Option<String>,
    /// Characters that a passage has at most, 100 to 8000.
    #[serde(default = "default_passage_chars")]
    pub passage_chars: usize,
    /// Characters that a passage repeats of the one before it, at most; less than half a passage.
    #[serde(default = "default_overlap_chars")]
    pub overlap_chars: usize,
}

const fn default_passage_chars() -> usize {
    1_200
}

const fn default_overlap_chars() -> usize {
    120
}

impl KnowledgeBaseConfig {
    /// An entry with an id and defaults.
    #[must_use]
    pub fn new(id: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            name: None,
            embedding_model: None,
            rerank_model: None,
            passage_chars: default_passage_chars(),
            overlap_chars: default_overlap_chars(),
        }
    }

    /// Checks the values.
    ///
    /// # Errors
    /// Names the value and what it may be.
    pub fn check(&self) -> Result<(), String> {
        let id = &self.id;
        let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_');
        if id.is_empty()
            || id.len() > MAX_ID_BYTES
            || !id.chars().all(legal)
            || !id.starts_with(|c: char| c.is_ascii_alphanumeric())
        {
            return Err(format!(
                "`id` of a knowledge base is {id:?}: it must have 1 to {MAX_ID_BYTES} lower-case letters, digits, `-` and `_`, \
                 and begin with a letter or digit"
            ));
        }
        if !(MIN_PASSAGE_CHARS..=MAX_PASSAGE_CHARS).contains(&self.passage_chars) {
            return Err(format!(
                "`passage_chars` of knowledge base `{id}` is {}: it must be {MIN_PASSAGE_CHARS} to {MAX_PASSAGE_CHARS}",
                self.passage_chars
            ));
        }
        if self.overlap_chars.saturating_mul(2) > self.passage_chars {
            return Err(format!(
                "`overlap_chars` of knowledge base `{id}` is {}: it must be at most half of `passage_chars` ({})",
                self.overlap_chars, self.passage_chars
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_enough_and_unknown_keys_are_refused() {
        let read: KnowledgeBaseConfig = serde_json::from_str(r#"{"id":"docs"}"#).unwrap();
        assert_eq!(read, KnowledgeBaseConfig::new("docs"));
        assert_eq!(read.check(), Ok(()));
        assert!(serde_json::from_str::<KnowledgeBaseConfig>(r#"{"id":"docs","chunk":1}"#).is_err());
    }

    #[test]
    fn values_that_cannot_be_are_named() {
        let with = |change: fn(&mut KnowledgeBaseConfig)| {
            let mut config = KnowledgeBaseConfig::new("docs");
            change(&mut config);
            config.check().unwrap_err()
        };
        for id in ["", "Docs", "../up", "a b", "-a", "文档", &"x".repeat(65)] {
            assert!(KnowledgeBaseConfig::new(id).check().unwrap_err().contains("`id`"), "{id}");
        }
        assert!(with(|c| c.passage_chars = 99).contains("`passage_chars`"));
        assert!(with(|c| c.passage_chars = usize::MAX).contains("`passage_chars`"));
        assert!(with(|c| c.overlap_chars = 601).contains("`overlap_chars`"));
        assert!(with(|c| c.overlap_chars = usize::MAX).contains("`overlap_chars`"));
    }
}
