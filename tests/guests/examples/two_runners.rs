//! One component with two runners: `plugin:test/two-runners/alpha` and `.../beta`.

use agent_host_sdk::{Completion, Context, Failure, Manifest, Runner, StateScope};

struct Alpha;
struct Beta;

impl Runner for Alpha {
    const NAME: &'static str = "alpha";

    fn manifest() -> Manifest {
        Manifest::new("test", "two-runners").label("en", "Alpha")
    }

    fn run(ctx: Context) -> Result<Completion, Failure> {
        ctx.reply(&format!("alpha: {}", ctx.text()))?;
        Ok(Completion::stop())
    }
}

impl Runner for Beta {
    const NAME: &'static str = "beta";

    fn manifest() -> Manifest {
        Manifest::new("test", "two-runners").label("en", "Beta").state([StateScope::Runner])
    }

    fn run(ctx: Context) -> Result<Completion, Failure> {
        let state = ctx.state(StateScope::Runner);
        let runs = state.get::<u64>("runs")?.unwrap_or(0) + 1;
        state.set("runs", &runs)?;
        ctx.reply(&format!("beta {runs}: {}", ctx.text()))?;
        Ok(Completion::stop())
    }
}

agent_host_sdk::export!(Alpha, Beta);
