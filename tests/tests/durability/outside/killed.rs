//! The host is killed while a run is at a request.

use std::time::{Duration, Instant};

use agent_host_tests::{OutsideServer, outside::HALF};
use serde_json::{Value, json};

use crate::outside::{
    LOCAL, config, is_refused,
    support::{EndedRun, Host, Random, now},
};

/// A host with the guest that sends requests to `outside`; each text goes into its section.
fn host(outside: &OutsideServer, limits: &str, binding: &str) -> Host {
    let limits = format!("{LOCAL}[limits]\nmax_live_runs = 50\n{limits}");
    let config = config("outside/default", &[&outside.authority], &limits);
    Host::limited(&["outside"], &format!("{config}max_attempts = 100\n{binding}"))
}

fn a(count: usize) -> String {
    "a".repeat(count)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_response_that_was_half_read_is_read_on() {
    let outside = OutsideServer::start().await;
    outside.hold();
    let mut host = host(&outside, "", "");
    let url = outside.url("halves/x");
    let run = host.send(&format!("get {url}; read 7; read 300; say half; read 300; rest")).await;
    host.until_step(&run, "say half").await;
    host.kill_and_revive();
    // The request is sent again and waits; the host is killed again.
    outside.until("halves/x", 2).await;
    host.kill();
    outside.release();
    host.revive();
    let ended = host.ended(&run).await.completed();
    let seen = ended.outcomes();
    assert_eq!(seen[1..3], [json!(a(7)), json!(a(300))], "{ended}");
    assert_eq!(seen[4..], [json!(a(300)), json!(a(2 * HALF - 607))], "{ended}");
    assert_eq!(outside.times("halves/x"), 3, "once for each execution that read of it: {ended}");
    assert_eq!(ended.resumes(), 2, "{ended}");
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_response_that_is_another_now_is_not_mixed_with_what_was_read() {
    let outside = OutsideServer::start().await;
    outside.hold();
    let mut host = host(&outside, "", "");
    let url = outside.url("halves/changes");
    let run = host.send(&format!("get {url}; read 300; say half; rest; rest; get {url}; rest")).await;
    host.until_step(&run, "say half").await;
    host.kill();
    outside.change();
    outside.release();
    host.revive();
    let ended = host.ended(&run).await.completed();
    let seen = ended.outcomes();
    assert_eq!(seen[1], a(300));
    is_refused(&seen[3], "runtime_error", "response_interrupted");
    assert_eq!(seen[3]["retryable"], true);
    is_refused(&seen[4], "runtime_error", "response_interrupted");
    assert_eq!(seen[6], "b".repeat(2 * HALF), "who asks anew has all of it: {ended}");
    assert_eq!(outside.times("halves/changes"), 3, "the first, the look whether it is the same, and the new one: {ended}");
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_post_is_not_repeated_for_the_rest_of_its_answer() {
    let outside = OutsideServer::start().await;
    outside.hold();
    let mut host = host(&outside, "", "");
    let keyed = format!("send POST {} idempotency-key: k1 | x", outside.url("halves/keyed"));
    let run =
        host.send(&format!("post {} x; {keyed}; read 300; say half; rest; drop; read 10", outside.url("halves/posted"))).await;
    host.until_step(&run, "say half").await;
    host.kill();
    outside.release();
    host.revive();
    let ended = host.ended(&run).await.completed();
    let seen = ended.outcomes();
    assert_eq!(seen[4], a(2 * HALF - 300), "{ended}");
    is_refused(&seen[6], "runtime_error", "response_interrupted");
    assert_eq!((outside.times("halves/posted"), outside.times("halves/keyed")), (1, 2), "{ended}");
    let keys: Vec<_> =
        outside.visits("halves/keyed").iter().map(|visit| visit.header("idempotency-key").map(str::to_owned)).collect();
    assert_eq!(keys, [Some("k1".to_owned()), Some("k1".to_owned())]);
    host.check();
}

/// A run that is cut off in `step`, whose path is `held/x`.
async fn cut_off(step: &str, binding: &str) -> (OutsideServer, Host, String) {
    let outside = OutsideServer::start().await;
    outside.hold();
    let mut host = host(&outside, "", binding);
    let step = step.replace("URL", &outside.url("held/x"));
    let run = host.send(&format!("get {}; rest; {step}; say after", outside.url("ok/before"))).await;
    outside.until("held/x", 1).await;
    host.kill();
    outside.release();
    host.revive();
    (outside, host, run)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_post_that_was_cut_off_is_in_doubt() {
    for step in ["post URL x", "send PATCH URL x-a: 1 | x"] {
        let (outside, host, run) = cut_off(step, "in_doubt = \"error\"\n").await;
        let ended = host.ended(&run).await.completed();
        is_refused(&ended.outcomes()[2], "runtime_error", "effect_in_doubt");
        assert_eq!((outside.times("held/x"), outside.times("ok/before")), (1, 1), "{ended}");
        assert_eq!(ended.resumes(), 1, "{ended}");
        host.check();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn idempotent_requests_are_repeated() {
    for step in ["get URL", "send PUT URL x-a: 1 | x", "send DELETE URL", "send POST URL Idempotency-Key: k1 | x"] {
        // No person is asked, whatever the binding says.
        let (outside, host, run) = cut_off(step, "in_doubt = \"ask\"\n").await;
        let ended = host.ended(&run).await.completed();
        assert_eq!(ended.outcomes()[2], 200, "{ended}");
        assert_eq!(outside.times("held/x"), 2, "{step}: {ended}");
        // The request may be sent before the steps before it are on disk, so those may be repeated too, which is harmless
        // as well.
        assert!((1..=2).contains(&outside.times("ok/before")), "{step}: {ended}");
        let [one, two] = &*outside.visits("held/x") else { panic!("{ended}") };
        assert_eq!((&one.method, &one.headers, &one.body), (&two.method, &two.headers, &two.body));
        assert!(ended.of("action.requested").is_empty(), "{ended}");
        host.check();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_person_says_whether_a_post_is_repeated() {
    for (decision, times) in [("repeat", 2), ("skip", 1)] {
        let (outside, mut host, run) = cut_off("post URL x", "in_doubt = \"ask\"\n").await;
        let asked = host.until(&run, |event| event["type"] == "action.requested").await["data"].clone();
        host.until_status(&run, "waiting").await;
        assert_eq!(asked["kind"], "effect_in_doubt", "{asked:#}");
        assert_eq!(asked["target"], json!({ "method": "POST", "origin": format!("http://{}", outside.authority) }));
        assert!(!asked.to_string().contains("held"), "neither path nor query: {asked:#}");
        // The question stands, whatever becomes of the host.
        host.kill_and_revive();
        host.until_status(&run, "waiting").await;
        assert_eq!(outside.times("held/x"), 1);
        let url = format!("{}/api/v1/actions/{}/respond", *host.urls().borrow(), asked["action_id"].as_str().unwrap());
        let answer = reqwest::Client::new().post(url).json(&json!({ "decision": decision })).send().await.unwrap();
        assert_eq!(answer.status(), 200, "{}", answer.text().await.unwrap());
        let ended = host.ended(&run).await.completed();
        if decision == "repeat" {
            assert_eq!(ended.outcomes()[2], 200, "{ended}");
        } else {
            is_refused(&ended.outcomes()[2], "runtime_error", "effect_in_doubt");
        }
        assert_eq!(outside.times("held/x"), times, "{ended}");
        assert_eq!(ended.of("action.requested").len(), 1, "{ended}");
        host.check();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_run_stays_in_memory_while_a_response_is_open() {
    let outside = OutsideServer::start().await;
    let host = host(&outside, "park_after_ms = 300\n", "");
    let slept = |ended: &EndedRun| ended.statuses("timer").len();
    // Open; read to its end; dropped; broken.
    for (steps, parked) in [
        ("get URL/pieces/3/1; sleep 1200", 0),
        ("get URL/pieces/3/1; read 3; sleep 1200; rest", 0),
        ("get URL/pieces/3/1; rest; sleep 1200; rest", 1),
        ("get URL/pieces/3/1; drop; sleep 1200", 1),
        ("get URL/broken; rest; sleep 1200; rest", 1),
        ("get URL/silent; sleep 1200", 1),
    ] {
        let ended = host.take(&steps.replace("URL", &format!("http://{}", outside.authority))).await;
        assert_eq!(slept(&ended), parked, "{steps}: {ended}");
        ended.outcomes();
    }
    assert_eq!(outside.seen().len(), 6, "who was parked asked for nothing again");
    host.check();
}

/// The requests of a run, each followed by `rest`.
const REQUESTS: [(&str, bool); 6] = [
    ("get URL/after/25/NAME-a", true),
    ("post URL/after/25/NAME-b x", false),
    ("get URL/pieces/4/10/NAME-c", true),
    ("send POST URL/after/25/NAME-d idempotency-key: NAME | y", true),
    ("post URL/pieces/3/10/NAME-e z", false),
    ("get URL/ok/NAME-f", true),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_finished_request_is_never_made_again() {
    let number = |name: &str, default| std::env::var(name).map_or(default, |text| text.parse::<u64>().unwrap());
    let (seed, rounds) = (number("OUTSIDE_SEED", 20_261_122), number("OUTSIDE_ROUNDS", 30));
    println!("OUTSIDE_SEED={seed} OUTSIDE_ROUNDS={rounds}");
    let mut random = Random(seed);
    let outside = OutsideServer::start().await;
    let mut host = host(&outside, "", "in_doubt = \"error\"\n");
    let steps = |name: &str| {
        let steps = REQUESTS.map(|(step, _)| format!("{step}; rest"));
        steps.join("; ").replace("URL", &format!("http://{}", outside.authority)).replace("NAME", name)
    };
    let (mut runs, mut kills) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        for n in 0..3 {
            let name = format!("r{round}-{n}");
            runs.push((host.send(&steps(&name)).await, name));
        }
        tokio::time::sleep(Duration::from_millis(20 + random.below(260))).await;
        let before = now();
        host.kill();
        kills.push((before, now()));
        if random.below(4) == 0 {
            let began = Instant::now();
            host.stillborn(Duration::from_millis(random.below(500))).await;
            kills.push((now() - began.elapsed().as_millis() as u64, now()));
        }
        host.revive();
    }

    let (mut resumes, mut again, mut in_doubt, mut interrupted) = (0, 0, 0, 0);
    for (run, name) in &runs {
        let ended = host.ended(run).await.completed();
        let outcomes = ended.outcomes();
        let times: Vec<u64> = ended
            .events
            .iter()
            .filter(|event| event["type"] == "x.step")
            .map(|event| event["timestamp"].as_u64().unwrap())
            .collect();
        let started = ended.run["created_at"].as_u64().unwrap();
        for (n, (step, harmless)) in REQUESTS.into_iter().enumerate() {
            let (sent, read) = (&outcomes[2 * n], &outcomes[2 * n + 1]);
            let path = step.split(' ').find_map(|word| word.strip_prefix("URL/")).unwrap().replace("NAME", name);
            let visits = outside.visits(&path);
            // A harmless request is sent before the steps before it are on disk: a later execution may report those.
            let (before, finished) = (if n == 0 { started } else { times[2 * n - 1] }, times[2 * n + 1]);
            let began = visits.iter().map(|visit| visit.at).chain([before]).min().unwrap();
            let hits = kills.iter().filter(|(before, after)| began <= *after && *before <= finished).count();
            for visit in &visits {
                assert!(visit.at <= finished, "{path} was asked for at {}, after it was finished: {ended}", visit.at);
            }
            match (harmless, sent.as_u64()) {
                (true, Some(200)) => {
                    assert!((1..=1 + hits).contains(&visits.len()), "{path}: {} times, {hits} kills: {ended}", visits.len());
                    assert!(read.is_string(), "{path}: {ended}");
                    again += visits.len() - 1;
                }
                (false, Some(200)) => {
                    assert_eq!(visits.len(), 1, "{path}: {ended}");
                    if !read.is_string() {
                        is_refused(read, "runtime_error", "response_interrupted");
                        assert!(hits > 0, "{path}: {ended}");
                        interrupted += 1;
                    }
                }
                (false, None) => {
                    is_refused(sent, "runtime_error", "effect_in_doubt");
                    assert!(visits.len() <= 1 && hits > 0, "{path}: {ended}");
                    in_doubt += 1;
                }
                _ => panic!("{path}: {sent}: {ended}"),
            }
            if let Some(text) = read.as_str().filter(|text| !text.is_empty()) {
                let expected = if path.starts_with("pieces/4") {
                    "piece 1\npiece 2\npiece 3\npiece 4\n"
                } else if path.starts_with("pieces/3") {
                    "piece 1\npiece 2\npiece 3\n"
                } else {
                    &path
                };
                assert_eq!(text, expected, "{ended}");
            } else {
                assert!(!harmless, "{path} has no body: {ended}");
            }
        }
        resumes += ended.resumes();
    }
    println!(
        "{} kills hit {resumes} times a run: {again} requests were made again, {in_doubt} were in doubt, {interrupted} answers were lost",
        kills.len()
    );
    if rounds >= 30 {
        assert!(resumes >= 30 && again > 0 && in_doubt > 0, "the runs were hardly disturbed");
    }
    host.check();
}

/// A request that was refused stays refused, and one that failed stays failed: both are answered from the journal.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn failed_requests_are_not_repeated_after_a_restart() {
    let outside = OutsideServer::start().await;
    outside.hold();
    let mut host = host(&outside, "", "");
    let steps = format!(
        "get {}; get {}; rest; get http://127.0.0.1:1/; get {}; rest; say began; get {}; drop; rest; rest",
        outside.url("silent/x"),
        outside.url("broken/x"),
        outside.url("ok/x"),
        outside.url("held/x"),
    );
    // The one that broke is at the bottom: it is read once more when the others are gone.
    let steps = steps.replace("drop; rest; rest", "drop; drop; rest");
    let run = host.send(&steps).await;
    // The step is on disk when it is shown; a GET is sent earlier, and sent again if its answer is lost.
    host.until_step(&run, "say began").await;
    outside.until("held/x", 1).await;
    host.kill();
    outside.release();
    host.revive();
    let ended = host.ended(&run).await.completed();
    let seen: Vec<Value> = ended.outcomes();
    is_refused(&seen[0], "runtime_error", "connection_closed");
    is_refused(&seen[2], "runtime_error", "connection_closed");
    is_refused(&seen[3], "unauthorized", "host_not_allowed");
    assert_eq!(seen[5], "ok/x");
    is_refused(&seen[10], "runtime_error", "connection_closed");
    for (path, times) in [("silent/x", 1), ("broken/x", 1), ("ok/x", 1), ("held/x", 2)] {
        assert_eq!(outside.times(path), times, "{path}: {ended}");
    }
    host.check();
}
