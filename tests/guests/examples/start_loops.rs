//! A guest whose instance never begins: the loop is in the start of its module.

use agent_host_sdk::{Completion, Context, Failure, Manifest, Runner};

extern "C" fn start() {
    loop {
        std::hint::black_box(());
    }
}

#[used]
#[allow(unsafe_code, reason = "a place in the module")]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

struct Loops;

impl Runner for Loops {
    fn manifest() -> Manifest {
        Manifest::new("test", "start-loops").label("en", "Loops")
    }

    fn run(_: Context) -> Result<Completion, Failure> {
        Ok(Completion::stop())
    }
}

agent_host_sdk::export!(Loops);
