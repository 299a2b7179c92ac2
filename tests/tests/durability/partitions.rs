//! A cluster with several partitions: hosts share the workspaces, and a client sends any request to any of them.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use agent_host_tests::{process::command, world::PATIENCE};
use eventsource_stream::{Event, Eventsource};
use futures_util::StreamExt;
use reqwest::{Client, Method, RequestBuilder, StatusCode};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::{
    cluster::{LEASE_MS, World, cluster_command, command_line_of, is_numbered},
    forwarding::{ForwardingHost, client, follow, message, records},
};

pub const PARTITIONS: u32 = 4;
const WORKSPACES: usize = 8;

/// A workspace with a key of its own.
pub struct Workspace {
    pub id: String,
    key_id: String,
    key: String,
}

impl Workspace {
    /// Makes its key at a host. Another host knows it a moment later.
    pub async fn make(host: &ForwardingHost, id: String) -> Self {
        let scopes = ["events:write", "runs:read", "runs:control", "runs:execute", "admin"];
        let wanted = json!({ "name": "test", "scopes": scopes, "workspace": id });
        let (status, made) = answer(client().post(host.url("/api/v1/keys")).json(&wanted)).await;
        assert_eq!(status, StatusCode::CREATED, "{made}");
        let text = |name: &str| made[name].as_str().unwrap().to_owned();
        Self { id, key_id: text("key_id"), key: text("token") }
    }

    pub fn request(&self, method: Method, host: &ForwardingHost, path: &str) -> RequestBuilder {
        client().request(method, host.url(path)).bearer_auth(&self.key)
    }

    async fn get(&self, host: &ForwardingHost, path: &str) -> (StatusCode, Value) {
        answer(self.request(Method::GET, host, path)).await
    }

    /// Sends a message at a host; gives the run.
    pub async fn send(&self, host: &ForwardingHost, text: &str) -> String {
        let (status, body) = answer(self.request(Method::POST, host, "/api/v1/events").json(&message(text))).await;
        assert_eq!(status, StatusCode::ACCEPTED, "{}: {body}", self.id);
        body["runs"][0]["run_id"].as_str().unwrap().to_owned()
    }

