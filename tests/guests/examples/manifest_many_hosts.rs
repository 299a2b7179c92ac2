//! A plugin whose manifest names more hosts than one may: each request would be compared with all of them.

use agent_host_sdk::{Completion, Context, Failure, Manifest, Runner};

struct Many;

impl Runner for Many {
    fn manifest() -> Manifest {
        Manifest::new("test", "many-hosts").label("en", "Many").http_hosts((0..101).map(|n| format!("h{n}.example")))
    }

    fn run(_: Context) -> Result<Completion, Failure> {
        Ok(Completion::stop())
    }
}

agent_host_sdk::export!(Many);
