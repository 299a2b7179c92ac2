//! Another version of `plugin:test/steps/default`, which takes no steps.

use agent_host_sdk::{Completion, Context, Failure, Manifest, Runner};

struct Next;

impl Runner for Next {
    fn manifest() -> Manifest {
        Manifest::new("test", "steps").version("2.0.0").label("en", "Steps, the next version")
    }

    fn run(ctx: Context) -> Result<Completion, Failure> {
        ctx.reply("another version")?;
        Ok(Completion::stop())
    }
}

agent_host_sdk::export!(Next);
