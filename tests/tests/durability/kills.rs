//! The plug is pulled at hundreds of moments while an agent works with a model and with tools: it never shows.

use std::{
    collections::BTreeMap,
    env, fs,
    path::Path,
    time::{Duration, Instant},
};

use agent_host_tests::world::PATIENCE;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::{
    model::{IN_DOUBT, ModelServer, script},
    support::{EndedRun, Host, Random, follow, in_order, lines_of, now},
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

/// An agent with a model and tools that are counted in `counted`.
fn config(model: &ModelServer, counted: &Path) -> String {
    format!(
        r#"
[[models]]
id = "chat"
provider = "openai"
base_url = "{}"
max_retries = 0

[[mcp_servers]]
id = "t"
command = "{}"
env = {{ COUNT_FILE = {counted:?} }}
start_timeout_ms = 60000

[[bindings]]
id = "agent"
runner = "plugin:agent-host/local-agent/default"
# Each message has a run of its own: none is taken as input by the run before it.
resources = {{ tool_names = ["t__*"], steering = false }}
max_attempts = 100
"#,
        model.url,
        env!("CARGO_BIN_EXE_mcp-server"),
    )
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
    let mut host = Host::start(&["local_agent"], &config(&model, &count_file));

    // The reference: a run without a kill.
    let calm = host.send_in("calm", "task:calm").await;
    let calm = host.ended(&calm).await;
    let counted = Counted::of(&count_file);
    assert_eq!(is_as_undisturbed(&calm, "calm", &model, &counted, &[]), Hit::default());
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
        let found = is_as_undisturbed(ended, task, &model, &counted, &kills);
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
    let mut host = Host::start(&["local_agent"], &config(&model, &world.path().join("counted")));
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

/// Runs of a conversation come one after the other, and each knows those before it, once.
fn conversations_go_on(ended: &[(String, EndedRun)], model: &ModelServer) {
    let mut conversations = BTreeMap::<&str, Vec<_>>::new();
    for (task, ended) in ended {
        conversations.entry(ended.run["conversation_id"].as_str().unwrap()).or_default().push((task, ended));
    }
    assert!(conversations.values().any(|runs| runs.len() > 1));
    for runs in conversations.values() {
        in_order(runs.iter().map(|(_, ended)| *ended));
        for (at, (task, run)) in runs.iter().enumerate() {
            for before in model.before(task) {
                for (n, (other, other_run)) in runs.iter().enumerate() {
                    let times = |text: &str| before.matches(text).count();
                    assert_eq!(times(&format!("\"task:{other}\"")), usize::from(n < at), "{task} remembers of {other}: {before}");
                    let reports = times(&format!("This is the report on {other}. "));
                    // A later message comes after this one in the transcript.
                    let was_said = n < at && other_run.run["finished_at"].as_u64() < run.run["created_at"].as_u64();
                    assert!(reports == 1 || reports == 0 && !was_said, "{task} remembers of {other}: {before}");
                    assert!(reports == 0 || n < at, "{task} knows what is to come: {before}");
                }
            }
        }
    }
}

/// The effects of the tools, by parameters.
struct Counted(BTreeMap<String, usize>);

impl Counted {
    fn of(file: &Path) -> Self {
        let mut counted = BTreeMap::new();
        for line in fs::read_to_string(file).unwrap().lines() {
            *counted.entry(line.to_owned()).or_default() += 1;
        }
        Self(counted)
    }

    fn times(&self, tool: &str, note: &str) -> usize {
        self.0.get(&format!("{} {note}", tool.trim_start_matches("t__"))).copied().unwrap_or(0)
    }
}

/// The number of kills between the start of a call and its end. The outcome of an effect at that time is unknown to the
/// host.
fn hit(kills: &[Kill], call: &Call<'_>) -> usize {
    kills.iter().filter(|(before, after)| call.began <= *after && *before <= call.ended).count()
}

/// A call to a model or a tool, from its two facts.
struct Call<'a> {
    began: u64,
    ended: u64,
    started: &'a Value,
    done: &'a Value,
}

/// The calls of one kind, in the order in which they began: each has one beginning and one end.
fn calls<'a>(ended: &'a EndedRun, kind: &str) -> Vec<Call<'a>> {
    let id = format!("{kind}_call_id");
    let facts = |state: &str| {
        let kind = format!("{kind}.call.{state}");
        ended.events.iter().filter(move |event| event["type"] == kind.as_str()).collect::<Vec<_>>()
    };
    let (started, mut done) = (facts("started"), facts("completed"));
    let calls = started.into_iter().map(|started| {
        let at = done.iter().position(|done| done["data"][&id] == started["data"][&id]);
        let end = done.remove(at.unwrap_or_else(|| panic!("a call has no end, or two beginnings: {started}\n{ended}")));
        assert!(started["sequence"].as_u64() < end["sequence"].as_u64(), "{ended}");
        let at = |event: &Value| event["timestamp"].as_u64().unwrap();
        Call { began: at(started), ended: at(end), started: &started["data"], done: &end["data"] }
    });
    let calls = calls.collect();
    assert!(done.is_empty(), "calls ended twice, or never began: {done:?}\n{ended}");
    calls
}

