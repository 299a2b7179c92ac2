//! `plugin:test/stranger/default` does what `plugin:test/caller/default` does, and is another plugin.

mod script;

use agent_host_sdk::{Completion, Context, Failure, Manifest, Runner};

struct Stranger;

impl Runner for Stranger {
    fn manifest() -> Manifest {
        script::manifest("stranger")
    }

    fn run(ctx: Context) -> Result<Completion, Failure> {
        script::run(ctx)
    }
}

agent_host_sdk::export!(Stranger);
