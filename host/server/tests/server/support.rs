//! A server over a host of its own, in a temporary directory, without plugins.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use agent_host_config::Config;
use agent_host_runs::Host;
use agent_host_server::Server;
use reqwest::Method;
use tokio::{sync::oneshot, task::JoinHandle};

/// A server that goes down when this is dropped.
pub(crate) struct TestServer {
    #[allow(dead_code, reason = "not every test looks behind the server")]
    pub(crate) host: Host,
    base: String,
    client: reqwest::Client,
    _stop: oneshot::Sender<()>,
    _serving: JoinHandle<()>,
    _dir: tempfile::TempDir,
}

/// A server whose configuration was changed by `change`.
pub(crate) async fn started_with(change: impl FnOnce(&mut Config)) -> TestServer {
    let dir = tempfile::tempdir().unwrap();
    let mut config = Config::default_in(dir.path());
    config.listen = "127.0.0.1:0".parse().unwrap();
    config.loopback_without_key = true;
    std::fs::create_dir_all(&config.plugins_dir).unwrap();
    change(&mut config);
    let host = Host::start(config).await.unwrap();
    let server = Server::bind(host.clone()).await.unwrap();
    let base = format!("http://{}", server.local_addr());
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = tokio::spawn(async move {
        server.serve(async { stopped.await.unwrap_or(()) }).await.unwrap();
    });
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    TestServer { host, base, client, _stop: stop, _serving: serving, _dir: dir }
}

impl TestServer {
    pub(crate) fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.client.request(method, format!("{}{path}", self.base))
    }

    /// The JSON of a good answer.
    pub(crate) async fn get(&self, path: &str) -> serde_json::Value {
        let response = self.request(Method::GET, path).send().await.unwrap();
        assert!(response.status().is_success(), "{path}: {}", response.status());
        serde_json::from_slice(&response.bytes().await.unwrap()).unwrap()
    }
}
