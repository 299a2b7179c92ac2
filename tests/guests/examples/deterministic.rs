//! `plugin:test/deterministic/default` looks at everything in a sandbox that could differ from one execution to the
//! next, again and again, and says what it saw. The text of the event is `STEPS MILLISECONDS`: so many looks, and so long
//! a sleep between two of them, half of it by the standard library and half of it by `timers`.
//!
//! Each look is an event `x.seen` with what was seen and with a digest of all looks so far, which is made from memory. So
//! an execution that sees something else than an earlier one did, even once and although nobody asks for that event again,
//! says digests that do not continue those that stand in the record.

use std::collections::{HashMap, HashSet};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use agent_host_sdk::contract::agent_host::runner::results;
use agent_host_sdk::contract::{CustomResult, RunResult};
use agent_host_sdk::serde_json::{Value, json};
use agent_host_sdk::{Capabilities, Completion, Context, Failure, Manifest, Runner, StateScope, timers};

#[allow(unsafe_code, clippy::allow_attributes_without_reason, reason = "generated")]
mod wasi {
    // The standard library asks for seeds of hash maps only.
    wit_bindgen::generate!({
        inline: r#"
            package wasi:random@0.2.6;

            interface random {
                get-random-bytes: func(len: u64) -> list<u8>;
                get-random-u64: func() -> u64;
            }

            interface insecure {
                get-insecure-random-bytes: func(len: u64) -> list<u8>;
                get-insecure-random-u64: func() -> u64;
            }

            interface insecure-seed {
                insecure-seed: func() -> tuple<u64, u64>;
            }

            world deterministic-random {
                import random;
                import insecure;
                import insecure-seed;
            }
        "#,
        world: "deterministic-random",
        generate_all,
    });
}

use wasi::wasi::random::{insecure, insecure_seed, random};

struct Deterministic;

impl Runner for Deterministic {
    fn manifest() -> Manifest {
        Manifest::new("test", "deterministic")
            .label("en", "Deterministic")
            .capabilities(Capabilities { streaming: true, ..Capabilities::default() })
            .state([StateScope::Runner])
    }

    fn run(ctx: Context) -> Result<Completion, Failure> {
        let usage = || Failure::new("usage", "the text is `STEPS MILLISECONDS`");
        let (steps, millis) = ctx.text().split_once(' ').ok_or_else(usage)?;
        let (steps, millis) = (steps.parse::<u32>()?, millis.parse::<u64>()?);
        let began = Instant::now();
        let mut digest = Digest::default();
        for step in 1..=steps {
            let seen = look(&ctx, began)?;
            digest.add(&seen.to_string());
            let data = json!({ "step": step, "seen": seen, "digest": digest.to_hex() });
            results::emit(&[RunResult::Other(CustomResult { type_: "x.seen".to_owned(), data: data.to_string() })])
                .map_err(agent_host_sdk::ApiError::from)?;
            std::thread::sleep(std::time::Duration::from_millis(millis / 2));
            timers::sleep(millis - millis / 2)?;
        }
        ctx.reply(&digest.to_hex())?;
        Ok(Completion::stop())
    }
}

agent_host_sdk::export!(Deterministic);

fn look(ctx: &Context, began: Instant) -> Result<Value, Failure> {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH)?;
    // The order of a hash map hangs on its seed, and that of each new one on how many there were.
    let map: HashMap<u32, u32> = (0..20).map(|n| (n, n)).collect();
    let set: HashSet<String> = (0..10).map(|n| format!("k{n}")).collect();
    let fresh = Box::new(7_u8);
    let state = ctx.state(StateScope::Runner);
    let counted = state.get::<u64>("looks")?.unwrap_or(0) + 1;
    // Another run may have counted meanwhile: what the host says to that is seen, too.
    let refused = state.set("looks", &counted).err().map(|error| error.to_string());
    Ok(json!({
        "wall_ns": wall.as_nanos() as u64,
        "elapsed_ns": began.elapsed().as_nanos() as u64,
        "timers_now": timers::now(),
        "random": random::get_random_u64(),
        "random_bytes": random::get_random_bytes(16),
        "insecure": insecure::get_insecure_random_u64(),
        "insecure_bytes": insecure::get_insecure_random_bytes(16),
        "seed": insecure_seed::insecure_seed().0,
        "map": map.into_keys().collect::<Vec<_>>(),
        "set": set.into_iter().collect::<Vec<_>>(),
        "address": std::ptr::from_ref(&*fresh).addr(),
        "grown": grow_memory(),
        "nan": (f64::NAN * std::hint::black_box(-1.0)).to_bits(),
        "counted": counted,
        "refused": refused,
    }))
}

/// The pages by which memory can grow at once: the host decides.
fn grow_memory() -> u64 {
    let reserved: Result<Vec<u8>, _> = {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(1 << 30).map(|()| bytes)
    };
    reserved.map_or(0, |bytes| bytes.capacity() as u64)
}

/// FNV-1a: enough to distinguish two histories, and short to implement again in the test.
struct Digest(u64);

impl Default for Digest {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Digest {
    fn add(&mut self, text: &str) {
        for byte in text.bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    fn to_hex(&self) -> String {
        format!("{:016x}", self.0)
    }
}
