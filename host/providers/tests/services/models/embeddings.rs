//! Models for embeddings and reranking.

use super::*;

#[tokio::test]
async fn embeddings_come_in_batches_and_in_order() {
    let server = Server::start(|_, seen| {
        let inputs = seen.body["input"].as_array().unwrap().clone();
        let data: Vec<Value> = inputs
            .iter()
            .enumerate()
            .rev()
            .map(|(at, text)| json!({ "index": at, "embedding": [text.as_str().unwrap().parse::<f32>().unwrap(), 0.5] }))
            .collect();
        let usage = json!({ "prompt_tokens": inputs.len(), "total_tokens": inputs.len() });
        std::future::ready(json_response(200, &json!({ "data": data, "usage": usage }))).boxed()
    })
    .await;
    let model = open(config(&server.url, ModelType::Embedding));
    let texts: Vec<String> = (0..300).map(|number: u32| number.to_string()).collect();
    let embeddings = model.embed(&texts, soon()).await.unwrap();
    let expect: Vec<Vec<f32>> = (0..300_u16).map(|number| vec![f32::from(number), 0.5]).collect();
    assert_eq!(embeddings.vectors, expect);
    assert_eq!((embeddings.usage.unwrap().input, server.requests()), (300, 3));
    assert_eq!((server.last().path.as_str(), &server.last().body["model"]), ("/v1/embeddings", &json!("inner-name")));
    assert!(model.embed(&[], soon()).await.unwrap().vectors.is_empty());
    assert_eq!(server.requests(), 3);
}

#[tokio::test]
async fn embeddings_that_do_not_fit_the_texts_are_an_error() {
    let item = |index: u64, embedding: Value| json!({ "index": index, "embedding": embedding });
    for data in [
        json!([item(0, json!([1.0]))]),
        json!([item(0, json!([1.0])), item(1, json!([1.0])), item(2, json!([1.0]))]),
        json!([item(0, json!([1.0])), item(0, json!([1.0]))]),
        json!([item(0, json!([1.0])), item(9, json!([1.0]))]),
        json!([item(0, json!([1.0])), item(1, json!([1.0, 2.0]))]),
        json!([item(0, json!([])), item(1, json!([]))]),
        json!([item(0, json!([1e39])), item(1, json!([1.0]))]),
        json!([item(0, json!([null])), item(1, json!([1.0]))]),
        json!([item(0, json!("AACAPw==")), item(1, json!([1.0]))]),
        json!("none"),
    ] {
        let body = json!({ "data": data });
        let server = Server::always(move || json_response(200, &body)).await;
        let model = open(config(&server.url, ModelType::Embedding));
        let (_, category) = failed(model.embed(&["a".into(), "b".into()], soon()).await);
        assert_eq!(category, "invalid_response", "{data}");
    }
}

fn reranker(server: &Server, provider: ProviderKind) -> Arc<Model> {
    let mut config = config(&server.url, ModelType::Rerank);
    config.provider = provider;
    open(config)
}

#[tokio::test]
async fn rerank_speaks_the_forms_of_cohere_and_jina() {
    for provider in [ProviderKind::Cohere, ProviderKind::Jina, ProviderKind::Openai] {
        let server = Server::always(|| {
            let results = json!([{ "index": 0, "relevance_score": 0.1 }, { "index": 2, "relevance_score": 0.9 }]);
            json_response(200, &json!({ "id": "x", "results": results, "meta": {} }))
        })
        .await;
        let model = reranker(&server, provider);
        let documents = ["a", "b", "c"].map(str::to_owned);
        let hits = model.rerank("q", &documents, Some(2), soon()).await.unwrap();
        assert_eq!(hits.iter().map(|hit| (hit.index, hit.score)).collect::<Vec<_>>(), [(2, 0.9), (0, 0.1)]);
        let seen = server.last();
        assert_eq!(
            (seen.path.as_str(), seen.headers["authorization"].to_str().unwrap()),
            ("/v1/rerank", &*format!("Bearer {CANARY}"))
        );
        let mut expect = json!({ "model": "inner-name", "query": "q", "documents": documents, "top_n": 2 });
        if provider != ProviderKind::Cohere {
            expect["return_documents"] = json!(false);
        }
        assert_eq!(seen.body, expect);
        assert_eq!(model.rerank("q", &[], None, soon()).await.unwrap(), []);
        assert_eq!(failed(model.rerank("q", &documents, Some(0), soon()).await).0.code, ErrorCode::InvalidArgument);
        assert_eq!(model.resource().provider.as_deref(), Some(provider.as_str()));
    }
}

#[tokio::test]
async fn a_rerank_that_does_not_fit_the_documents_is_an_error() {
    for results in [
        json!([{ "index": 2, "relevance_score": 0.1 }]),
        json!([{ "index": -1, "relevance_score": 0.1 }]),
        json!([{ "index": 4_294_967_296_u64, "relevance_score": 0.1 }]),
        json!([{ "index": 0, "relevance_score": 0.1 }, { "index": 0, "relevance_score": 0.2 }]),
        json!([{ "index": 0, "relevance_score": null }]),
        json!([{ "index": 0 }]),
        json!({}),
    ] {
        let body = json!({ "results": results });
        let server = Server::always(move || json_response(200, &body)).await;
        let model = reranker(&server, ProviderKind::Jina);
        let (_, category) = failed(model.rerank("q", &["a".into(), "b".into()], None, soon()).await);
        assert_eq!(category, "invalid_response", "{results}");
    }
}
