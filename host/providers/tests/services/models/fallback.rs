//! A chain of models: the next one answers where the provider of one fails, and the call says which.

use agent_host_providers::models::{CallBounds, ModelPrice, Retries};

use super::*;

/// The models `first` to `last` at these servers, each the fallback of the first. Nothing is sent again.
fn chain(servers: &[(&str, &str)]) -> Arc<Model> {
    let mut configs: Vec<ModelConfig> = Vec::new();
    for (id, url) in servers {
        let mut config = config(url, ModelType::Llm);
        config.id = (*id).to_owned();
        config.max_retries = 0;
        config.price = Some(ModelPrice { input: 1.0, output: 1.0, cached_input: None });
        configs.push(config);
    }
    let others = servers[1..].iter().map(|(id, _)| (*id).to_owned()).collect();
    configs[0].fallback = others;
    let models = Models::open(&configs).unwrap();
    for config in configs {
        let Some(SecretRef::File(path)) = config.api_key else { continue };
        std::fs::remove_file(path).unwrap();
    }
    models.get(servers[0].0).unwrap()
}

fn failing(status: u16, message: &'static str) -> impl Fn() -> Response + Send + Sync + 'static {
    move || json_response(status, &json!({ "error": { "message": message } }))
}

#[tokio::test]
async fn the_next_model_answers_where_a_provider_fails_and_the_call_says_so() {
    let down = Server::always(failing(503, "down")).await;
    // An error in place of the first piece of a stream.
    let late = Server::always(|| events([event(&json!({ "error": { "message": "x", "type": "server_error" } }))])).await;
    let good = Server::always(hello).await;
    let spare = Server::always(hello).await;
    let model = chain(&[("down", &down.url), ("late", &late.url), ("good", &good.url), ("spare", &spare.url)]);
    let retries = Retries::default();
    let response = model.invoke(&request(), &NoArtifacts, CallBounds::new(soon(), &retries)).await.unwrap();
    assert_eq!(response.message.text(), "Hello, world");
    let (asked, fallbacks) = retries.take_models();
    let asked = asked.unwrap();
    assert_eq!((asked.model_id.as_str(), asked.price.is_some()), ("good", true));
    let failed: Vec<_> = fallbacks.iter().map(|failed| (failed.model_id.as_str(), failed.category.as_str())).collect();
    assert_eq!(failed, [("down", "provider_unavailable"), ("late", "provider_error")]);
    assert_eq!([down.requests(), late.requests(), good.requests(), spare.requests()], [1, 1, 1, 0]);

    // A stream gives all pieces of the one that answers, and the next call begins with the first model again.
    let mut stream = model.stream(&request(), &NoArtifacts, CallBounds::new(soon(), &retries)).await.unwrap();
    let chunks = all(&mut stream).await.unwrap();
    assert_eq!(chunks[..2], [ModelChunk::Text("Hello, ".into()), ModelChunk::Text("world".into())]);
    assert_eq!([down.requests(), good.requests()], [2, 2]);
    assert_eq!(retries.take_models().0.unwrap().model_id, "good");
}

#[tokio::test]
async fn a_refused_request_and_an_answer_that_has_begun_are_final() {
    let spare = Server::always(hello).await;
    let refuses = Server::always(failing(400, "bad temperature")).await;
    let retries = Retries::default();
    let model = chain(&[("refuses", &refuses.url), ("spare", &spare.url)]);
    let (_, category) = failed(model.invoke(&request(), &NoArtifacts, CallBounds::new(soon(), &retries)).await);
    assert_eq!((category.as_str(), retries.take_models()), ("provider_refused", (None, Vec::new())));

    let breaks = Server::always(|| events([text("I begin, and")])).await;
    let model = chain(&[("breaks", &breaks.url), ("spare", &spare.url)]);
    let mut stream = model.stream(&request(), &NoArtifacts, CallBounds::new(soon(), &retries)).await.unwrap();
    let (chunks, error) = all(&mut stream).await.unwrap_err();
    assert_eq!(chunks, [ModelChunk::Text("I begin, and".into())]);
    assert_eq!(error.details.unwrap()["code"], "stream_interrupted");
    assert_eq!(spare.requests(), 0);
}

#[tokio::test]
async fn the_last_failure_is_that_of_the_chain_and_the_chain_has_one_deadline() {
    let (one, two) = (Server::always(failing(503, "one")).await, Server::always(failing(429, "two")).await);
    let retries = Retries::default();
    let model = chain(&[("one", &one.url), ("two", &two.url)]);
    let (_, category) = failed(model.invoke(&request(), &NoArtifacts, CallBounds::new(soon(), &retries)).await);
    assert_eq!(category, "provider_rate_limited");
    let (asked, fallbacks) = retries.take_models();
    assert_eq!((asked.unwrap().model_id.as_str(), fallbacks.len()), ("two", 1));

    let silent = Server::always(|| stalls_after([])).await;
    let spare = Server::always(hello).await;
    let model = chain(&[("silent", &silent.url), ("spare", &spare.url)]);
    let near = Instant::now() + Duration::from_millis(200);
    let (error, _) = failed(model.invoke(&request(), &NoArtifacts, near).await);
    assert_eq!((error.code, spare.requests()), (ErrorCode::DeadlineExceeded, 0));
}

#[test]
fn a_chain_names_models_that_are_there() {
    let server = "http://127.0.0.1:9/v1";
    let with = |fallback: &str| {
        let mut first = ModelConfig::new("first", ModelType::Llm, ProviderKind::Openai);
        first.base_url = Some(server.into());
        first.fallback = vec![fallback.to_owned()];
        let mut vectors = ModelConfig::new("vectors", ModelType::Embedding, ProviderKind::Openai);
        vectors.base_url = Some(server.into());
        let mut second = ModelConfig::new("second", ModelType::Llm, ProviderKind::Openai);
        second.base_url = Some(server.into());
        // Two that name each other are two chains.
        second.fallback = vec!["first".to_owned()];
        Models::open(&[first, vectors, second]).map(drop)
    };
    assert_eq!(with("second"), Ok(()));
    for missing in ["nobody", "vectors"] {
        let error = with(missing).unwrap_err();
        assert!(error.contains(&format!("`fallback` names `{missing}`")) && error.contains("`first`"), "{error}");
    }
}
