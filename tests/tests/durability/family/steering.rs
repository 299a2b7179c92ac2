//! A message for a conversation with an active run is given to that run or gets a run of its own, never both.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use agent_host_tests::world::PATIENCE;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::family::{
    family, message, post, runs,
    support::{EndedRun, Host, Random, in_order},
    text,
};

/// Messages that wait, in the order in which they were sent.
async fn waiting(host: &Host, conversation: &str, texts: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut sent = Vec::new();
    for text in texts {
        let run = host.send_in(conversation, &text).await;
        host.until_status(&run, "queued").await;
        sent.push(run);
    }
    sent
}

/// Checks that the message was given to another run.
async fn is_steered(host: &Host, run: &str, into: &str) -> EndedRun {
    let ended = host.ended(run).await.completed();
    let [end] = &*ended.of("run.completed") else { panic!("{ended}") };
    assert_eq!((&end["finish_reason"], &end["metadata"]["steered_into"]), (&json!("steered"), &json!(into)), "{ended}");
    assert_eq!(ended.events.len(), 1, "its guest never began: {ended}");
    ended
}

/// The runs whose messages a run has taken, as its record says.
fn steering_texts(ended: &EndedRun) -> Vec<&str> {
    ended.of("steering.received").into_iter().map(|data| text(data, "run_id")).collect()
}

