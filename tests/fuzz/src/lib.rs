//! Fuzz targets: functions of any bytes that panic if something does not hold.
//!
//! `tests/seeds.rs` calls each with mutations of its corpus (`corpus/TARGET/`) by fixed seeds, so every `cargo test` runs all
//! targets; `cargo xtask fuzz TARGET --seconds N` does so for longer. `libfuzzer/` is a crate for `cargo fuzz`, which is guided
//! by coverage (`cargo xtask fuzz TARGET --guided`).
//!
//! A crash is fixed together with a file in the corpus that shows it.

mod config;
mod corpus;
#[cfg(feature = "host")]
mod host;
mod ledger;
mod mutate;
mod streams;

pub use corpus::{corpus, corpus_dir};
pub use mutate::Mutator;

/// A fuzz target.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Name, also of the folder of its corpus.
    pub name: &'static str,
    /// The target itself.
    pub run: fn(&[u8]),
    /// Largest input, in bytes.
    pub max_bytes: usize,
}

const LIGHT: &[Target] = &[
    Target { name: "ledger_log", run: ledger::log, max_bytes: 4 * 1024 },
    Target { name: "ledger_rows", run: ledger::rows, max_bytes: 64 * 1024 },
    Target { name: "config", run: config::config, max_bytes: 64 * 1024 },
    Target { name: "event_stream", run: streams::event_stream, max_bytes: 64 * 1024 },
];

#[cfg(feature = "host")]
const HOST: &[Target] = &[
    Target { name: "journal", run: host::journal, max_bytes: 64 * 1024 },
    Target { name: "component", run: host::admission::component, max_bytes: 256 * 1024 },
    Target { name: "canonical_abi", run: host::abi::canonical_abi, max_bytes: 4 * 1024 },
    Target { name: "agui_input", run: host::agui_input, max_bytes: 64 * 1024 },
    Target { name: "event_body", run: host::event_body, max_bytes: 64 * 1024 },
    Target { name: "mcp_output", run: host::services::mcp_output, max_bytes: 64 * 1024 },
    Target { name: "model_stream", run: host::services::model_stream, max_bytes: 64 * 1024 },
    Target { name: "html", run: host::services::html, max_bytes: 64 * 1024 },
    Target { name: "pdf", run: host::services::pdf, max_bytes: 64 * 1024 },
];
#[cfg(not(feature = "host"))]
const HOST: &[Target] = &[];

/// All targets of this build.
pub fn targets() -> impl Iterator<Item = &'static Target> {
    LIGHT.iter().chain(HOST)
}

/// The target with this name.
///
/// # Panics
/// If this build has none.
#[must_use]
pub fn target(name: &str) -> &'static Target {
    targets().find(|target| target.name == name).unwrap_or_else(|| panic!("this build has no fuzz target {name}"))
}
