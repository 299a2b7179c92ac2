//! The description of the API is true: other people's programs take it for valid, every answer that a host gives fits it, and
//! a program that reads nothing else finds no fault with the host.

mod agents;
mod conversation;
mod document;
mod fuzzed;
mod imports;
mod mcp;
mod threads;
mod watched;

/// Bindings of the guests `steps`, which takes steps, and `asks`, which asks people.
const GUESTS: &str = r#"
[[bindings]]
id = "steps"
runner = "plugin:test/steps/default"
match = { event_type = "steps" }
durability = "resume"
state = { scopes = ["runner"] }

[[bindings]]
id = "asks"
runner = "plugin:test/asks/default"
match = { event_type = "asks" }
"#;

/// The programs that these tests run.
fn programs() -> std::path::PathBuf {
    agent_host_tests::pip::programs(include_str!("requirements.txt"))
}
