//! `plugin:test/abuse/default` calls the host below the bindings, as no generated code does: with pointers outside of its memory, text
//! that is none, cases that do not exist, handles that it was never given, and a million texts that are one. `fill` and `copy` move
//! memory for ever, `deep` calls from ever deeper in the stack.

#![allow(clippy::panic, reason = "to be a broken guest is what it is for")]

use agent_host_sdk::contract::agent_host::runner::artifacts;
use agent_host_sdk::{ArtifactOperation, Completion, Context, EventOperation, Failure, Manifest, Runner};

#[allow(unsafe_code, reason = "imports of the component, without the bindings that call them rightly")]
mod raw {
    #[link(wasm_import_module = "agent-host:runner/log@1.0.0")]
    unsafe extern "C" {
        #[link_name = "write"]
        pub(crate) safe fn log(level: u32, text: usize, length: usize);
    }

    #[link(wasm_import_module = "agent-host:runner/events@1.0.0")]
    unsafe extern "C" {
        #[link_name = "page"]
        pub(crate) safe fn page(some: u32, cursor: usize, length: usize, types: usize, count: usize, limit: u32, outcome: usize);
    }

    #[link(wasm_import_module = "agent-host:runner/artifacts@1.0.0")]
    unsafe extern "C" {
        #[link_name = "[method]writer.write"]
        pub(crate) safe fn write(writer: u32, bytes: usize, length: usize, outcome: usize);
        #[link_name = "[resource-drop]writer"]
        pub(crate) safe fn drop_writer(writer: u32);
    }
}

/// Memory that is moved.
const BYTES: usize = 16 * 1024 * 1024;
const INFO: u32 = 2;
/// A page before the end of what an address can name.
const OUTSIDE: usize = usize::MAX - 0xffff;

/// Calls the host from ever deeper in the stack.
fn deep(depth: u64, limit: u64) -> u64 {
    if depth.is_multiple_of(64) {
        raw::log(INFO, 1, 0);
    }
    if depth == limit { 0 } else { deep(depth + 1, limit).wrapping_mul(31) ^ depth }
}

struct Abuse;

impl Runner for Abuse {
    fn manifest() -> Manifest {
        Manifest::new("test", "abuse").label("en", "Abuse").artifacts([ArtifactOperation::Create]).events([EventOperation::Page])
    }

    fn run(ctx: Context) -> Result<Completion, Failure> {
        let text = "text";
        let at = text.as_ptr() as usize;
        match ctx.text() {
            "pointer" => raw::log(INFO, OUTSIDE, 100),
            "length" => raw::log(INFO, at, usize::MAX),
            "text" => {
                let bytes = [0xff_u8, 0xfe, 0x80];
                raw::log(INFO, bytes.as_ptr() as usize, bytes.len());
            }
            "case" => raw::log(99, at, text.len()),
            "outcome" => {
                let writer = artifacts::create("text/plain", None).unwrap_or_else(|error| panic!("{error:?}"));
                raw::write(writer.handle(), at, text.len(), OUTSIDE);
            }
            "handle" => raw::write(12_345, at, text.len(), BYTES),
            "drop" => raw::drop_writer(12_345),
            "dropped" | "dropped twice" => {
                let writer = artifacts::create("text/plain", None).unwrap_or_else(|error| panic!("{error:?}"));
                let handle = writer.handle();
                drop(writer);
                match ctx.text() {
                    "dropped" => raw::write(handle, at, text.len(), BYTES),
                    _ => raw::drop_writer(handle),
                }
            }
            "large" => {
                let text = "x".repeat(40 * 1024 * 1024);
                raw::log(INFO, text.as_ptr() as usize, text.len());
            }
            "texts" => {
                let text = "x".repeat(100);
                let texts = vec![(text.as_ptr() as usize, text.len()); 1_000_000];
                raw::page(0, 0, 0, texts.as_ptr() as usize, texts.len(), 10, BYTES);
            }
            "deep" => {
                std::hint::black_box(deep(0, std::hint::black_box(u64::MAX)));
            }
            "fill" => {
                let mut bytes = vec![0_u8; BYTES];
                for value in (0..=u8::MAX).cycle() {
                    std::hint::black_box(&mut bytes).fill(value);
                }
            }
            "copy" => {
                let mut bytes = vec![0_u8; BYTES];
                loop {
                    std::hint::black_box(&mut bytes).copy_within(1.., 0);
                }
            }
            _ => {}
        }
        ctx.reply("ok the host took it")?;
        Ok(Completion::stop())
    }
}

agent_host_sdk::export!(Abuse);