    pub async fn is_completed(&self, host: &ForwardingHost, run: &str) {
        let began = Instant::now();
        loop {
            let (status, body) = self.get(host, &format!("/api/v1/runs/{run}")).await;
            if body["status"] == "completed" {
                return;
            }
            let may_wait = status == StatusCode::OK || status == StatusCode::SERVICE_UNAVAILABLE;
            assert!(may_wait && began.elapsed() < PATIENCE, "{}: {status}: {body}\n{}", self.id, host.host.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

pub async fn answer(request: RequestBuilder) -> (StatusCode, Value) {
    let answer = request.send().await.unwrap();
    (answer.status(), answer.json().await.unwrap_or_default())
}

pub async fn is_ready(host: &ForwardingHost) {
    let began = Instant::now();
    loop {
        let (status, body) = host.readiness().await;
        let owners = body["partitions"].as_array().map_or(0, Vec::len);
        if status == StatusCode::OK && owners == PARTITIONS as usize {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "{status}: {body}\n{}", host.host.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The addresses of the hosts that own partitions.
fn owners(dir: &std::path::Path) -> BTreeSet<String> {
    let status = tokio::task::block_in_place(|| cluster_command(dir, &["status"])).unwrap();
    let partitions = status["partitions"].as_array().unwrap().iter();
    partitions.filter_map(|partition| Some(partition["owner"].as_str()?.to_owned())).collect()
}

/// Waits until so many hosts share the partitions, and none has moved for longer than a host keeps one that is to be another's.
pub async fn are_shared(dir: &std::path::Path, hosts: usize) {
    let (began, mut before, mut since) = (Instant::now(), Vec::new(), Instant::now());
    while since.elapsed() < Duration::from_millis(LEASE_MS + 1_000) {
        let status = tokio::task::block_in_place(|| cluster_command(dir, &["status"])).unwrap();
        let owners: Vec<_> =
            status["partitions"].as_array().unwrap().iter().map(|partition| partition["owner"].to_string()).collect();
        if owners != before || owners.iter().collect::<BTreeSet<_>>().len() < hosts {
            (before, since) = (owners, Instant::now());
        }
        assert!(began.elapsed() < PATIENCE, "{before:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn hosts_share_the_workspaces_and_each_takes_every_request() {
    let world = World::with_partitions(PARTITIONS).await;
    let commands = tempfile::tempdir().unwrap();
    command_line_of(&world.url, commands.path());
    let mut hosts: Vec<ForwardingHost> = (0..3).map(|_| world.member()).collect();
    for host in &hosts {
        is_ready(host).await;
    }

    // Keys are made at any host, and are good at every one.
    let mut workspaces = Vec::new();
    for number in 0..WORKSPACES {
        workspaces.push(Workspace::make(&hosts[number % 3], format!("workspace-{number}")).await);
    }
    tokio::time::sleep(Duration::from_secs(1)).await;

    // Each workspace at each host; its runs are seen at the others, and no others.
    for (number, workspace) in workspaces.iter().enumerate() {
        let mut sent = BTreeSet::new();
        for (at, host) in hosts.iter().enumerate() {
            let run = workspace.send(host, &format!("task:{number}-{at}")).await;
            workspace.is_completed(&hosts[(at + 1) % 3], &run).await;
            sent.insert(run);
        }
        for host in &hosts {
            let (status, list) = workspace.get(host, "/api/v1/runs").await;
            let ids = list["items"].as_array().unwrap_or_else(|| panic!("{status}: {list}")).iter();
            assert_eq!(ids.map(|run| run["run_id"].as_str().unwrap().to_owned()).collect::<BTreeSet<_>>(), sent);
        }
    }
    let began = Instant::now();
    while owners(commands.path()).len() < hosts.len() {
        assert!(began.elapsed() < PATIENCE, "not each host has a share: {:?}", owners(commands.path()));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }

    each_partition_has_an_owner_and_a_follower(&hosts, commands.path()).await;
    lists_of_senders_without_a_workspace_are_those_of_all(&hosts, &workspaces).await;
    senders_without_a_workspace_name_one(&hosts, &workspaces).await;
    credentials_of_a_workspace_are_good_at_every_host(&hosts, &workspaces[0]).await;
    the_tokens_of_a_key_are_those_of_all_partitions(&hosts, &workspaces).await;
    a_stream_of_all_partitions_goes_on_at_another_host(&hosts, &workspaces).await;

    // The host with the stream's partition is killed.
    let streamed = &workspaces[1];
    let run = streamed.send(&hosts[0], "task:streamed").await;
    let (victim, _) = owner_of(&hosts, streamed).await;
    let at = (victim + 1) % 3;
    let stream = follow(streamed.request(Method::GET, &hosts[at], &format!("/api/v1/runs/{run}/events")));
    let mut feed = FollowedFeed::of(&hosts[at], "/api/v1/events", None).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    hosts.remove(victim).host.kill();
    let (events, is_whole) = stream.await.unwrap();
    let events = records(&events);
    assert!(is_whole && events.last().unwrap()["type"] == "run.completed", "{events:#?}");
    is_numbered(&events);
    let mut accepted = BTreeSet::new();
    for workspace in &workspaces {
        for host in &hosts {
            let began = Instant::now();
            let run = loop {
                let request = workspace.request(Method::POST, host, "/api/v1/events").header("idempotency-key", "after");
                let (status, body) = answer(request.json(&message("task:after"))).await;
                if status.is_success() {
                    accepted.insert(body["event_id"].as_str().unwrap().to_owned());
                    break body["runs"][0]["run_id"].as_str().unwrap().to_owned();
                }
                assert!(began.elapsed() < PATIENCE, "{}: {status}: {body}", workspace.id);
                tokio::time::sleep(Duration::from_millis(100)).await;
            };
            workspace.is_completed(host, &run).await;
        }
    }

    // The stream of all has them, each once.
    assert_eq!(accepted.len(), workspaces.len());
    assert_eq!(feed.take(accepted.len()).await.into_iter().map(|(event, _)| event).collect::<BTreeSet<_>>(), accepted);

    // A key that is revoked at one host is out at both.
    let revoked = &workspaces[2];
    let path = format!("/api/v1/keys/{}", revoked.key_id);
    let (status, body) = answer(client().delete(hosts[0].url(&path))).await;
    assert!(status.is_success(), "{status}: {body}");
    let began = Instant::now();
    for host in &hosts {
        while revoked.get(host, "/api/v1/runs").await.0 != StatusCode::UNAUTHORIZED {
            assert!(began.elapsed() < Duration::from_secs(1), "{}", host.host.log());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    let ended: Vec<_> = hosts.into_iter().map(|host| host.host.terminate()).collect();
    assert!(owners(commands.path()).is_empty());
    // The copy of each partition is a ledger by itself.
    let mut rows = 0;
    for partition in 0..PARTITIONS {
        let folder = if partition == 0 { "data/ledger".to_owned() } else { format!("data/ledger-{partition}") };
        let has_copy = ended.iter().find(|dir| dir.path().join(&folder).exists()).unwrap();
        let mut check = command(has_copy.path());
        let checked = check.args(["ledger", "check", "--json", "--partition", &partition.to_string()]).output().unwrap();
        let report: Value = serde_json::from_slice(&checked.stdout).unwrap_or_else(|_| panic!("{checked:?}"));
        assert!(checked.status.success(), "{report}");
        rows += report["rows"].as_u64().unwrap();
    }
    assert!(rows > 200, "{rows} rows");
}

/// A stream of all that is accepted.
struct FollowedFeed(mpsc::UnboundedReceiver<Event>);

impl FollowedFeed {
    async fn of(host: &ForwardingHost, path: &str, after: Option<&str>) -> Self {
        let request = operator(Method::GET, host, path).header("accept", "text/event-stream");
        let answer =
            after.into_iter().fold(request, |request, after| request.header("last-event-id", after)).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        let (events, received) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            let mut stream = answer.bytes_stream().eventsource();
            while let Some(Ok(event)) = stream.next().await
                && events.send(event).is_ok()
            {}
        });
        Self(received)
    }

    /// The next events, by their ids, each with the place behind it.
    async fn take(&mut self, count: usize) -> Vec<(String, String)> {
        let mut taken = Vec::new();
        while taken.len() < count {
            let event = tokio::time::timeout(PATIENCE, self.0.recv()).await.expect("an event comes").expect("the stream goes on");
            let data: Value = serde_json::from_str(&event.data).unwrap_or_else(|_| panic!("{event:?}"));
            assert_eq!(event.event, "accepted", "{event:?}");
            taken.push((data["event_id"].as_str().unwrap().to_owned(), event.id));
        }
        taken
    }

    /// The end of what comes soon.
    async fn is_over(&mut self) {
        let more = tokio::time::timeout(Duration::from_millis(500), self.0.recv()).await;
        assert!(more.is_err(), "{more:?}");
    }
}

/// The stream of an operator has what all partitions accept.
async fn a_stream_of_all_partitions_goes_on_at_another_host(hosts: &[ForwardingHost], workspaces: &[Workspace]) {
    let mut feed = FollowedFeed::of(&hosts[0], "/api/v1/events?event_type=message.*", None).await;
    let mut accepted = BTreeSet::new();
    for (number, workspace) in workspaces.iter().enumerate() {
        let request = workspace.request(Method::POST, &hosts[number % hosts.len()], "/api/v1/events");
        let (status, body) = answer(request.json(&message("task:feed"))).await;
        assert_eq!(status, StatusCode::ACCEPTED, "{body}");
        accepted.insert(body["event_id"].as_str().unwrap().to_owned());
    }
    let taken = feed.take(accepted.len()).await;
    assert_eq!(taken.iter().map(|(event, _)| event.clone()).collect::<BTreeSet<_>>(), accepted);
    feed.is_over().await;
    let (before, behind) = taken.split_at(3);
    let mut again = FollowedFeed::of(&hosts[1], "/api/v1/events", Some(&before[2].1)).await;
    let rest: BTreeSet<_> = again.take(behind.len()).await.into_iter().map(|(event, _)| event).collect();
    assert_eq!(rest, behind.iter().map(|(event, _)| event.clone()).collect());
    again.is_over().await;
    // The last place, in the parameter.
    FollowedFeed::of(&hosts[2], &format!("/api/v1/events?after={}", taken[taken.len() - 1].1), None).await.is_over().await;
    let stream = |path: &str| operator(Method::GET, &hosts[0], path).header("accept", "text/event-stream");
    let (status, problem) = answer(stream("/api/v1/events?after=x")).await;
    assert_eq!((status, problem["code"].as_str()), (StatusCode::BAD_REQUEST, Some("invalid_cursor")), "{problem}");
    let (status, problem) = answer(stream("/api/v1/events?sauce=x")).await;
    assert_eq!((status, problem["field"].as_str()), (StatusCode::BAD_REQUEST, Some("sauce")), "{problem}");
    // The audit.
    let audit = FollowedFeed::of(&hosts[1], "/api/v1/audit?action=keys.", None).await;
    Workspace::make(&hosts[2], "workspace-0".to_owned()).await;
    let mut audit = audit.0;
    let record = tokio::time::timeout(PATIENCE, audit.recv()).await.expect("a record comes").unwrap();
    assert!(record.event == "audit" && record.data.contains("keys.create"), "{record:?}");
}

/// A key of no workspace, whose runs are executed by all hosts, has one budget.
async fn the_tokens_of_a_key_are_those_of_all_partitions(hosts: &[ForwardingHost], workspaces: &[Workspace]) {
    let run = workspaces[0].send(&hosts[0], "task:measured").await;
    workspaces[0].is_completed(&hosts[0], &run).await;
    let (_, run) = workspaces[0].get(&hosts[0], &format!("/api/v1/runs/{run}")).await;
    let tokens = |of: &str| run["usage"][of].as_u64().unwrap_or_else(|| panic!("{run}"));
    let budget = (tokens("input") + tokens("output")) * workspaces.len() as u64;
    let wanted = json!({ "name": "budget", "scopes": ["events:write", "runs:read"], "tokens_per_day": budget });
    let (status, made) = answer(client().post(hosts[0].url("/api/v1/keys")).json(&wanted)).await;
    assert_eq!(status, StatusCode::CREATED, "{made}");
    let (key, path) = (made["token"].as_str().unwrap(), format!("/api/v1/keys/{}", made["key_id"].as_str().unwrap()));
    tokio::time::sleep(Duration::from_secs(1)).await;
    let send = |workspace: &Workspace, host: &ForwardingHost| {
        let request = client().post(host.url("/api/v1/events")).bearer_auth(key).header("x-workspace", &workspace.id);
        let mut event = message("task:budget");
        event["conversation"] = json!({ "workspace_id": workspace.id });
        answer(request.json(&event))
    };
    for (number, workspace) in workspaces.iter().enumerate() {
        let (status, body) = send(workspace, &hosts[number % hosts.len()]).await;
        assert_eq!(status, StatusCode::ACCEPTED, "{body}");
        workspace.is_completed(&hosts[0], body["runs"][0]["run_id"].as_str().unwrap()).await;
    }
    let began = Instant::now();
    for host in hosts {
        for workspace in workspaces {
            // Every partition refuses, also one whose own runs have used an eighth.
            loop {
                let (status, problem) = send(workspace, host).await;
                if (status, problem["code"].as_str()) == (StatusCode::TOO_MANY_REQUESTS, Some("token_budget_exhausted")) {
                    break;
                }
                assert!(status == StatusCode::ACCEPTED && began.elapsed() < PATIENCE, "{}: {status}: {problem}", workspace.id);
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
    }
    // The host that lists the keys hears of it a moment later.
    loop {
        let (_, list) = answer(client().get(hosts[1].url("/api/v1/keys"))).await;
        let keys = list["items"].as_array().unwrap_or_else(|| panic!("{list}"));
        let shown = keys.iter().find(|key| made["key_id"] == key["key_id"]).unwrap();
        if shown["tokens_today"].as_u64().unwrap() >= budget {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "{shown}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let (status, body) = answer(client().delete(hosts[0].url(&path))).await;
    assert!(status.is_success(), "{status}: {body}");
}

/// All hosts have copies of the first partition, and two of them of each other one. The third says that it has none.
async fn each_partition_has_an_owner_and_a_follower(hosts: &[ForwardingHost], commands: &std::path::Path) {
    let began = Instant::now();
    loop {
        let mut counts = [0; PARTITIONS as usize];
        for host in hosts {
            let (_, ready) = host.readiness().await;
            let partitions = ready["partitions"].as_array().unwrap().iter();
            partitions.zip(&mut counts).for_each(|(partition, count)| *count += usize::from(!partition["last_batch"].is_null()));
        }
        let status = tokio::task::block_in_place(|| cluster_command(commands, &["status"])).unwrap();
        let listed = status["hosts"].as_array().unwrap().iter();
        let listed: usize = listed.map(|host| host["copies"].as_array().unwrap().len()).sum();
        if counts == [3, 2, 2, 2] && listed == counts.iter().sum::<usize>() {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "{counts:?}: {status}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// The place of the host that owns the partition of a workspace: the others answer with what that one has.
async fn owner_of(hosts: &[ForwardingHost], workspace: &Workspace) -> (usize, Value) {
    for (at, host) in hosts.iter().enumerate() {
        let (_, before) = host.readiness().await;
        let (status, _) = workspace.get(host, "/api/v1/runs?limit=1").await;
        assert_eq!(status, StatusCode::OK);
        let (_, after) = host.readiness().await;
        if before["forwarding"]["answered"] == after["forwarding"]["answered"] {
            return (at, after);
        }
    }
    panic!("no host owns the partition of {}", workspace.id);
}

fn operator(method: Method, host: &ForwardingHost, path: &str) -> RequestBuilder {
    Client::new().request(method, host.url(path))
}

/// Lists of an operator have what is of all partitions, page by page.
async fn lists_of_senders_without_a_workspace_are_those_of_all(hosts: &[ForwardingHost], workspaces: &[Workspace]) {
    let mut all = BTreeSet::new();
    for workspace in workspaces {
        let (_, list) = workspace.get(&hosts[0], "/api/v1/runs?limit=100").await;
        all.extend(list["items"].as_array().unwrap().iter().map(|run| run["run_id"].as_str().unwrap().to_owned()));
    }
    assert_eq!(all.len(), WORKSPACES * hosts.len());
    for host in hosts {
        for (list, time) in [("runs", "created_at"), ("events", "received_at")] {
            let (mut items, mut cursor, mut pages) = (Vec::new(), String::new(), 0);
            loop {
                let (status, page) = answer(operator(Method::GET, host, &format!("/api/v1/{list}?limit=5{cursor}"))).await;
                assert_eq!(status, StatusCode::OK, "{page}");
                items.extend(page["items"].as_array().unwrap().iter().cloned());
                pages += 1;
                if page["has_more"] == false {
                    break;
                }
                cursor = format!("&cursor={}", page["next_cursor"].as_str().unwrap());
            }
            let times: Vec<_> = items.iter().map(|item| item[time].as_u64().unwrap()).collect();
            assert!(times.is_sorted_by(|later, earlier| later >= earlier), "{list}: {times:?}");
            assert!(pages > 1 && items.len() == all.len(), "{list}: {pages} pages of {} items", items.len());
            if list == "runs" {
                assert_eq!(items.iter().map(|run| run["run_id"].as_str().unwrap().to_owned()).collect::<BTreeSet<_>>(), all);
            }
        }
        for list in ["actions", "audit", "deliveries", "dead-letters", "executors", "schedules", "threads"] {
            let (status, page) = answer(operator(Method::GET, host, &format!("/api/v1/{list}"))).await;
            assert!(status == StatusCode::OK && page["items"].is_array(), "{list}: {status}: {page}");
        }
        let (status, problem) = answer(operator(Method::GET, host, "/api/v1/backup")).await;
        assert_eq!((status, problem["field"].as_str()), (StatusCode::BAD_REQUEST, Some("X-Workspace")), "{problem}");
        are_counted(host, &all).await;
        for path in ["/api/v1/runs?limit=5", "/api/v1/statistics"] {
            let length = async |method| operator(method, host, path).send().await.unwrap().headers()["content-length"].clone();
            assert_eq!(length(Method::HEAD).await, length(Method::GET).await, "{path}");
        }
        // A body that nobody reads stays what it is.
        for _ in 0..3 {
            let (status, page) =
                answer(operator(Method::GET, host, "/api/v1/runs?limit=1").body("GET /x HTTP/1.1\r\n\r\n")).await;
            assert!(status == StatusCode::OK && page["items"].as_array().map(Vec::len) == Some(1), "{status}: {page}");
        }
        let (status, problem) = answer(operator(Method::GET, host, "/api/v1/runs?cursor=x")).await;
        assert_eq!((status, &problem["code"]), (StatusCode::BAD_REQUEST, &json!("invalid_cursor")), "{problem}");
    }
}

/// The statistics of all partitions count every run once.
async fn are_counted(host: &ForwardingHost, runs: &BTreeSet<String>) {
    let statistics = |rest: &str| answer(operator(Method::GET, host, &format!("/api/v1/statistics{rest}")));
    let (status, counted) = statistics("?group_by=binding").await;
    assert_eq!((status, counted["total"]["runs"].as_u64()), (StatusCode::OK, Some(runs.len() as u64)), "{counted}");
    assert_eq!(counted["total"]["duration_ms"]["count"], counted["total"]["ended"], "{counted}");
    let of_groups = counted["groups"].as_array().unwrap().iter().map(|group| group["runs"].as_u64().unwrap()).sum::<u64>();
    assert_eq!((of_groups, counted["truncated"].as_bool()), (runs.len() as u64, Some(false)), "{counted}");
    let covered = counted["covered_since"].as_u64().unwrap();
    let (_, later) = statistics(&format!("?since={}", covered + 1)).await;
    assert_eq!(later["since"].as_u64(), Some(covered + 1));
    assert!((1..runs.len() as u64).contains(&later["total"]["runs"].as_u64().unwrap()), "{later}");
    // Without the header it is the same question.
    let (_, of_none) = statistics("?workspace_id=nobody").await;
    assert_eq!(of_none["total"]["runs"], 0);
    for (bad, field) in [("?since=x", "since"), ("?sience=1", "sience"), ("?group_by=day", "group_by")] {
        let (status, problem) = statistics(bad).await;
        assert_eq!((status, problem["field"].as_str()), (StatusCode::BAD_REQUEST, Some(field)), "{bad}: {problem}");
    }
}

async fn senders_without_a_workspace_name_one(hosts: &[ForwardingHost], workspaces: &[Workspace]) {
    for (at, host) in hosts.iter().enumerate() {
        for workspace in workspaces {
            let runs = format!("/api/v1/runs?workspace_id={}", workspace.id);
            let (status, list) = answer(operator(Method::GET, host, &runs)).await;
            // Those of the workspace itself, and one of each host before.
            assert_eq!((status, list["items"].as_array().unwrap().len()), (StatusCode::OK, hosts.len() + at), "{list}");
            let run = list["items"][0]["run_id"].as_str().unwrap();
            // By its id alone.
            let (status, shown) = answer(operator(Method::GET, host, &format!("/api/v1/runs/{run}"))).await;
            assert_eq!((status, &shown["run_id"]), (StatusCode::OK, &json!(run)), "{shown}");
            let mut event = message("task:by an operator");
            event["conversation"] = json!({ "workspace_id": workspace.id });
            let named = operator(Method::POST, host, "/api/v1/events").header("x-workspace", &workspace.id).json(&event);
            let (status, body) = answer(named.header("idempotency-key", format!("{}-{}", workspace.id, host.port))).await;
            assert_eq!(status, StatusCode::ACCEPTED, "{body}");
        }
    }
    // The command line likewise.
    let dir = tempfile::tempdir().unwrap();
    let list = |more: &[&str]| {
        let mut command = command(dir.path());
        command.args(["runs", "list", "--limit", "100", "--json", "--server", &hosts[1].host.url]).args(more);
        let output = tokio::task::block_in_place(|| command.output().unwrap());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let page: Value = serde_json::from_slice(&output.stdout).unwrap();
        page["items"].as_array().unwrap_or_else(|| panic!("{page}")).len()
    };
    assert!(list(&[]) > list(&["--for-workspace", &workspaces[0].id]));
    // Without the name it comes to the first partition, which has some of the workspaces.
    let mut refused = 0;
    for workspace in workspaces {
        let mut event = message("task:by an operator");
        event["conversation"] = json!({ "workspace_id": workspace.id });
        let (status, problem) = answer(operator(Method::POST, &hosts[0], "/api/v1/events").json(&event)).await;
        let is_refused = status == StatusCode::BAD_REQUEST;
        assert!(is_refused || status == StatusCode::ACCEPTED, "{status}: {problem}");
        assert!(!is_refused || problem["detail"].as_str().unwrap().contains("X-Workspace"), "{problem}");
        refused += usize::from(is_refused);
    }
    assert!(refused > 0, "all workspaces are in the first partition");
}

async fn credentials_of_a_workspace_are_good_at_every_host(hosts: &[ForwardingHost], workspace: &Workspace) {
    let wanted = json!({ "name": "hands", "queues": ["default"] });
    let (status, made) = answer(workspace.request(Method::POST, &hosts[0], "/api/v1/executors").json(&wanted)).await;
    assert_eq!(status, StatusCode::CREATED, "{made}");
    let (id, credential) =
        (made["executor"]["executor_id"].as_str().or(made["executor_id"].as_str()).unwrap(), made["token"].as_str());
    let credential = credential.or(made["credential"].as_str()).unwrap_or_else(|| panic!("{made}"));
    let run = workspace.send(&hosts[1], "task:followed").await;
    workspace.is_completed(&hosts[1], &run).await;
    let wanted = json!({ "run_id": run });
    let (status, stream) = answer(workspace.request(Method::POST, &hosts[2], "/api/v1/stream-tokens").json(&wanted)).await;
    assert_eq!(status, StatusCode::CREATED, "{stream}");
    let stream = stream["url"].as_str().unwrap();
    let began = Instant::now();
    for host in hosts {
        loop {
            let beat =
                client().post(host.url(&format!("/api/v1/executors/{id}/heartbeat"))).bearer_auth(credential).json(&json!({}));
            let (status, body) = answer(beat).await;
            if status == StatusCode::OK {
                break;
            }
            // The copy of the host has the executor a moment later.
            assert!(began.elapsed() < Duration::from_secs(2), "{status}: {body}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let path = stream.strip_prefix(&host.host.url).unwrap_or(stream);
        let (events, is_whole) = follow(client().get(host.url(path))).await.unwrap();
        assert!(is_whole && records(&events).last().unwrap()["type"] == "run.completed", "{events:?}");
    }
}
