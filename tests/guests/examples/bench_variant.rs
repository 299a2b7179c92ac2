//! `plugin:test/bench-variant-0000/default` answers briefly. `cargo xtask bench` sets the digits in the component
//! file, to have as many different plugins as it needs.

use agent_host_sdk::{Completion, Context, Failure, Manifest, Runner, StateScope};

/// Read from memory, so that the file contains the text in one piece.
static NAME: &str = "bench-variant-0000";

struct Variant;

impl Runner for Variant {
    fn manifest() -> Manifest {
        Manifest::new("test", std::hint::black_box(NAME)).label("en", "Variant").state([StateScope::Conversation])
    }

    fn run(ctx: Context) -> Result<Completion, Failure> {
        let state = ctx.state(StateScope::Conversation);
        let turns = state.get::<u64>("turns")?.unwrap_or(0) + 1;
        state.set("turns", &turns)?;
        ctx.reply(&format!("turn {turns}: {}", ctx.text()))?;
        Ok(Completion::stop())
    }
}

agent_host_sdk::export!(Variant);
