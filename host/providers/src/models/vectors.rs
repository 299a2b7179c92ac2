//! Embeddings and rerank.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use agent_host_config::{ModelConfig, ProviderKind};
use agent_host_protocol::{ApiError, message::TokenUsage, model::RerankHit};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    Embeddings,
    assemble::plausible_usage,
    bounds::CallBounds,
    failure::Category,
    forms::gemini,
    http::{Endpoint, JSON, Target},
};

/// Texts or documents of one call. Cohere takes 1,000 documents at most; embeddings go in batches.
const MAX_TEXTS: usize = 1_000;
/// Bytes of all texts of one call.
const MAX_TEXT_BYTES: usize = 16 << 20;
/// Texts in one request to a provider: their vectors as JSON fit the default `max_response_bytes`.
const BATCH_TEXTS: usize = 128;
/// Bytes in one request to a provider: below the 300,000 tokens that OpenAI takes in one.
const BATCH_BYTES: usize = 512 << 10;
/// Length of the vectors that the host makes by itself.
const HASHED_DIMENSIONS: usize = 256;

/// Refuses more than one call may have.
pub(super) fn check_texts(what: &str, texts: &[String]) -> Result<(), ApiError> {
    if texts.len() > MAX_TEXTS {
        return Err(ApiError::invalid_argument(format!("{} {what}; one call may have {MAX_TEXTS}", texts.len())));
    }
    let size = texts.iter().map(String::len).fold(0_usize, usize::saturating_add);
    if size > MAX_TEXT_BYTES { Err(ApiError::too_large(what, size, MAX_TEXT_BYTES)) } else { Ok(()) }
}

fn body(config: &ModelConfig, arguments: Value) -> Result<Bytes, ApiError> {
    let mut body = config.defaults.clone();
    body.insert("model".into(), config.model_name().into());
    if let Value::Object(arguments) = arguments {
        body.extend(arguments);
    }
    serde_json::to_vec(&body)
        .map(Bytes::from)
        .map_err(|error| ApiError::invalid_argument(format!("the request cannot be written as JSON: {error}")))
}

fn invalid(message: impl Into<String>) -> ApiError {
    Category::InvalidResponse.error(message)
}

#[derive(Deserialize)]
struct EmbeddingResponse {
    data: Vec<Embedding>,
    #[serde(default)]
    usage: Value,
}

#[derive(Deserialize)]
struct Embedding {
    index: Option<usize>,
    embedding: Vec<f32>,
}

/// Asks for vectors, batch after batch.
pub(super) async fn embed(
    config: &ModelConfig,
    endpoint: &Arc<Endpoint>,
    texts: &[String],
    bounds: CallBounds<'_>,
) -> Result<Embeddings, ApiError> {
    let mut vectors: Vec<Vec<f32>> = Vec::with_capacity(texts.len());
    let mut usage = Some(TokenUsage { input: 0, output: 0, cached_input: None, reasoning: None });
    let mut rest = texts;
    while !rest.is_empty() {
        let most = if config.provider == ProviderKind::Gemini { gemini::BATCH_TEXTS } else { BATCH_TEXTS };
        let (batch, after) = rest.split_at(batch(rest, most));
        rest = after;
        let response = match config.provider {
            ProviderKind::Gemini => {
                let body = gemini::embeddings_body(config, batch)?;
                let answer = endpoint.post(&gemini::embeddings_target(config), body, bounds).await?;
                answer.json::<gemini::Embeddings>().await?.into()
            }
            _ => {
                let body = body(config, json!({ "input": batch, "encoding_format": "float" }))?;
                let answer = endpoint.post(&Target::new(["embeddings"], JSON), body, bounds).await?;
                answer.json::<EmbeddingResponse>().await?
            }
        };
        let batch_usage = embedding_usage(&response.usage);
        // Known only where every part of it is.
        usage = usage.zip(batch_usage).map(|(all, part)| TokenUsage { input: all.input.saturating_add(part), ..all });
        vectors.extend(in_order(response.data, batch.len())?);
    }
    let dimensions = vectors.first().map_or(0, Vec::len);
    if !vectors.is_empty() && (dimensions == 0 || vectors.iter().any(|vector| vector.len() != dimensions)) {
        return Err(invalid("the provider gives vectors of different lengths, or of none"));
    }
    Ok(Embeddings { vectors, usage: usage.filter(|_| !texts.is_empty()) })
}

