//! Has a version that is not semantic.

use agent_host_sdk::{Completion, Context, Failure, Manifest, Runner};

struct BadVersion;

impl Runner for BadVersion {
    fn manifest() -> Manifest {
        Manifest::new("test", "manifest-bad-version").version("latest")
    }

    fn run(_: Context) -> Result<Completion, Failure> {
        Ok(Completion::stop())
    }
}

agent_host_sdk::export!(BadVersion);
