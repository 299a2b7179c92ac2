//! Has metadata that is not JSON.

use agent_host_sdk::{Completion, Context, Failure, Manifest, Runner};

struct BadJson;

impl Runner for BadJson {
    fn manifest() -> Manifest {
        let mut manifest = Manifest::new("test", "manifest-bad-json");
        manifest.contract_mut().metadata = "{\"home\": ".to_owned();
        manifest
    }

    fn run(_: Context) -> Result<Completion, Failure> {
        Ok(Completion::stop())
    }
}

agent_host_sdk::export!(BadJson);
