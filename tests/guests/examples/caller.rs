//! `plugin:test/caller/default` and `plugin:test/caller/second` do what a script in their event says, for tests that
//! read as scripts. See `script/mod.rs`.

mod script;

use agent_host_sdk::{Completion, Context, Failure, Manifest, Runner};

struct Caller;
struct Second;

impl Runner for Caller {
    fn manifest() -> Manifest {
        script::manifest("caller")
    }

    fn run(ctx: Context) -> Result<Completion, Failure> {
        script::run(ctx)
    }
}

impl Runner for Second {
    const NAME: &'static str = "second";

    fn manifest() -> Manifest {
        script::manifest("caller")
    }

    fn run(ctx: Context) -> Result<Completion, Failure> {
        script::run(ctx)
    }
}

agent_host_sdk::export!(Caller, Second);
