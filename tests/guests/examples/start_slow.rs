//! A guest whose instance takes long to begin: the start of its module computes.

use agent_host_sdk::{Completion, Context, Failure, Manifest, Runner};

/// Turns of a loop: some tenths of a second.
const TURNS: u64 = 500_000_000;

extern "C" fn start() {
    for turn in 0..TURNS {
        std::hint::black_box(turn);
    }
}

#[used]
#[allow(unsafe_code, reason = "a place in the module")]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

struct Slow;

impl Runner for Slow {
    fn manifest() -> Manifest {
        Manifest::new("test", "start-slow").label("en", "Slow")
    }

    fn run(ctx: Context) -> Result<Completion, Failure> {
        ctx.reply("ok begun")?;
        Ok(Completion::stop())
    }
}

agent_host_sdk::export!(Slow);
