//! Contents of a cluster in an object store with the protocol of S3: any host has those of a host that is gone.

use std::{
    fs,
    net::TcpListener,
    path::Path,
    process::Output,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use agent_host_tests::{Process, component, process::command, world::PATIENCE};
use hyper::{
    Request, Response,
    body::Incoming,
    server::conn::http1,
    service::{Service, service_fn},
};
use hyper_util::rt::TokioIo;
use reqwest::StatusCode;
use s3s::{Body, auth::SimpleAuth, service::S3ServiceBuilder};
use s3s_fs::FileSystem;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    cluster::{Member, types},
    postgres::{PASSWORD, Postgres, free_port},
};

const KEY: &str = "AKIDOFTESTS";
const SECRET: &str = "s3cret-of-tests";

/// A server of S3 with the bucket `contents`.
struct S3 {
    dir: TempDir,
    url: String,
    /// While it is true, nobody may do anything.
    refuses: Arc<AtomicBool>,
}

impl S3 {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("contents")).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let mut service = S3ServiceBuilder::new(FileSystem::new(dir.path()).unwrap());
        service.set_auth(SimpleAuth::from_single(KEY, SECRET));
        let service = service.build();
        let refuses = Arc::<AtomicBool>::default();
        let refusing = Arc::clone(&refuses);
        listener.set_nonblocking(true).unwrap();
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (service, refusing) = (service.clone(), Arc::clone(&refusing));
                let answer = service_fn(move |request: Request<Incoming>| {
                    let answer = Service::call(&service, request);
                    let refuses = refusing.load(Ordering::Relaxed);
                    async move {
                        let refused = || Response::builder().status(403).body(Body::empty()).unwrap();
                        if refuses { Ok(refused()) } else { answer.await }
                    }
                });
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
            }
        });
        Self { dir, url, refuses }
    }

    /// The environment of a host with this secret.
    fn variables<'a>(&'a self, secret: &'a str) -> [(&'a str, &'a str); 6] {
        [
            ("AWS_ACCESS_KEY_ID", KEY),
            ("AWS_SECRET_ACCESS_KEY", secret),
            ("AWS_ENDPOINT_URL", &self.url),
            ("AWS_ALLOW_HTTP", "true"),
            ("AWS_REGION", "eu-west-1"),
            ("AGENT_HOST_CLUSTER_SECRET", "a secret of at least thirty-two bytes"),
        ]
    }

    /// The blobs that are there.
    fn blobs(&self) -> usize {
        let Ok(shards) = fs::read_dir(self.dir.path().join("contents/agents/blobs")) else { return 0 };
        shards.map(|shard| fs::read_dir(shard.unwrap().path()).unwrap().count()).sum()
    }
}

/// `[cluster]` of a host.
fn cluster(hosts: u16) -> String {
    format!(
        "advertise = \"127.0.0.1:{hosts}\"\nblobs = \"s3://contents/agents\"\nsecret = {{ env = \"AGENT_HOST_CLUSTER_SECRET\" }}"
    )
}

