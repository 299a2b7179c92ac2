//! The plug is pulled at hundreds of moments while an agent works with a model and with tools: it never shows.

use std::{
    env,
    time::{Duration, Instant},
};

use agent_host_tests::world::PATIENCE;
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::{
    model::ModelServer,
    support::{Host, Random, follow, lines_of, now},
    undisturbed::{Call, Counted, Hit, agent, calls, conversations_go_on, is_as_undisturbed, is_streamed},
};

/// Rounds, in each of which the host dies once.
const ROUNDS: u64 = 40;
/// Conversations that begin in each.
const AT_ONCE: u64 = 8;
/// A host lives at least so long, and up to so much longer, in ms: about as long as a run takes.
const LIVES: (u64, u64) = (60, 700);

fn number(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |text| text.parse().unwrap())
}

/// A kill: it happened between these two moments.
type Kill = (u64, u64);

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_agent_does_not_notice_that_its_host_was_killed() {
    let (seed, rounds) = (number("DURABILITY_SEED", 20_260_101), number("DURABILITY_ROUNDS", ROUNDS));
    println!("DURABILITY_SEED={seed} DURABILITY_ROUNDS={rounds}");
    let mut random = Random(seed);
    let model = ModelServer::start().await;
    // Beside the directories of the host: the world.
    let world = tempfile::tempdir().unwrap();
    let count_file = world.path().join("counted");
    let mut host = Host::start(&["local_agent"], &agent(&model, &count_file));

    // The reference: a run without a kill.
    let calm = host.send_in("calm", "task:calm").await;
    let calm = host.ended(&calm).await;
    let counted = Counted::of(&count_file);
    assert_eq!(is_as_undisturbed(&calm, "calm", &model, &counted, |_| 0), Hit::default());
    assert_eq!(calm.message_texts().last().unwrap().matches("calm/").count(), 3, "all tools answered: {calm}");

    let mut kills: Vec<Kill> = Vec::new();
    let mut followers: Vec<(String, String, JoinHandle<Vec<Value>>)> = Vec::new();
    for round in 0..rounds {
        for n in 0..AT_ONCE {
            let task = format!("r{round}-c{n}");
            // Some conversations go on, so that runs wait in line when the host dies.
            let conversation = if n < 2 { format!("long-{}-{n}", round / 4) } else { task.clone() };
            let run = host.send_in(&conversation, &format!("task:{task}")).await;
            let follower = tokio::spawn(follow(host.urls(), run.clone()));
            followers.push((task, run, follower));
        }
        tokio::time::sleep(Duration::from_millis(LIVES.0 + random.below(LIVES.1))).await;
        let before = now();
        host.kill();
        kills.push((before, now()));
        if random.below(3) == 0 {
            // The next kill comes before or soon after the start.
            let began = Instant::now();
            host.stillborn(Duration::from_millis(random.below(500))).await;
            kills.push((now() - began.elapsed().as_millis() as u64, now()));
        }
        host.revive();
    }

    let mut ended = Vec::new();
    for (task, run, follower) in followers {
        let seen = tokio::time::timeout(PATIENCE, follower).await.unwrap_or_else(|_| panic!("{task} does not end")).unwrap();
        let found = host.ended(&run).await;
        assert!(seen == found.events, "a follower of {task} saw something else:\n{}\nthan is there:\n{found}", lines_of(&seen));
        ended.push((task, found));
    }
    let counted = Counted::of(&count_file);
    let (mut in_doubt, mut again) = (0, 0);
    for (task, ended) in &ended {
        let found = is_as_undisturbed(ended, task, &model, &counted, |call| hit(&kills, call));
        in_doubt += found.in_doubt;
        again += found.again;
    }
    let points: usize = ended.iter().map(|(_, ended)| ended.resumes()).sum();
    println!(
        "{} kills hit {points} times a run: {in_doubt} tool calls were in doubt, {again} calls were made again",
        kills.len()
    );
    if rounds >= ROUNDS {
        assert!(points >= 150 && in_doubt > 0 && again > 0, "the runs were hardly disturbed");
    }
    conversations_go_on(&ended, &model);
    host.check();
}

/// A model that answers otherwise when it is asked again: two answers are never mixed into one.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_answer_that_cannot_be_had_again_is_not_made_up() {
    let model = ModelServer::start().await;
    let world = tempfile::tempdir().unwrap();
    let mut host = Host::start(&["local_agent"], &agent(&model, &world.path().join("counted")));
    // The answers begin alike: who has been given only that much does not notice.
    let early = host.send("task:fickle-early").await;
    host.until(&early, |event| event["type"] == "message.delta").await;
    host.kill_and_revive();
    let ended = host.ended(&early).await.completed();
    assert_eq!(model.request_count("fickle-early", 0), 2, "{ended}");
    assert_eq!(ended.message_texts()[0].matches("But then, ").count(), 1, "{ended}");
    is_streamed(&ended);

    let late = host.send("task:fickle-late").await;
    let parted = |event: &Value| event["type"] == "message.delta" && event["data"].to_string().contains("So it is");
    host.until(&late, parted).await;
    host.kill_and_revive();
    let ended = host.ended(&late).await;
    assert_eq!(ended.run["status"], "failed", "{ended}");
    assert_eq!(ended.run["failure"]["retryable"], true, "{ended}");
    let [call] = &*calls(&ended, "model") else { panic!("{ended}") };
    assert_eq!(call.done["error"]["category"], "response_interrupted", "{ended}");
    assert_eq!(ended.of("message.completed").len(), 0, "{ended}");
    let streamed: String = ended.of("message.delta").iter().map(|delta| delta["chunk"]["content"].as_str().unwrap()).collect();
    assert_eq!(streamed.matches("But then, ").count(), 1, "{ended}");
    assert_eq!(model.request_count("fickle-late", 0), 2, "{ended}");
    host.check();
}

/// The number of kills between the start of a call and its end. The outcome of an effect at that time is unknown to the
/// host.
fn hit(kills: &[Kill], call: &Call<'_>) -> usize {
    kills.iter().filter(|(before, after)| call.began <= *after && *before <= call.ended).count()
}
