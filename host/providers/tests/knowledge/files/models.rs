//! Search with embedding and rerank models.

use futures_util::future::BoxFuture;

use super::*;

/// Knows animals from food, in two languages, without a common word.
struct Meaning {
    name: String,
    dimensions: usize,
    calls: AtomicUsize,
    fails: Mutex<Option<ApiError>>,
}

impl Meaning {
    fn new(name: &str, dimensions: usize) -> Arc<Self> {
        Arc::new(Self { name: name.into(), dimensions, calls: AtomicUsize::new(0), fails: Mutex::new(None) })
    }
}

impl Embedder for Meaning {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn embed<'a>(&'a self, texts: &'a [String], _: Instant) -> BoxFuture<'a, Result<Vec<Vec<f32>>, ApiError>> {
        Box::pin(async move {
            self.calls.fetch_add(1, Ordering::Relaxed);
            if let Some(error) = self.fails.lock().clone() {
                return Err(error);
            }
            let of = |text: &String| {
                let mut vector = vec![0.01; self.dimensions];
                let has = |words: &[&str]| words.iter().any(|word| text.contains(word));
                vector[0] = if has(&["cat", "dog", "Tier"]) { 1.0 } else { 0.0 };
                vector[1] = if has(&["bread", "soup", "Essen"]) { 1.0 } else { 0.0 };
                vector
            };
            Ok(texts.iter().map(of).collect())
        })
    }
}

struct Backward;

impl Reranker for Backward {
    fn rerank<'a>(
        &'a self,
        query: &'a str,
        documents: &'a [String],
        _: Option<u32>,
        _: Instant,
    ) -> BoxFuture<'a, Result<Vec<RerankHit>, ApiError>> {
        Box::pin(async move {
            let hit = |index: u32, score| RerankHit { index, score };
            match query {
                "fail cat" => Err(ApiError::new(ErrorCode::RuntimeError, "no")),
                "lie cat" => Ok(vec![hit(99, 1.0), hit(0, f64::NAN), hit(1, 0.5), hit(1, 0.4)]),
                "nothing cat" => Ok(vec![]),
                _ => Ok((0..documents.len() as u32).map(|index| hit(index, f64::from(index))).collect()),
            }
        })
    }
}

fn services(embedder: &Arc<Meaning>) -> Services {
    Services { embedder: Some(embedder.clone()), reranker: None }
}

#[tokio::test]
async fn meaning_and_text_are_fused() {
    let meaning = Meaning::new("m1", 20);
    let f = Fixture::with(services(&meaning));
    f.write("cat.md", "A cat sleeps.");
    f.write("dog.md", "A dog barks. Tier.");
    f.write("bread.md", "Fresh bread.");
    f.write("plain.md", "Nothing of the kind.");
    f.add().await;
    let hits = f.find("Tier").await;
    assert_eq!((path(&hits[0]), hits[0].metadata["retrieval"].as_str()), ("dog.md".into(), Some("hybrid")));
    assert_eq!((path(&hits[1]), hits[1].metadata["retrieval"].as_str()), ("cat.md".into(), Some("vector")));
    assert!(hits.windows(2).all(|pair| pair[0].score >= pair[1].score));
    assert_eq!(f.paths("Tier", json!({"path": "cat.md"})).await, ["cat.md"]);
    // Changed and removed documents are not found by what they meant before.
    f.write("cat.md", "Now about soup.");
    f.add().await;
    f.knowledge.remove("kb", &["dog.md".into()]).unwrap();
    let hits = f.find("Tier").await;
    assert!(!hits.iter().any(|hit| path(hit) == "dog.md"));
    assert_eq!(path(&f.find("Essen").await[0]), "bread.md");
    assert_eq!(hits.len(), 3);
}

#[tokio::test]
async fn without_the_embedding_model_the_text_is_searched_and_it_is_said() {
    let meaning = Meaning::new("m1", 20);
    let f = Fixture::with(services(&meaning));
    f.write("cat.md", "A cat sleeps.");
    f.add().await;
    *meaning.fails.lock() = Some(ApiError::retryable(ErrorCode::RateLimited, "later"));
    let hits = f.find("cat").await;
    assert_eq!(
        (hits.len(), &hits[0].metadata["degraded"], &hits[0].metadata["retrieval"]),
        (1, &json!(["embedding"]), &json!("text"))
    );
    // After a failure, added documents stay, and the next call continues.
    f.write("new.md", "A dog.");
    let error = f.knowledge.add("kb", &[f.docs()], AddOptions::default(), &mut |_| {}).await.unwrap_err();
    assert!(matches!(&error, KnowledgeError::Embedding { done: 1, files: 2, .. }), "{error}");
    assert_eq!(f.knowledge.list()[0].documents, 1);
    // A text that the model refuses is a failure of that file.
    *meaning.fails.lock() = Some(ApiError::invalid_argument("too long"));
    assert!(f.add().await.failed[0].reason.contains("too long"));
    *meaning.fails.lock() = None;
    assert_eq!(f.add().await.added, 1);
}