fn cluster_command(dir: &Path, words: &[&str], variables: &[(&str, &str)]) -> Output {
    let variables = variables.iter().copied();
    command(dir).arg("cluster").args(words).env("LEDGER_PASSWORD", PASSWORD).envs(variables).output().unwrap()
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

async fn upload(host: &Member, content: &[u8]) -> (StatusCode, Value) {
    let url = format!("{}/api/v1/artifacts?name=x.bin&conversation_id=c1", host.url);
    let answer =
        reqwest::Client::new().post(url).header("content-type", "application/octet-stream").body(content.to_vec()).send();
    let answer = answer.await.unwrap();
    (answer.status(), answer.json().await.unwrap_or_default())
}

async fn content(host: &Member, id: &Value) -> (StatusCode, Vec<u8>) {
    let answer = reqwest::get(format!("{}/api/v1/artifacts/{}", host.url, id.as_str().unwrap())).await.unwrap();
    (answer.status(), answer.bytes().await.unwrap().to_vec())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_host_without_files_has_the_contents_of_a_killed_one() {
    let (postgres, s3) = (Postgres::start(), S3::start());
    postgres.create("agents");
    let url = postgres.url("agents").replace(&format!(":{PASSWORD}"), "");
    let dir = tempfile::tempdir().unwrap();
    let file = format!("[server]\nledger = \"{url}\"\n[cluster]\npassword = {{ env = \"LEDGER_PASSWORD\" }}\n{}", cluster(1));
    fs::write(dir.path().join("agent-host.toml"), file).unwrap();

    // The store is asked before anything is made.
    let refused = cluster_command(dir.path(), &["init"], &s3.variables("another secret"));
    let said = text(&refused);
    assert!(!refused.status.success() && said.contains("the object store s3://contents/agents cannot be used"), "{said}");
    assert!(said.contains("credentials") && !said.contains("another secret"), "{said}");
    let made = cluster_command(dir.path(), &["init"], &s3.variables(SECRET));
    assert!(made.status.success() && text(&made).contains("with its contents in s3://contents/agents"), "{made:?}");
    let shown = cluster_command(dir.path(), &["status"], &[]);
    assert!(text(&shown).contains("contents in s3://contents/agents"), "{shown:?}");

    let ports = [free_port(), free_port(), free_port(), free_port()];
    let start = |plugin: &str, client: usize, hosts: usize| {
        let (cluster, dir) = (cluster(ports[hosts]), Process::lay_out(&[]));
        fs::copy(component(plugin), dir.path().join("plugins").join("steps.wasm")).unwrap();
        let binding = "[[bindings]]\nid = \"steps\"\nrunner = \"plugin:test/steps/default\"\n";
        Member::start_with(dir, &url, ports[client], &cluster, &s3.variables(SECRET), binding)
    };
    let first = start("steps", 0, 1);
    first.is_active();
    let begun = first.send("say one; await go; say two").await;
    first.until(&begun, |events| types(events).contains(&"x.step")).await;
    assert_eq!(s3.blobs(), 1, "the component of the run");
    let large: Vec<u8> = (0..9_500_000u32).map(|at| (at * 7 % 251) as u8).collect();
    let (status, kept) = upload(&first, &large).await;
    assert_eq!((status, s3.blobs()), (StatusCode::CREATED, 2), "{kept}");
    assert_eq!(postgres.sql("agents", "select count(*) from agent_host.blobs"), "0");
    // On other files than those of the first, with another build of the plugin, and the store away at first: the run waits for its component.
    let second = start("steps_next", 2, 3);
    let began = Instant::now();
    while reqwest::get(format!("{}/healthz", second.url)).await.is_err() {
        assert!(began.elapsed() < PATIENCE, "{}", second.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    s3.refuses.store(true, Ordering::Relaxed);
    first.kill();
    second.is_active();
    let began = Instant::now();
    while !second.log().contains("the run waits for it") {
        assert!(began.elapsed() < PATIENCE, "{}", second.log());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    s3.refuses.store(false, Ordering::Relaxed);
    second.until(&begun, |events| events.iter().any(|event| event["data"]["reason"] == "resumed")).await;
    let (status, read) = content(&second, &kept["artifact_id"]).await;
    assert!(status == StatusCode::OK && read == large, "{status}, {} bytes", read.len());

    // A store that refuses writes: the upload fails with a code, and the host goes on.
    s3.refuses.store(true, Ordering::Relaxed);
    let (status, failed) = upload(&second, b"never written").await;
    assert_eq!((status, &failed["code"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("unavailable")), "{failed}");
    assert!(!failed.to_string().contains("s3://"), "the address is nothing to clients: {failed}");
    assert!(second.log().contains("may not do that there"), "{}", second.log());
    s3.refuses.store(false, Ordering::Relaxed);
    let (status, kept) = upload(&second, b"written").await;
    assert_eq!(status, StatusCode::CREATED, "{kept}");
    assert_eq!(content(&second, &kept["artifact_id"]).await, (StatusCode::OK, b"written".to_vec()));
    assert!(!second.log().contains(SECRET));
    assert_eq!(s3.blobs(), 3);
    assert_eq!(postgres.sql("agents", "select count(*) from agent_host.blob_pieces"), "0");
}
