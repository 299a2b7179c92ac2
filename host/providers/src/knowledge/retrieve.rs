//! Finding passages: by text, by meaning, fused, and put into order by a model.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use agent_host_protocol::{ApiError, ErrorCode, knowledge::KnowledgeHit};
use serde_json::{Value, json};
use tantivy::DocAddress;

use super::{
    Reranker,
    base::Base,
    error::KnowledgeError,
    filter::Filter,
    store::{OfPassage, SelectedPassages, Snapshot, Store, StoredPassage},
    vectors::normalized,
};
use crate::search::{WeightedField, text_query};

/// Passages that one answer has at most.
const MAX_TOP_K: u32 = 50;
/// Number of candidates of each search for the fusion, and for reranking.
const CANDIDATES: usize = 50;
/// The constant of reciprocal rank fusion, as its authors chose it.
const FUSION_CONSTANT: f64 = 60.0;
/// Weight of a term in a title or heading, relative to one in the text.
const CONTEXT_WEIGHT: f32 = 0.5;
/// Share of the remaining time for a model, after which the search continues without it.
const MODEL_SHARE: f64 = 0.6;
/// More than this a reader does not wait for a better order.
const MODEL_LIMIT: Duration = Duration::from_secs(10);

/// See [`super::Knowledge::retrieve`].
pub(crate) async fn retrieve(
    base: Arc<Base>,
    query: &str,
    top_k: u32,
    filters: Option<&Value>,
    deadline: Instant,
) -> Result<Vec<KnowledgeHit>, ApiError> {
    if !(1..=MAX_TOP_K).contains(&top_k) {
        return Err(ApiError::invalid_argument(format!("top_k is {top_k}: it must be 1 to {MAX_TOP_K}")));
    }
    let filter = Filter::parse(filters)?;
    let late = || ApiError::retryable(ErrorCode::DeadlineExceeded, "the knowledge base did not answer in time");
    if Instant::now() >= deadline {
        return Err(late());
    }
    let found = found(base, query, top_k as usize, filter, deadline);
    tokio::time::timeout_at(deadline.into(), found).await.map_err(|_| late())?
}

async fn found(
    base: Arc<Base>,
    query: &str,
    top_k: usize,
    filter: Filter,
    deadline: Instant,
) -> Result<Vec<KnowledgeHit>, ApiError> {
    let mut degraded = Vec::new();
    let mut vector = None;
    if let Some(embedder) = &base.services.embedder {
        let limit = share_of(deadline);
        let texts = [query.to_owned()];
        let answer = match tokio::time::timeout_at(limit.into(), embedder.embed(&texts, limit)).await {
            Ok(Ok(vectors)) => vectors.into_iter().next().and_then(normalized).ok_or_else(|| "it gave no vector".to_owned()),
            Ok(Err(error)) => Err(error.category().to_owned()),
            Err(_) => Err("it did not answer in time".to_owned()),
        };
        match answer {
            Ok(answer) => vector = Some((answer, embedder.name())),
            Err(reason) => {
                tracing::warn!(kb = base.config.id, reason, "the embedding model failed: only text is searched");
                degraded.push("embedding");
            }
        }
    }
    let reranker = base.services.reranker.clone();
    let count = if reranker.is_some() { CANDIDATES.max(top_k) } else { top_k };
    let (text, of) = (query.to_owned(), base.clone());
    let search = move || {
        let store = of.store()?;
        let snapshot = store.snapshot()?;
        search(&store, &snapshot, &text, vector.as_ref(), filter, count).map_err(|error| store.failure(&error))
    };
    let found = tokio::task::spawn_blocking(search).await;
    let mut hits = found.map_err(|error| KnowledgeError::Internal(error.to_string()))??;
    if let Some(reranker) = reranker.filter(|_| !hits.is_empty())
        && let Err(reason) = rerank(reranker.as_ref(), query, &mut hits, top_k, deadline).await
    {
        tracing::warn!(kb = base.config.id, reason, "the rerank model failed: the order is that of the search");
        degraded.push("rerank");
    }
    hits.truncate(top_k);
    Ok(hits.into_iter().map(|found| found.into_hit(&degraded)).collect())
}

/// The time limit of a model, so that an answer without it is possible before `deadline`.
fn share_of(deadline: Instant) -> Instant {
    let now = Instant::now();
    now + deadline.saturating_duration_since(now).mul_f64(MODEL_SHARE).min(MODEL_LIMIT)
}

struct ScoredPassage {
    passage: StoredPassage,
    score: f64,
    by: &'static str,
}

impl ScoredPassage {
    fn into_hit(self, degraded: &[&str]) -> KnowledgeHit {
        let StoredPassage { document, number, text, heading } = self.passage;
        let mut metadata = document.metadata_for_guests();
        metadata.insert("passage".into(), json!(number));
        if !heading.is_empty() {
            metadata.insert("heading".into(), json!(heading));
        }
        metadata.insert("retrieval".into(), json!(self.by));
        if !degraded.is_empty() {
            metadata.insert("degraded".into(), json!(degraded));
        }
        KnowledgeHit { document_id: document.id.clone(), text, score: self.score, source: None, metadata }
    }
}