#[tokio::test]
async fn another_embedding_model_means_to_add_again_and_mixtures_do_no_harm() {
    let first = Meaning::new("m1", 20);
    let f = Fixture::with(services(&first));
    f.write("cat.md", "A cat sleeps.");
    f.write("dog.md", "A dog barks.");
    f.add().await;
    for (name, dimensions) in [("m2", 7), ("m3", 7), ("m1", 20)] {
        let meaning = Meaning::new(name, dimensions);
        let knowledge = open(f.dir.path(), services(&meaning));
        // Vectors of another model are not compared, whatever their length; the search by text works.
        let hits = knowledge.retrieve("kb", "cat", 5, None, soon()).await.unwrap();
        assert_eq!((hits.len(), hits[0].metadata["retrieval"].as_str()), (1, Some("text")), "{name}");
        let half = knowledge.add("kb", &[f.docs().join("cat.md")], AddOptions::default(), &mut |_| {}).await.unwrap();
        assert_eq!(half.updated, 1);
        let hits = knowledge.retrieve("kb", "Tier", 5, None, soon()).await.unwrap();
        assert_eq!(hits.iter().map(path).collect::<Vec<_>>(), ["cat.md"]);
        assert_eq!(knowledge.add("kb", &[f.docs()], AddOptions::default(), &mut |_| {}).await.unwrap().updated, 1);
        assert_eq!(knowledge.retrieve("kb", "Tier", 5, None, soon()).await.unwrap().len(), 2);
    }
    // Without a model the vectors go, with nothing else.
    let knowledge = open(f.dir.path(), Services::default());
    assert_eq!(knowledge.retrieve("kb", "cat", 5, None, soon()).await.unwrap().len(), 1);
}

#[tokio::test]
async fn vectors_beside_the_index_are_made_again_when_they_are_gone_or_damaged() {
    let meaning = Meaning::new("m1", 20);
    let f = Fixture::with(services(&meaning));
    f.write("cat.md", "A cat sleeps.");
    f.add().await;
    assert_eq!(f.find("Tier").await.len(), 1);
    let vectors = f.dir.path().join("knowledge/kb/vectors");
    let files = || {
        fs::read_dir(&vectors)
            .unwrap()
            .flatten()
            .map(|entry| entry.path())
            .filter(|p| p.extension().is_some())
            .collect::<Vec<_>>()
    };
    assert_eq!(files().len(), 1);
    fs::write(&files()[0], "damaged").unwrap();
    assert_eq!(open(f.dir.path(), services(&meaning)).retrieve("kb", "Tier", 5, None, soon()).await.unwrap().len(), 1);
    fs::remove_dir_all(&vectors).unwrap();
    assert_eq!(open(f.dir.path(), services(&meaning)).retrieve("kb", "Tier", 5, None, soon()).await.unwrap().len(), 1);
    // Vectors of removed segments are deleted.
    f.write("cat.md", "Another cat.");
    f.add().await;
    assert_eq!(files().len(), 0);
}

#[tokio::test]
async fn a_rerank_model_decides_the_order_if_it_answers_sensibly() {
    let f = Fixture::with(Services { embedder: None, reranker: Some(Arc::new(Backward)) });
    f.write("a.md", "cat cat cat");
    f.write("b.md", "a cat among many other words of no importance at all");
    f.add().await;
    let order = |hits: Vec<KnowledgeHit>| hits.iter().map(path).collect::<Vec<_>>();
    assert_eq!(order(f.find("cat").await), ["b.md", "a.md"]);
    assert_eq!(order(f.find_with("cat", 1, None).await.unwrap()), ["b.md"]);
    assert_eq!(order(f.find("lie cat").await), ["b.md"]);
    for query in ["fail cat", "nothing cat"] {
        let hits = f.find(query).await;
        assert_eq!(
            (hits[0].metadata["degraded"].clone(), order(hits)),
            (json!(["rerank"]), vec!["a.md".to_owned(), "b.md".to_owned()])
        );
    }
}

#[tokio::test]
async fn a_model_that_hangs_leaves_time_for_an_answer_and_the_deadline_holds() {
    struct Hangs;
    impl Embedder for Hangs {
        fn name(&self) -> String {
            "hangs".into()
        }
        fn embed<'a>(&'a self, texts: &'a [String], _: Instant) -> BoxFuture<'a, Result<Vec<Vec<f32>>, ApiError>> {
            Box::pin(async move {
                if texts[0].starts_with("query") {
                    std::future::pending::<()>().await;
                }
                Ok(texts.iter().map(|_| vec![1.0]).collect())
            })
        }
    }
    let f = Fixture::with(Services { embedder: Some(Arc::new(Hangs)), reranker: None });
    f.write("cat.md", "A cat.");
    f.add().await;
    let hits = f.knowledge.retrieve("kb", "query cat", 5, None, Instant::now() + Duration::from_secs(3)).await.unwrap();
    assert_eq!(hits[0].metadata["degraded"], json!(["embedding"]));
    let error = f.knowledge.retrieve("kb", "query cat", 5, None, Instant::now()).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::DeadlineExceeded);
}
