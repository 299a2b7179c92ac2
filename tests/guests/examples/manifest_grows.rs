//! Takes memory without bound while it is asked what it is.

use agent_host_sdk::{Completion, Context, Failure, Manifest, Runner};

struct Grows;

impl Runner for Grows {
    fn manifest() -> Manifest {
        let mut taken = Vec::new();
        loop {
            taken.push(std::hint::black_box(vec![1_u8; 1024 * 1024]));
        }
    }

    fn run(_: Context) -> Result<Completion, Failure> {
        Ok(Completion::stop())
    }
}

agent_host_sdk::export!(Grows);