impl From<gemini::Embeddings> for EmbeddingResponse {
    fn from(gemini::Embeddings { embeddings, usage }: gemini::Embeddings) -> Self {
        let data = embeddings.into_iter().map(|gemini::Values { values }| Embedding { index: None, embedding: values }).collect();
        let usage = usage.get("promptTokenCount").map_or(Value::Null, |tokens| json!({ "prompt_tokens": tokens }));
        Self { data, usage }
    }
}

/// The number of texts for one request: at least one, and `most` at most.
fn batch(texts: &[String], most: usize) -> usize {
    let mut size = 0;
    let fitting = texts.iter().take(most).take_while(|text| {
        size += text.len();
        size <= BATCH_BYTES
    });
    fitting.count().max(1)
}

/// Embeddings write no tokens, and most providers do not say so.
fn embedding_usage(usage: &Value) -> Option<u64> {
    let mut usage = usage.as_object()?.clone();
    usage.entry("completion_tokens").or_insert(json!(0));
    let usage = plausible_usage(&Value::Object(usage))?;
    (usage.input > 0 && usage.output == 0).then_some(usage.input)
}

/// The vectors in the order of the texts.
fn in_order(data: Vec<Embedding>, count: usize) -> Result<Vec<Vec<f32>>, ApiError> {
    if data.len() != count {
        return Err(invalid(format!("the provider gives {} vectors for {count} texts", data.len())));
    }
    let mut places: Vec<Option<Vec<f32>>> = vec![None; count];
    for (at, Embedding { index, embedding }) in data.into_iter().enumerate() {
        if !embedding.iter().all(|number| number.is_finite()) {
            return Err(invalid("the provider gives a vector with a number that is not finite"));
        }
        match places.get_mut(index.unwrap_or(at)) {
            Some(place @ None) => *place = Some(embedding),
            _ => return Err(invalid("the provider gives vectors for texts that were not sent, or twice for one")),
        }
    }
    Ok(places.into_iter().flatten().collect())
}

#[derive(Deserialize)]
struct RerankResponse {
    results: Vec<RerankResult>,
}

#[derive(Deserialize)]
struct RerankResult {
    index: usize,
    #[serde(alias = "score")]
    relevance_score: f64,
}

/// Asks how well documents fit a query.
pub(super) async fn rerank(
    config: &ModelConfig,
    endpoint: &Arc<Endpoint>,
    query: &str,
    documents: &[String],
    top_k: Option<u32>,
    bounds: CallBounds<'_>,
) -> Result<Vec<RerankHit>, ApiError> {
    if documents.is_empty() {
        return Ok(Vec::new());
    }
    let top_n = top_k.and_then(|top_k| usize::try_from(top_k).ok()).unwrap_or(documents.len()).min(documents.len());
    let mut arguments = Map::from_iter([
        ("query".to_owned(), json!(query)),
        ("documents".to_owned(), json!(documents)),
        ("top_n".to_owned(), json!(top_n)),
    ]);
    // Cohere has no such argument and returns no documents; the others return them by default.
    if config.provider != ProviderKind::Cohere {
        arguments.insert("return_documents".into(), json!(false));
    }
    let body = body(config, Value::Object(arguments))?;
    let answer = endpoint.post(&Target::new(["rerank"], JSON), body, bounds).await?;
    let response: RerankResponse = answer.json().await?;
    let mut seen = HashSet::new();
    response
        .results
        .into_iter()
        .map(|RerankResult { index, relevance_score: score }| {
            if index >= documents.len() {
                return Err(invalid(format!("the provider ranks document {index}; {} were sent", documents.len())));
            }
            if !score.is_finite() {
                return Err(invalid("the provider gives a score that is not finite"));
            }
            match u32::try_from(index) {
                Ok(index) if seen.insert(index) => Ok(RerankHit { index, score }),
                _ => Err(invalid(format!("the provider ranks document {index} twice"))),
            }
        })
        .collect()
}

/// The best hits first; those that are as good in the order of the documents.
pub(super) fn best_first(mut hits: Vec<RerankHit>, top_k: Option<u32>) -> Vec<RerankHit> {
    hits.sort_by(|a, b| b.score.total_cmp(&a.score).then(a.index.cmp(&b.index)));
    if let Some(top_k) = top_k.and_then(|top_k| usize::try_from(top_k).ok()) {
        hits.truncate(top_k);
    }
    hits
}

