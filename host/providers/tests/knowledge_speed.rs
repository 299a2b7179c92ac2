//! The time of retrieval. Not a benchmark: the test fails only if the time is far too long.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    reason = "what fails here fails the test"
)]

use std::{
    fmt::Write as _,
    fs,
    sync::Arc,
    time::{Duration, Instant},
};

use agent_host_protocol::ApiError;
use agent_host_providers::knowledge::{AddOptions, Embedder, Knowledge, KnowledgeBaseConfig, Services};
use futures_util::future::BoxFuture;

struct Spread;

impl Embedder for Spread {
    fn name(&self) -> String {
        "spread".into()
    }

    fn embed<'a>(&'a self, texts: &'a [String], _: Instant) -> BoxFuture<'a, Result<Vec<Vec<f32>>, ApiError>> {
        Box::pin(async move {
            let of = |text: &String| {
                let mut state = text.bytes().fold(1_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
                (0..384).map(|_| random(&mut state) as f32 / u32::MAX as f32 - 0.5).collect()
            };
            Ok(texts.iter().map(of).collect())
        })
    }
}

fn random(state: &mut u32) -> u32 {
    *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    *state ^ (*state >> 15)
}

/// A word, the first ones often, as in a language.
fn word(state: &mut u32) -> String {
    let uniform = f64::from(random(state)) / f64::from(u32::MAX);
    format!("w{}", (50_000_f64.powf(uniform)) as u32)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a minute; prints what it measured"]
async fn retrieval_on_100_000_passages() {
    let dir = tempfile::tempdir().unwrap();
    let docs = dir.path().join("docs");
    fs::create_dir(&docs).unwrap();
    let mut state = 7;
    for document in 0..1_000 {
        let mut text = String::new();
        for _ in 0..100 {
            (0..60).for_each(|_| write!(text, "{} ", word(&mut state)).unwrap());
            text.push_str("\n\n");
        }
        fs::write(docs.join(format!("{document}.txt")), text).unwrap();
    }
    let config = KnowledgeBaseConfig { passage_chars: 400, overlap_chars: 0, ..KnowledgeBaseConfig::new("kb") };
    for (name, services) in
        [("text", Services::default()), ("hybrid", Services { embedder: Some(Arc::new(Spread)), reranker: None })]
    {
        let knowledge = Knowledge::open(&dir.path().join(name), std::slice::from_ref(&config), |_| services.clone()).unwrap();
        let began = Instant::now();
        knowledge.add("kb", std::slice::from_ref(&docs), AddOptions::default(), &mut |_| {}).await.unwrap();
        let added = began.elapsed();
        let passages = knowledge.list()[0].passages;
        let mut times = Vec::new();
        let mut first = None;
        for _ in 0..200 {
            let query = format!("{} {} {}", word(&mut state), word(&mut state), word(&mut state));
            let began = Instant::now();
            let hits = knowledge.retrieve("kb", &query, 10, None, Instant::now() + Duration::from_secs(60)).await.unwrap();
            assert!(!hits.is_empty());
            first.get_or_insert(began.elapsed());
            times.push(began.elapsed());
        }
        times.sort();
        let filters = serde_json::json!({"path": {"prefix": "1"}});
        let began = Instant::now();
        knowledge.retrieve("kb", "w1 w2 w3", 10, Some(&filters), Instant::now() + Duration::from_secs(60)).await.unwrap();
        eprintln!(
            "{name}: {passages} passages added in {added:?}; first {first:?}, median {:?}, 99 % {:?}, filtered {:?}",
            times[100],
            times[198],
            began.elapsed()
        );
        assert!(passages >= 90_000 && times[100] < Duration::from_millis(500));
    }
}
