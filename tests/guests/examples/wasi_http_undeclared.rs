//! Imports `wasi:http`, and its manifest names no host.

use agent_host_sdk::{Completion, Context, Failure, Manifest, Runner};
use wasip2::http::outgoing_handler::handle;
use wasip2::http::types::{Fields, OutgoingRequest};

struct Undeclared;

impl Runner for Undeclared {
    fn manifest() -> Manifest {
        Manifest::new("test", "wasi-http-undeclared")
    }

    fn run(ctx: Context) -> Result<Completion, Failure> {
        let went = handle(OutgoingRequest::new(Fields::new()), None).is_ok();
        ctx.reply(&went.to_string())?;
        Ok(Completion::stop())
    }
}

agent_host_sdk::export!(Undeclared);