/// Words of a text in lower case. Scripts that write without spaces give each character, and each pair of neighbours.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    for run in text.split(|c: char| !c.is_alphanumeric()).filter(|run| !run.is_empty()) {
        let run = run.to_lowercase();
        let dense: Vec<char> = run.chars().filter(|c| *c >= '\u{2e80}').collect();
        if dense.is_empty() {
            words.push(run);
            continue;
        }
        words.extend(dense.iter().map(char::to_string));
        words.extend(dense.windows(2).map(|pair| pair.iter().collect()));
        words.extend(run.split(|c| c >= '\u{2e80}').filter(|word| !word.is_empty()).map(str::to_owned));
    }
    words
}

/// A vector for a text without any model: each word adds to the place that its hash names. Texts that share words are
/// near each other; it knows no meaning. The same text always has the same vector, of length one.
pub(super) fn hashed_words(text: &str) -> Vec<f32> {
    let mut vector = vec![0.0_f32; HASHED_DIMENSIONS];
    let mut add = |word: &str, weight: f32| {
        let hash = fnv(word);
        let place = usize::try_from(hash % HASHED_DIMENSIONS as u64).unwrap_or(0);
        if let Some(number) = vector.get_mut(place) {
            *number += if hash >> 63 == 0 { weight } else { -weight };
        }
    };
    // A text without words gets a direction too.
    add("", 0.01);
    words(text).iter().for_each(|word| add(word, 1.0));
    let length = vector.iter().map(|number| number * number).sum::<f32>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|number| *number /= length);
    }
    vector
}

/// FNV-1a: equal on every machine and in every version. Not for uses that must withstand an attack.
fn fnv(word: &str) -> u64 {
    word.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Scores documents by the share of the query's words that they have, and a little by how much else they say.
pub(super) fn shared_words(query: &str, documents: &[String]) -> Vec<RerankHit> {
    let query: HashSet<String> = words(query).into_iter().collect();
    let share = |document: &str| {
        let words = words(document);
        let total = words.len();
        let mut counts: HashMap<&str, usize> = HashMap::new();
        words.iter().for_each(|word| *counts.entry(word).or_default() += 1);
        let shared = query.iter().filter(|word| counts.contains_key(word.as_str())).count();
        if query.is_empty() || total == 0 {
            return 0.0;
        }
        let hits: usize = query.iter().filter_map(|word| counts.get(word.as_str())).sum();
        0.9 * ratio(shared, query.len()) + 0.1 * ratio(hits, total)
    };
    documents
        .iter()
        .enumerate()
        .filter_map(|(index, document)| Some(RerankHit { index: u32::try_from(index).ok()?, score: share(document) }))
        .collect()
}

fn ratio(part: usize, whole: usize) -> f64 {
    let number = |count: usize| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
    number(part) / number(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_share_words_are_near_each_other() {
        let near = |a: &str, b: &str| hashed_words(a).iter().zip(hashed_words(b)).map(|(a, b)| a * b).sum::<f32>();
        assert!((near("Hello, world", "hello WORLD!") - 1.0).abs() < 1e-5);
        assert!(near("the deadline of a run", "a run has a deadline") > near("the deadline of a run", "tea with milk"));
        assert!(near("运行的截止时间", "截止时间是什么") > near("运行的截止时间", "今天天气很好"));
        assert!(hashed_words("").iter().all(|number| number.is_finite()));
    }

    #[test]
    fn documents_with_the_words_of_the_query_come_first() {
        let documents = ["tea", "how a run ends", "a run ends when its deadline has passed"].map(str::to_owned);
        let hits = best_first(shared_words("deadline of a run", &documents), Some(2));
        assert_eq!(hits.iter().map(|hit| hit.index).collect::<Vec<_>>(), [2, 1]);
        assert!(shared_words("", &documents).iter().all(|hit| hit.score == 0.0));
    }

    #[test]
    fn batches_are_bounded_and_never_empty() {
        assert_eq!(batch(&vec![String::new(); 500], BATCH_TEXTS), BATCH_TEXTS);
        assert_eq!(batch(&vec!["a".repeat(BATCH_BYTES / 4); 20], BATCH_TEXTS), 4);
        assert_eq!(batch(&["a".repeat(BATCH_BYTES * 2)], BATCH_TEXTS), 1);
    }
}
