//! Results on their way to webhooks.

use std::{fs, time::Duration};

use agent_host_tests::process;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::sources::{
    receiver::{Receiver, SECRET},
    support::{Host, Random},
};

/// A host with deliveries, and their receiver.
struct DeliveryHost {
    host: Host,
    receiver: Receiver,
    http: reqwest::Client,
    _secrets: TempDir,
}

impl DeliveryHost {
    async fn new(component: &str, more: &str) -> Self {
        let receiver = Receiver::start().await;
        let secrets = tempfile::tempdir().unwrap();
        let secret = secrets.path().join("secret");
        fs::write(&secret, SECRET).unwrap();
        let runner = if component == "echo" { "plugin:agent-host/echo/default" } else { "plugin:test/steps/default" };
        let config = format!(
            "[[webhooks]]\nname = \"crm\"\nurl = {:?}\nsecret = {{ file = {secret:?} }}\nfirst_pause_ms = 20\nlongest_pause_ms = 100\n{more}\n\
             [[bindings]]\nid = \"told\"\nrunner = \"{runner}\"\ndeliver = [\"crm\"]\n",
            receiver.url
        );
        let host = Host::start(&[component], &config);
        Self { host, receiver, http: reqwest::Client::new(), _secrets: secrets }
    }

    async fn deliveries(&self, query: &str) -> Vec<Value> {
        let page = self.host.get(&format!("/api/v1/deliveries{query}")).await;
        page["items"].as_array().unwrap().clone()
    }

