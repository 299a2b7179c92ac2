//! A plugin that never returns its manifests: the host must not wait for it.

use agent_host_sdk::{Completion, Context, Failure, Manifest, Runner};

struct Loops;

impl Runner for Loops {
    fn manifest() -> Manifest {
        loop {
            std::hint::black_box(());
        }
    }

    fn run(_: Context) -> Result<Completion, Failure> {
        Ok(Completion::stop())
    }
}

agent_host_sdk::export!(Loops);
