//! Imports the state and declares nothing.

use agent_host_sdk::{Completion, Context, Failure, Manifest, Runner, StateScope};

struct Undeclared;

impl Runner for Undeclared {
    fn manifest() -> Manifest {
        Manifest::new("test", "manifest-undeclared")
    }

    fn run(ctx: Context) -> Result<Completion, Failure> {
        let state = ctx.state(StateScope::Conversation);
        let seen: u64 = state.get("seen")?.unwrap_or(0);
        state.set("seen", &(seen + 1))?;
        ctx.reply(&format!("ok {seen}"))?;
        Ok(Completion::stop())
    }
}

agent_host_sdk::export!(Undeclared);