/// Calls that a kill has hit.
#[derive(Debug, PartialEq, Default)]
struct Hit {
    /// Effects with an unknown outcome.
    in_doubt: usize,
    /// Repeated effects.
    again: usize,
}

/// Holds a run against what an undisturbed one does.
fn is_as_undisturbed(ended: &EndedRun, task: &str, model: &ModelServer, counted: &Counted, kills: &[Kill]) -> Hit {
    let mut again = 0;
    assert_eq!(ended.run["status"], "completed", "{task}: {ended}");

    // The effects of the tools.
    let tools = calls(ended, "tool");
    let mut results = Vec::new();
    for call in &tools {
        let name = call.started["tool_name"].as_str().unwrap();
        let note = call.started["parameters"]["note"].as_str().unwrap();
        let (times, hits) = (counted.times(name, note), hit(kills, call));
        let harmless = name == "t__look";
        let result = if call.done["category"] == "effect_in_doubt" {
            assert!(!harmless && hits > 0, "{task}: {note} is in doubt without a reason: {ended}");
            assert!(times <= 1, "{task}: {note} was done {times} times: {ended}");
            IN_DOUBT.to_owned()
        } else {
            let step_text = format!("{} {note}", name.trim_start_matches("t__"));
            assert_eq!(call.done["result"], json!([{ "text": step_text, "type": "text" }]), "{task}: {ended}");
            assert!(times == 1 || harmless && (1..=1 + hits).contains(&times), "{task}: {note} was done {times} times: {ended}");
            again += times - 1;
            step_text
        };
        results.push((note, result));
    }
    // As the model asked for them: the two that are made at once may begin in any order.
    results.sort_unstable();
    let results: Vec<_> = results.into_iter().map(|(_, result)| result).collect();
    let in_doubt = results.iter().filter(|result| *result == IN_DOUBT).count();
    assert_eq!(results.len(), 3, "{task}: {ended}");

    // The texts of the model.
    let texts: Vec<_> = [0, 1, 3].iter().zip(0..).map(|(known, step)| script(task, step, &results[..*known]).0).collect();
    assert_eq!(ended.message_texts(), texts, "{task}: {ended}");
    for (step, call) in calls(ended, "model").iter().enumerate() {
        let asked = model.request_count(task, step);
        assert!((1..=1 + hit(kills, call)).contains(&asked), "{task}: step {step} was asked {asked} times: {ended}");
        assert!(call.done.get("error").is_none(), "{task}: {ended}");
        again += asked - 1;
    }
    assert_eq!(calls(ended, "model").len(), 3, "{task}: {ended}");
    assert_eq!(model.request_count(task, 3), 0, "{task}");

    is_streamed(ended);
    Hit { in_doubt, again }
}

/// Clients that saw a message stream received each part exactly once.
fn is_streamed(ended: &EndedRun) {
    for message in ended.of("message.completed") {
        let id = &message["message_id"];
        let deltas = ended.of("message.delta").into_iter().filter(|delta| delta["message_id"] == *id);
        let streamed: String = deltas.map(|delta| delta["chunk"]["content"].as_str().unwrap()).collect();
        assert_eq!(streamed, message["message"]["content"].as_str().unwrap(), "{ended}");
    }
}