    /// Waits until nothing is listed.
    async fn all_delivered(&self) {
        let began = std::time::Instant::now();
        loop {
            let left = self.deliveries("").await;
            if left.is_empty() {
                return;
            }
            assert!(began.elapsed() < agent_host_tests::world::PATIENCE, "{left:#?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn retry(&self, run: &str, webhook: &str) -> (u16, Value) {
        let url = format!("{}/api/v1/deliveries/{run}/{webhook}/retry", *self.host.urls().borrow());
        let answer = self.http.post(url).send().await.unwrap();
        (answer.status().as_u16(), answer.json().await.unwrap())
    }

    /// The expected deliveries of a run.
    async fn expected(&self, run: &str) -> Vec<u64> {
        let kinds = ["message.completed", "run.completed", "run.failed", "action.requested", "artifact.created"];
        let events = self.host.events(run).await;
        let wanted = events.iter().filter(|event| kinds.contains(&event["type"].as_str().unwrap()));
        wanted.map(|event| event["sequence"].as_u64().unwrap()).collect()
    }

    async fn was_told_all(&self, runs: &[String]) {
        self.receiver.until_ended(runs.len()).await;
        self.all_delivered().await;
        let host_with_deliveries = self.receiver.received_numbers();
        for run in runs {
            assert_eq!(host_with_deliveries.get(run), Some(&self.expected(run).await), "{run}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn results_are_delivered_in_order_and_leave_no_entry() {
    let host_with_deliveries = DeliveryHost::new("echo", "").await;
    let mut runs = Vec::new();
    for nth in 0..20 {
        runs.push(host_with_deliveries.host.send(&format!("hello {nth}")).await);
    }
    host_with_deliveries.was_told_all(&runs).await;
    let got = host_with_deliveries.receiver.got();
    let first = got.iter().find(|got| got.run_id() == runs[0]).unwrap().json();
    assert_eq!(first["type"], "run.events");
    assert_eq!(
        (&first["data"]["run"]["binding_id"], &first["data"]["events"][0]["type"]),
        (&json!("told"), &json!("message.completed"))
    );
    assert!(first["timestamp"].as_str().unwrap().ends_with('Z'));
    host_with_deliveries.host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_receiver_that_fails_now_and_then_misses_nothing() {
    let host_with_deliveries = DeliveryHost::new("echo", "max_attempts = 100\nbatch = 1").await;
    host_with_deliveries.receiver.answers(0);
    let mut runs = Vec::new();
    for nth in 0..30 {
        runs.push(host_with_deliveries.host.send(&format!("hello {nth}")).await);
    }
    host_with_deliveries.was_told_all(&runs).await;
    assert!(
        host_with_deliveries.receiver.got().iter().any(|got| got.answered >= 400),
        "it never refused: the test shows nothing"
    );
    assert!(host_with_deliveries.receiver.got().iter().all(|got| got.sequences().len() == 1));
    host_with_deliveries.host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_delivery_refused_too_often_is_a_dead_letter_and_can_be_retried() {
    let mut host_with_deliveries = DeliveryHost::new("echo", "max_attempts = 3").await;
    host_with_deliveries.receiver.answers(500);
    let run = host_with_deliveries.host.send("hello").await;
    let other = host_with_deliveries.host.send("hello").await;
    host_with_deliveries.receiver.until("three attempts each", |got| got.len() >= 6).await;
    let dead = loop {
        let dead = host_with_deliveries.deliveries("?state=dead&webhook=crm").await;
        if dead.len() == 2 {
            break dead;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!((&dead[0]["run_id"], &dead[0]["attempts"], &dead[0]["binding_id"]), (&json!(run), &json!(3), &json!("told")));
    assert!(dead[0]["last_error"].as_str().unwrap().contains("500"), "{dead:#?}");
    assert!(host_with_deliveries.deliveries("?state=pending").await.is_empty());
    assert_eq!(host_with_deliveries.deliveries(&format!("?run_id={other}")).await.len(), 1);
    assert!(host_with_deliveries.deliveries("?webhook=other").await.is_empty());
    // Page by page.
    let page = host_with_deliveries.host.get("/api/v1/deliveries?limit=1").await;
    assert_eq!(page["has_more"], true);
    let next = host_with_deliveries.deliveries(&format!("?limit=1&cursor={}", page["next_cursor"].as_str().unwrap())).await;
    assert_eq!(next[0]["run_id"], json!(other));

    // The host sends nothing more, also after a restart.
    host_with_deliveries.host.kill_and_revive();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(host_with_deliveries.receiver.got().len(), 6);
    host_with_deliveries.receiver.answers(410);
    assert_eq!(host_with_deliveries.retry(&other, "crm").await.0, 202);
    host_with_deliveries.receiver.until("one more", |got| got.len() == 7).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(host_with_deliveries.receiver.got().len(), 7, "who is gone is not asked again");

    host_with_deliveries.receiver.answers(204);
    let (status, put_back) = host_with_deliveries.retry(&run, "crm").await;
    assert_eq!((status, &put_back["state"], &put_back["attempts"]), (202, &json!("pending"), &json!(0)));
    assert_eq!(host_with_deliveries.retry(&other, "crm").await.0, 202);
    host_with_deliveries.was_told_all(&[run.clone(), other]).await;
    let (status, problem) = host_with_deliveries.retry(&run, "crm").await;
    assert_eq!((status, &problem["code"]), (404, &json!("not_found")));
    assert_eq!(host_with_deliveries.retry("nonsense", "crm").await.0, 404);

    let url = host_with_deliveries.host.urls().borrow().clone();
    let list = ["deliveries", "list", "--json", "--server", url.as_str()];
    let cli = process::command(host_with_deliveries.host.dir()).args(list).output().unwrap();
    assert!(cli.status.success(), "{}", String::from_utf8_lossy(&cli.stderr));
    assert_eq!(serde_json::from_slice::<Value>(&cli.stdout).unwrap()["items"], json!([]));
    host_with_deliveries.host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_host_that_is_killed_in_the_middle_tells_the_rest() {
    let mut host_with_deliveries = DeliveryHost::new("echo", "max_attempts = 100\nbatch = 1\nconcurrency = 2").await;
    host_with_deliveries.receiver.answers(0);
    let mut random = Random(3);
    let mut runs = Vec::new();
    for _ in 0..8 {
        for _ in 0..6 {
            runs.push(host_with_deliveries.host.send("hello").await);
        }
        tokio::time::sleep(Duration::from_millis(random.below(120))).await;
        host_with_deliveries.host.kill_and_revive();
    }
    // A run may come back, and say more than once that it did; what it said first stands.
    for run in &runs {
        host_with_deliveries.host.ended(run).await;
    }
    host_with_deliveries.was_told_all(&runs).await;
    host_with_deliveries.host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn invalid_questions_are_refused() {
    let host_with_deliveries = DeliveryHost::new("echo", "").await;
    for (query, field) in [("state=lost", "state"), ("run_id=7", "run_id"), ("limit=0", "limit"), ("colour=red", "colour")] {
        let url = format!("{}/api/v1/deliveries?{query}", *host_with_deliveries.host.urls().borrow());
        let answer = host_with_deliveries.http.get(url).send().await.unwrap();
        assert_eq!(answer.status(), 400, "{query}");
        assert_eq!(answer.json::<Value>().await.unwrap()["field"], field);
    }
    let url = format!("{}/api/v1/deliveries?cursor=x", *host_with_deliveries.host.urls().borrow());
    let answer = host_with_deliveries.http.get(url).send().await.unwrap().json::<Value>().await.unwrap();
    assert_eq!(answer["code"], "invalid_cursor");
}