fn search(
    store: &Store,
    snapshot: &Snapshot,
    text: &str,
    vector: Option<&(Vec<f32>, String)>,
    filter: Filter,
    count: usize,
) -> tantivy::Result<Vec<ScoredPassage>> {
    let allowed = allowed(snapshot, filter)?;
    let fields = [
        WeightedField { field: store.fields.text, weight: 1.0 },
        WeightedField { field: store.fields.context, weight: CONTEXT_WEIGHT },
    ];
    let limit = if vector.is_some() { CANDIDATES.max(count) } else { count };
    let by_text = match text_query(text, &fields) {
        Some(query) => snapshot.search(query.as_ref(), allowed.as_ref(), limit)?,
        None => Vec::new(),
    };
    let ranked: Vec<(DocAddress, f64, &'static str)> = match vector {
        None => by_text.into_iter().map(|(score, at)| (at, f64::from(score), "text")).collect(),
        Some((vector, model)) => fuse(&by_text, &snapshot.nearest(vector, model, allowed.as_ref(), limit)?),
    };
    let mut found = Vec::with_capacity(count);
    for (at, score, by) in ranked.into_iter().take(count) {
        found.extend(snapshot.passage(at)?.map(|passage| ScoredPassage { passage, score, by }));
    }
    Ok(found)
}

fn allowed(snapshot: &Snapshot, filter: Filter) -> tantivy::Result<Option<SelectedPassages>> {
    if filter.is_empty() {
        return Ok(None);
    }
    let (of_passage, of_document) = filter.split(&["heading", "passage"]);
    let fits = |heading: &str, number: u32| {
        let mut place = serde_json::Map::from_iter([("passage".to_owned(), json!(number))]);
        if !heading.is_empty() {
            place.insert("heading".to_owned(), json!(heading));
        }
        of_passage.fits(&place)
    };
    let of_passage: Option<&OfPassage<'_>> = if of_passage.is_empty() { None } else { Some(&fits) };
    snapshot.allowed(|record| of_document.fits(&record.metadata_for_guests()), of_passage).map(Some)
}

/// Reciprocal rank fusion: what is high in either list is high, what is high in both is highest.
fn fuse(by_text: &[(f32, DocAddress)], by_vector: &[(f32, DocAddress)]) -> Vec<(DocAddress, f64, &'static str)> {
    let mut fused: HashMap<DocAddress, (f64, &'static str)> = HashMap::new();
    for (list, by) in [(by_text, "text"), (by_vector, "vector")] {
        for (rank, (_, at)) in (1_u32..).zip(list) {
            let score = 1.0 / (FUSION_CONSTANT + f64::from(rank));
            fused.entry(*at).and_modify(|(sum, by)| (*sum, *by) = (*sum + score, "hybrid")).or_insert((score, by));
        }
    }
    let mut ranked: Vec<_> = fused.into_iter().map(|(at, (score, by))| (at, score, by)).collect();
    ranked.sort_by(|(at_a, a, _), (at_b, b, _)| b.total_cmp(a).then(at_a.cmp(at_b)));
    ranked
}

/// Puts the best into the order of a model; what it does not name falls away. On failure all stays as it was.
async fn rerank(
    reranker: &dyn Reranker,
    query: &str,
    hits: &mut Vec<ScoredPassage>,
    top_k: usize,
    deadline: Instant,
) -> Result<(), String> {
    let documents: Vec<String> = hits.iter().map(|hit| hit.passage.text.clone()).collect();
    let limit = share_of(deadline);
    let count = u32::try_from(top_k.min(hits.len())).unwrap_or(u32::MAX);
    let order = tokio::time::timeout_at(limit.into(), reranker.rerank(query, &documents, Some(count), limit))
        .await
        .map_err(|_| "it did not answer in time".to_owned())?
        .map_err(|error| error.category().to_owned())?;
    let mut slots: Vec<Option<ScoredPassage>> = hits.drain(..).map(Some).collect();
    let mut ordered: Vec<ScoredPassage> = Vec::with_capacity(order.len().min(slots.len()));
    for hit in order.iter().filter(|hit| hit.score.is_finite()) {
        if let Some(found) = slots.get_mut(hit.index as usize).and_then(Option::take) {
            ordered.push(ScoredPassage { score: hit.score, ..found });
        }
    }
    if ordered.is_empty() {
        *hits = slots.into_iter().flatten().collect();
        return Err("its answer names none of the passages".into());
    }
    ordered.sort_by(|a, b| b.score.total_cmp(&a.score));
    *hits = ordered;
    Ok(())
}