fn message_texts(numbers: impl IntoIterator<Item = usize>) -> Vec<String> {
    numbers.into_iter().map(|n| format!("say {n}")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn inputs_are_given_in_order_and_the_rest_gets_runs() {
    let host = family("", "", "");
    let active = host.send_in("c", "say up; await go; pull 2 0; pull 3 0; say enough; await end").await;
    host.until_step(&active, "say up").await;
    let sent = waiting(&host, "c", message_texts(0..8)).await;
    // Elsewhere, nothing waits.
    host.take("set go yes").await;
    host.until_step(&active, "say enough").await;
    for run in &sent[..5] {
        is_steered(&host, run, &active).await;
    }
    for run in &sent[5..] {
        assert_eq!(host.run(run).await["status"], "queued", "it waits on");
    }
    host.take("set end yes").await;
    let ended = host.ended(&active).await.completed();
    assert_eq!(ended.outcomes()[2..4], [json!(message_texts(0..2)), json!(message_texts(2..5))], "{ended}");
    assert_eq!(steering_texts(&ended), sent[..5].iter().collect::<Vec<_>>(), "{ended}");
    let mut order = vec![ended];
    for (n, run) in sent.iter().enumerate().skip(5) {
        let own = host.ended(run).await.completed();
        assert_eq!(own.outcomes(), [json!(n.to_string())], "{own}");
        order.push(own);
    }
    in_order(&order);
    // All of it was said in the conversation.
    let transcript = host.ended(&host.send_in("c", "history").await).await.completed().outcomes()[0].to_string();
    for n in 0..8 {
        assert_eq!(transcript.matches(&format!("\"say {n}\"")).count(), 1, "{n}: {transcript}");
    }
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_pull_waits_for_the_first_and_not_for_ever() {
    let host = family("park_after_ms = 1000", "", "");
    for (conversation, limit) in [("memory", 900_u64), ("parked", 600_000)] {
        let parks = usize::from(limit > 1_000);
        let active = host.send_in(conversation, &format!("say up; pull 10 {limit}; say over; await {conversation}")).await;
        host.until_step(&active, "say up").await;
        if parks == 1 {
            let waits = host.until_status(&active, "waiting").await;
            assert_eq!(waits["status_reason"], "steering");
            host.until_ready(|ready| ready["parked_runs"] == 1 && ready["live_runs"] == 0).await;
        }
        let began = Instant::now();
        let run = host.send_in(conversation, "say hello").await;
        host.until_step(&active, "say over").await;
        assert!(began.elapsed() < PATIENCE / 2, "{:?}", began.elapsed());
        is_steered(&host, &run, &active).await;
        host.take(&format!("set {conversation} yes")).await;
        let ended = host.ended(&active).await.completed();
        assert_eq!(ended.outcomes()[1], json!(["say hello"]), "{ended}");
        assert_eq!((ended.statuses("steering").len(), ended.statuses("woken").len()), (parks, parks), "{ended}");
    }
    // No message comes: in memory, parked, and for a run without a conversation.
    for (wait, parks) in [(400_u64, 0), (3_000, 1)] {
        let began = Instant::now();
        let ended = host.ended(&host.send_in(&format!("calm{wait}"), &format!("pull 10 {wait}")).await).await.completed();
        assert_eq!((&ended.outcomes()[0], ended.statuses("steering").len()), (&json!([]), parks), "{ended}");
        assert!(began.elapsed() >= Duration::from_millis(wait), "{:?}", began.elapsed());
    }
    for steps in ["pull 0 0", "pull 101 0", "pull 4294967295 0"] {
        let ended = host.ended(&host.send_in("bad", steps).await).await.completed();
        assert_eq!(text(&ended.outcomes()[0], "error"), "invalid_argument", "{ended}");
    }
    let nowhere = host.take("pull 1 0; start default [pull 1 0]; all 60000; events 0").await;
    let outcomes = nowhere.outcomes();
    assert_eq!(text(&outcomes[0], "error"), "unauthorized", "it has no conversation: {nowhere}");
    assert_eq!(text(&outcomes[3]["outcomes"][0], "error"), "unauthorized", "{nowhere}");
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn behind_a_runner_that_takes_no_input_messages_wait_as_ever() {
    let more = "[[bindings]]\nid = \"narrow\"\nrunner = \"plugin:test/family/narrow\"\nmatch = { event_type = \"test.narrow\" }\n\
                [[bindings]]\nid = \"deaf\"\nrunner = \"plugin:test/family/default\"\nmatch = { event_type = \"test.deaf\" }\n\
                resources = { steering = false }\n";
    let host = family("steering_queue = 3\nconversation_queue = 5", "match = { event_type = \"message.received\" }", more);
    for kind in ["narrow", "deaf"] {
        let send = async |steps: &str| {
            let mut event = message(Some(kind), steps);
            event["event_type"] = format!("test.{kind}").into();
            runs(&host, &event).await.remove(0)
        };
        let active = send("say up; await go; pull 10 0; say over").await;
        host.until_step(&active, "say up").await;
        let mut behind = Vec::new();
        for n in 0..5 {
            behind.push(send(&format!("say {n}")).await);
        }
        // The limit of conversations holds here.
        let (status, answer) = post(&host, &{
            let mut event = message(Some(kind), "say too many");
            event["event_type"] = format!("test.{kind}").into();
            event
        })
        .await;
        assert_eq!((status, text(&answer, "code")), (429, "queue_full"), "{answer}");
        let mut go = message(None, "set go yes");
        go["event_type"] = format!("test.{kind}").into();
        host.ended(&runs(&host, &go).await[0]).await.completed();
        let ended = host.ended(&active).await.completed();
        assert_eq!(text(&ended.outcomes()[2], "error"), "unauthorized", "{kind}: {ended}");
        let mut order = vec![ended];
        for (n, run) in behind.iter().enumerate() {
            let own = host.ended(run).await.completed();
            assert_eq!(own.outcomes(), [json!(n.to_string())], "{own}");
            order.push(own);
        }
        in_order(&order);
    }
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn messages_for_another_binding_are_not_taken() {
    let more = "[[bindings]]\nid = \"other\"\npriority = -1\nrunner = \"plugin:test/family/narrow\"\nmatch = { conversation = \"both.*\" }\n";
    let host = family("park_after_ms = 300", "", more);
    // In memory, and parked: who waits with somebody else's messages behind it does not wake for them.
    for (conversation, wait) in [("both-memory", 250), ("both-parked", 4_000)] {
        let first =
            runs(&host, &message(Some(conversation), &format!("say up; pull 10 {wait}; say over; sleep 200; pull 10 0"))).await;
        let [active, behind] = first.as_slice() else { panic!("two bindings: {first:?}") };
        host.until_step(active, "say up").await;
        if wait == 250 {
            host.until_step(active, "say over").await;
        } else {
            host.until_status(active, "waiting").await;
            tokio::time::sleep(Duration::from_millis(1_000)).await;
            let woken = host.events(active).await.iter().filter(|event| event["data"]["reason"] == "woken").count();
            assert!(woken <= 1, "it was woken {woken} times in a second for what it is not given");
        }
        let second = runs(&host, &message(Some(conversation), "say more")).await;
        let ended = host.ended(active).await.completed();
        let pulled = [&ended.outcomes()[1], &ended.outcomes()[4]].map(|pulled| pulled.as_array().unwrap().len());
        let is_taken = steering_texts(&ended) == [&second[0]];
        assert!(is_taken || steering_texts(&ended).is_empty() && wait == 250, "{ended}");
        assert_eq!(pulled.iter().sum::<usize>(), usize::from(is_taken), "{ended}");
        let others = [host.ended(behind).await, host.ended(&second[1]).await.completed()];
        assert_eq!(others[1].outcomes(), ["more"], "{}", others[1]);
        assert!(others.iter().all(|other| other.run["binding_id"] == "other"), "{}", others[0]);
        in_order(&others);
        let own = host.ended(&second[0]).await.completed();
        assert_eq!(own.of("run.completed")[0]["finish_reason"] == "steered", is_taken, "{own}");
    }
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_run_cancelled_before_the_pull_is_not_taken() {
    let host = family("", "", "");
    let active = host.send_in("c", "say up; await go; pull 10 0; say over; await end").await;
    host.until_step(&active, "say up").await;
    let sent = waiting(&host, "c", message_texts(0..4)).await;
    host.cancel(&sent[1]).await;
    host.cancel(&sent[3]).await;
    // A pull that returns at once.
    host.take("set go yes").await;
    host.until_step(&active, "say over").await;
    for n in [1, 3] {
        let ended = host.ended(&sent[n]).await;
        assert_eq!((&ended.run["status"], ended.message_texts().len()), (&json!("cancelled"), 0), "{ended}");
    }
    // The runs of taken messages have ended: there is nothing to cancel.
    for n in [0, 2] {
        is_steered(&host, &sent[n], &active).await;
        assert_eq!(host.try_cancel(&sent[n]).await, 409);
    }
    host.take("set end yes").await;
    let ended = host.ended(&active).await.completed();
    assert_eq!(ended.outcomes()[2], json!(["say 0", "say 2"]), "{ended}");
    host.check();
}

/// A run that is cancelled during a pull has the messages in its record, and the others get runs of their own.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_run_cancelled_during_a_pull_loses_no_message() {
    let host = Arc::new(family("park_after_ms = 200", "", ""));
    let mut random = Random(5);
    let mut all = Vec::new();
    for round in 0..40_u64 {
        let (host, pause, wait) = (Arc::clone(&host), random.below(120), [100, 400][random.below(2) as usize]);
        all.push(tokio::spawn(async move {
            let conversation = format!("c{round}");
            let active =
                host.send_in(&conversation, &format!("say up; pull 1 {wait}; pull 1 {wait}; pull 1 {wait}; await never")).await;
            host.until_step(&active, "say up").await;
            let mut sent = Vec::new();
            for n in 0..4 {
                sent.push(host.send_in(&conversation, &format!("say {n}")).await);
            }
            tokio::time::sleep(Duration::from_millis(pause)).await;
            host.cancel(&active).await;
            let ended = host.ended(&active).await;
            let given: Vec<String> = steering_texts(&ended).into_iter().map(str::to_owned).collect();
            assert_eq!(given, sent[..given.len()], "{ended}");
            for (n, run) in sent.iter().enumerate() {
                if n < given.len() {
                    is_steered(&host, run, &active).await;
                    continue;
                }
                // The message has a run of its own, or was taken by such a run.
                let own = host.ended(run).await.completed();
                assert!(own.of("run.completed")[0]["finish_reason"] == "stop", "{own}");
                assert_eq!(own.outcomes(), [json!(n.to_string())], "{own}");
            }
        }));
    }
    for one in all {
        one.await.unwrap();
    }
    Arc::into_inner(host).unwrap().check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_flood_is_stopped_and_what_was_accepted_is_given() {
    let mut host = family("", "", "");
    for dies in [false, true] {
        let conversation = format!("c{dies}");
        let steps = format!("say up; await go-{dies}; pull 100 0; say over; await end-{dies}; pull 100 0");
        let active = host.send_in(&conversation, &steps).await;
        host.until_step(&active, "say up").await;
        let mut sent = Vec::new();
        for n in 0..100 {
            sent.push(host.send_in(&conversation, &format!("say {n}")).await);
        }
        for n in 100..103 {
            let (status, answer) = post(&host, &message(Some(&conversation), &format!("say {n}"))).await;
            assert_eq!((status, text(&answer, "code")), (429, "queue_full"), "{answer}");
        }
        // Others are not concerned.
        host.take("say elsewhere").await;
        if dies {
            host.kill_and_revive();
            let (status, answer) = post(&host, &message(Some(&conversation), "say again")).await;
            assert_eq!((status, text(&answer, "code")), (429, "queue_full"), "{answer}");
        }
        host.take(&format!("set go-{dies} yes")).await;
        host.until_step(&active, "say over").await;
        // The limit has room again.
        let late = host.send_in(&conversation, "say late").await;
        host.take(&format!("set end-{dies} yes")).await;
        let ended = host.ended(&active).await.completed();
        assert_eq!(
            (&ended.outcomes()[2], &ended.outcomes()[5]),
            (&json!(message_texts(0..100)), &json!(["say late"])),
            "{ended}"
        );
        assert_eq!(steering_texts(&ended).len(), 101, "{ended}");
        for run in sent.iter().chain([&late]) {
            is_steered(&host, run, &active).await;
        }
    }
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn large_messages_are_given_a_few_at_a_time() {
    for durability in ["resume", "retry"] {
        let mut host = family("http_body_bytes = 1048576", &format!("durability = \"{durability}\""), "");
        let pulls = "pull 100 0; ".repeat(8);
        let active = host.send_in("c", &format!("attempt; await go; {pulls} say over; await end; {pulls} say done")).await;
        host.until_step(&active, "attempt").await;
        let large = |n: usize, bytes: usize| format!("say {n} {}", "x".repeat(bytes));
        let sizes = [200_000, 200_000, 200_000, 10, 700_000, 10, 300_000, 300_000];
        let sent = waiting(&host, "c", sizes.iter().enumerate().map(|(n, bytes)| large(n, *bytes))).await;
        host.take("set go yes").await;
        host.until_step(&active, "say over").await;
        host.kill_and_revive();
        host.take("set end yes").await;
        let ended = host.ended(&active).await.completed();
        let outcomes: Vec<Value> = serde_json::from_str(ended.message_texts().last().unwrap()).unwrap();
        let pulled: Vec<_> = outcomes.iter().filter_map(Value::as_array).filter(|pulled| !pulled.is_empty()).collect();
        assert!(pulled.len() >= 5, "they were given at once: {ended}");
        let bytes = |given: &Value| {
            given.as_str().unwrap().rsplit("… ").next().unwrap().trim_end_matches(" bytes").parse::<usize>().unwrap_or(16)
        };
        for pulled in &pulled {
            let sum: usize = pulled.iter().map(bytes).sum();
            assert!(pulled.len() == 1 || sum <= 512 * 1024, "{pulled:?}");
        }
        let order: Vec<_> = pulled.into_iter().flatten().map(|given| given.as_str().unwrap()[..5].to_owned()).collect();
        assert_eq!(order, message_texts(0..sizes.len()), "{ended}");
        for run in &sent {
            is_steered(&host, run, &active).await;
        }
        host.check();
    }
}

/// The attachments of a message go to the run that takes it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn attachments_are_readable_by_the_run_that_takes_their_message() {
    let mut host = family("", "", "");
    let active = host.send_in("c", "say up; await go; pull 10 0; read-pulled; await end; read-pulled").await;
    host.until_step(&active, "say up").await;
    let url = format!("{}/api/v1/artifacts?name=a.txt", *host.urls().borrow());
    let upload = reqwest::Client::new().post(url).header("content-type", "text/plain").body("look at this").send().await.unwrap();
    assert_eq!(upload.status(), 201);
    let artifact: Value = upload.json().await.unwrap();
    let id =
        [&artifact["artifact_id"], &artifact["artifact"]["artifact_id"]].into_iter().find_map(Value::as_str).unwrap().to_owned();
    let mut event = message(Some("c"), "see");
    event["input"]["attachments"] = json!([{ "artifact_id": id, "media_type": "text/plain" }]);
    let run = runs(&host, &event).await.remove(0);
    host.until_status(&run, "queued").await;
    host.take("set go yes").await;
    host.until_step(&active, "read-pulled").await;
    host.kill_and_revive();
    host.take("set end yes").await;
    let ended = host.ended(&active).await.completed();
    assert_eq!((&ended.outcomes()[3], &ended.outcomes()[5]), (&json!(["look at this"]), &json!(["look at this"])), "{ended}");
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_second_attempt_receives_the_inputs_of_the_first() {
    let mut host = family("", "durability = \"retry\"", "");
    let active = host.send_in("c", "attempt; await go; pull 2 0; say pulled; await end; pull 10 0; say done").await;
    host.until_step(&active, "attempt").await;
    let sent = waiting(&host, "c", message_texts(0..3)).await;
    host.take("set go yes").await;
    host.until_step(&active, "say pulled").await;
    for attempt in [2, 3] {
        host.kill_and_revive();
        let pulled = |event: &Value| event["type"] == "x.step" && event["data"]["outcome"] == attempt;
        host.until(&active, pulled).await;
        let began = Instant::now();
        loop {
            let times = host.events(&active).await.iter().filter(|event| event["data"]["step"] == "say pulled").count();
            if times as u64 == attempt {
                break;
            }
            assert!(began.elapsed() < PATIENCE, "{times}");
        }
    }
    host.take("set end yes").await;
    let ended = host.ended(&active).await.completed();
    let outcomes: Vec<Value> = serde_json::from_str(ended.message_texts().last().unwrap()).unwrap();
    assert_eq!(
        (&outcomes[0], &outcomes[2], &outcomes[5]),
        (&json!(3), &json!(message_texts(0..2)), &json!(message_texts(2..3))),
        "{ended}"
    );
    assert_eq!(steering_texts(&ended), sent.iter().collect::<Vec<_>>(), "each was taken once: {ended}");
    for run in &sent {
        is_steered(&host, run, &active).await;
    }
    host.check();
}

/// Sends a message until it is accepted, whatever becomes of the host, and gives its run.
async fn deliver(http: &reqwest::Client, urls: &watch::Receiver<String>, conversation: &str, n: usize, text: &str) -> String {
    let began = Instant::now();
    loop {
        let url = format!("{}/api/v1/events", *urls.borrow());
        let request =
            http.post(url).header("idempotency-key", format!("{conversation}-{n}")).json(&message(Some(conversation), text));
        if let Ok(answer) = request.send().await {
            let status = answer.status().as_u16();
            match answer.json::<Value>().await {
                Ok(answer) if status == 202 => {
                    let [run] = answer["runs"].as_array().unwrap().as_slice() else { panic!("one run: {answer}") };
                    return run["run_id"].as_str().unwrap().to_owned();
                }
                Ok(answer) => assert!([429, 503].contains(&status), "{status}: {answer}"),
                Err(_) => {}
            }
        }
        assert!(began.elapsed() < PATIENCE, "{n} is not accepted");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The plug is pulled all the time while messages come: each is given to one run, or runs by itself, in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_message_is_given_once_whenever_its_host_was_killed() {
    const ROUNDS: u64 = 60;
    const CONVERSATIONS: [&str; 3] = ["a", "b", "c"];
    let mut host = family("park_after_ms = 60", "", "");
    let over = Arc::new(AtomicBool::new(false));
    let senders = CONVERSATIONS.map(|conversation| {
        let (urls, over) = (host.urls(), Arc::clone(&over));
        tokio::spawn(async move {
            let http = reqwest::Client::new();
            let mut random = Random(conversation.len() as u64 + u64::from(conversation.as_bytes()[0]));
            let mut sent = Vec::new();
            while !over.load(Ordering::Relaxed) {
                let n = sent.len();
                let steps = format!("say {n}; pull 3 150; sleep 30; pull 3 400; say end; pull 2 0");
                sent.push(deliver(&http, &urls, conversation, n, &steps).await);
                tokio::time::sleep(Duration::from_millis(40 + random.below(120))).await;
            }
            sent
        })
    });
    let mut random = Random(20_260_203);
    for _ in 0..ROUNDS {
        tokio::time::sleep(Duration::from_millis(30 + random.below(600))).await;
        host.kill();
        if random.below(5) == 0 {
            host.stillborn(Duration::from_millis(random.below(400))).await;
        }
        host.revive();
    }
    over.store(true, Ordering::Relaxed);
    let (mut steered, mut own, mut resumes, mut parked) = (0, 0, 0, 0);
    for (conversation, sender) in CONVERSATIONS.into_iter().zip(senders) {
        let sent = sender.await.unwrap();
        let distinct: std::collections::BTreeSet<_> = sent.iter().collect();
        assert_eq!(distinct.len(), sent.len(), "a message was accepted as another");
        let mut into = BTreeMap::<String, Vec<usize>>::new();
        let mut order = Vec::new();
        let mut lived = Vec::new();
        for (n, run) in sent.iter().enumerate() {
            let ended = host.ended(run).await.completed();
            let end = ended.of("run.completed")[0].clone();
            if end["finish_reason"] == "steered" {
                assert_eq!(ended.events.len(), 1, "its guest never began: {ended}");
                into.entry(text(&end["metadata"], "steered_into").to_owned()).or_default().push(n);
                steered += 1;
                continue;
            }
            own += 1;
            resumes += ended.resumes();
            parked += ended.statuses("steering").len();
            order.push(n);
            let outcomes = ended.outcomes();
            let given = [1, 3, 5].into_iter().flat_map(|step| outcomes[step].as_array().unwrap().clone());
            let given: Vec<usize> =
                given.map(|text| text.as_str().unwrap()["say ".len()..].split(';').next().unwrap().parse().unwrap()).collect();
            let names: Vec<_> = given.iter().map(|n| sent[*n].as_str()).collect();
            assert_eq!(steering_texts(&ended), names, "{ended}");
            order.extend(&given);
            lived.push((run.clone(), given, ended));
        }
        assert_eq!(order, (0..sent.len()).collect::<Vec<_>>(), "{conversation}: lost, doubled, or out of order");
        for (run, given, ended) in &lived {
            assert_eq!(into.remove(run).unwrap_or_default(), *given, "{ended}");
        }
        assert!(into.is_empty(), "given to nobody: {into:?}");
        in_order(lived.iter().map(|(_, _, ended)| ended));
    }
    println!("{ROUNDS} kills: {own} runs, {steered} messages given to them, {resumes} resumes, {parked} times parked");
    assert!(steered >= 50 && resumes >= 50 && parked >= 10, "they were hardly disturbed");
    host.until_ready(|ready| ready["live_runs"] == 0 && ready["parked_runs"] == 0 && ready["waiting_runs"] == 0).await;
    host.check();
}
