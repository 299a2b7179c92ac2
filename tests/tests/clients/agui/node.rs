//! The stock client of npm, in the version of today and in the one that CopilotKit and assistant-ui bring along.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use agent_host_tests::npm;
use serde_json::Value;
use tokio::task::block_in_place;

/// All scenarios of a call; a client that hangs is ended.
const PATIENCE: Duration = Duration::from_secs(240);

/// The version of the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Client {
    /// 1.0.0.
    Today,
    /// 0.0.59, which knows nothing of 1.0 and throws on what it does not know.
    Old,
}

impl Client {
    fn modules(self) -> PathBuf {
        match self {
            Self::Today => npm::packages("ag-ui", &["@ag-ui/client@1.0.0", "@ag-ui/core@1.0.0", "@ag-ui/proto@1.0.0"]),
            Self::Old => npm::packages("ag-ui-old", &["@ag-ui/client@0.0.59", "@ag-ui/core@0.0.59"]),
        }
    }
}

/// Plays scenarios one after the other in one process, and gives what came of each.
pub fn play(client: Client, scenarios: &[Value]) -> Vec<PlayedScenario> {
    let dir = tempfile::tempdir().unwrap();
    let (input_file, output, log) = (dir.path().join("told.json"), dir.path().join("output.json"), dir.path().join("log"));
    fs::write(&input_file, serde_json::to_vec(scenarios).unwrap()).unwrap();
    let out = fs::File::create(&log).unwrap();
    let harness = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/agui/harness.mjs");
    block_in_place(|| {
        let mut node = Command::new("node");
        node.arg(harness).arg(client.modules()).arg(&input_file).arg(&output);
        node.stdin(Stdio::null()).stderr(out.try_clone().unwrap()).stdout(out);
        let mut node = node.spawn().expect("install Node.js 20 or newer (https://nodejs.org)");
        let began = Instant::now();
        let status = loop {
            if let Some(status) = node.try_wait().unwrap() {
                break status;
            }
            if began.elapsed() > PATIENCE {
                let _ = node.kill();
                let _ = node.wait();
                panic!("the client does not come to an end");
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        assert!(status.success(), "the client ended with {status}:\n{}", fs::read_to_string(&log).unwrap());
    });
    let output: Value = serde_json::from_slice(&fs::read(&output).unwrap()).unwrap();
    let played: Vec<_> = output["played"].as_array().unwrap().iter().cloned().map(PlayedScenario).collect();
    assert_eq!(played.len(), scenarios.len());
    played
}

/// The view of a client on a scenario.
pub struct PlayedScenario(pub Value);

impl PlayedScenario {
    pub fn name(&self) -> &str {
        self.0["name"].as_str().unwrap()
    }

    pub fn turns(&self) -> impl Iterator<Item = Turn<'_>> {
        self.0["turns"].as_array().unwrap().iter().map(Turn)
    }

    pub fn turn(&self, number: usize) -> Turn<'_> {
        Turn(&self.0["turns"][number])
    }
}

/// The view of a client on one run.
#[derive(Clone, Copy)]
pub struct Turn<'a>(pub &'a Value);

impl<'a> Turn<'a> {
    pub fn events(&self) -> &'a [Value] {
        self.0["events"].as_array().unwrap()
    }

    pub fn of(&self, kind: &str) -> Vec<&'a Value> {
        self.events().iter().filter(|event| event["type"] == kind).collect()
    }

    pub fn messages(&self) -> &'a [Value] {
        self.0["messages"].as_array().unwrap()
    }

    /// The texts of messages with this role.
    pub fn texts(&self, role: &str) -> Vec<&'a str> {
        let of_role = self.messages().iter().filter(|message| message["role"] == role);
        of_role.filter_map(|message| message["content"].as_str()).filter(|text| !text.is_empty()).collect()
    }

    /// The last text of the assistant, which is JSON.
    #[track_caller]
    pub fn printed(&self) -> Value {
        let texts = self.texts("assistant");
        let last = texts.last().unwrap_or_else(|| panic!("it said nothing: {:#}", self.0));
        serde_json::from_str(last).unwrap_or_else(|error| panic!("{error}: {last}"))
    }

    /// The client took everything without a word, and the run ended once, as it says.
    #[track_caller]
    pub fn ended_without_fault(&self, end: &str) {
        assert_eq!(self.0["error"], Value::Null, "{:#}", self.0);
        assert_eq!(self.0["said"].as_array().unwrap().len(), 0, "{:#}", self.0);
        self.ended(end);
    }

    #[track_caller]
    fn ended(&self, end: &str) {
        let ends = self.events().iter().filter(|event| crate::agui::support::is_terminal(event)).count();
        assert_eq!((ends, &self.events().last().unwrap()["type"]), (1, &Value::from(end)), "{:#}", self.0);
    }
}
