//! Traps when it is asked what it is.

use agent_host_sdk::{Completion, Context, Failure, Manifest, Runner};

struct Traps;

impl Runner for Traps {
    fn manifest() -> Manifest {
        // On wasm: the instruction `unreachable`.
        std::process::abort()
    }

    fn run(_: Context) -> Result<Completion, Failure> {
        Ok(Completion::stop())
    }
}

agent_host_sdk::export!(Traps);
