//! An agent with a model and tools, and what its runs say where nothing was lost, doubled or mixed up.

use std::{collections::BTreeMap, fs, path::Path};

use serde_json::{Value, json};

use crate::{
    model::{IN_DOUBT, ModelServer, script},
    support::{EndedRun, in_order},
};

/// An agent with a model and tools that are counted in `counted`.
pub fn agent(model: &ModelServer, counted: &Path) -> String {
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
match = {{ event_type = "message\\..*" }}
# Each message has a run of its own: none is taken as input by the run before it.
resources = {{ tool_names = ["t__*"], steering = false }}
max_attempts = 100
"#,
        model.url,
        env!("CARGO_BIN_EXE_mcp-server"),
    )
}

/// Runs of a conversation come one after the other, and each knows those before it, once.
pub fn conversations_go_on(ended: &[(String, EndedRun)], model: &ModelServer) {
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
pub struct Counted(BTreeMap<String, usize>);

impl Counted {
    pub fn of(file: &Path) -> Self {
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

/// A call to a model or a tool, from its two facts.
pub struct Call<'a> {
    pub began: u64,
    pub ended: u64,
    pub started: &'a Value,
    pub done: &'a Value,
}

/// The calls of one kind, in the order in which they began: each has one beginning and one end.
pub fn calls<'a>(ended: &'a EndedRun, kind: &str) -> Vec<Call<'a>> {
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

/// Calls that were interrupted.
#[derive(Debug, PartialEq, Default)]
pub struct Hit {
    /// Effects with an unknown outcome.
    pub in_doubt: usize,
    /// Repeated effects.
    pub again: usize,
}

/// Holds a run against what an undisturbed one does. `hits` says how often a call may have been interrupted.
pub fn is_as_undisturbed(
    ended: &EndedRun,
    task: &str,
    model: &ModelServer,
    counted: &Counted,
    hits: impl Fn(&Call<'_>) -> usize,
) -> Hit {
    let mut again = 0;
    assert_eq!(ended.run["status"], "completed", "{task}: {ended}");

    // The effects of the tools.
    let tools = calls(ended, "tool");
    let mut results = Vec::new();
    for call in &tools {
        let name = call.started["tool_name"].as_str().unwrap();
        let note = call.started["parameters"]["note"].as_str().unwrap();
        let (times, hits) = (counted.times(name, note), hits(call));
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
        assert!((1..=1 + hits(call)).contains(&asked), "{task}: step {step} was asked {asked} times: {ended}");
        assert!(call.done.get("error").is_none(), "{task}: {ended}");
        again += asked - 1;
    }
    assert_eq!(calls(ended, "model").len(), 3, "{task}: {ended}");
    assert_eq!(model.request_count(task, 3), 0, "{task}");

    is_streamed(ended);
    Hit { in_doubt, again }
}

/// Clients that saw a message stream received each part exactly once.
pub fn is_streamed(ended: &EndedRun) {
    for message in ended.of("message.completed") {
        let id = &message["message_id"];
        let deltas = ended.of("message.delta").into_iter().filter(|delta| delta["message_id"] == *id);
        let streamed: String = deltas.map(|delta| delta["chunk"]["content"].as_str().unwrap()).collect();
        assert_eq!(streamed, message["message"]["content"].as_str().unwrap(), "{ended}");
    }
}
