//! Has a name that must not get into an id, a URL or a terminal.

use agent_host_sdk::{Completion, Context, Failure, Manifest, Runner};

struct BadName;

impl Runner for BadName {
    const NAME: &'static str = "de fault/../\u{1b}[31mx";

    fn manifest() -> Manifest {
        Manifest::new("test", "manifest-bad-name")
    }

    fn run(_: Context) -> Result<Completion, Failure> {
        Ok(Completion::stop())
    }
}

agent_host_sdk::export!(BadName);
