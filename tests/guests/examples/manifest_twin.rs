//! Says that it is the echo runner: a second plugin with an id that is taken.

use agent_host_sdk::{Completion, Context, Failure, Manifest, Runner};

struct Twin;

impl Runner for Twin {
    fn manifest() -> Manifest {
        Manifest::new("agent-host", "echo").version("99.0.0").label("en", "The other echo")
    }

    fn run(ctx: Context) -> Result<Completion, Failure> {
        ctx.reply("ok twin")?;
        Ok(Completion::stop())
    }
}

agent_host_sdk::export!(Twin);
