//! What the end-to-end tests stand on: real components, a host in this process or the real binary in its own.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::missing_panics_doc,
    reason = "a test that cannot go on should say so and stop"
)]

pub mod components;
pub mod process;
pub mod world;

pub use components::component;
pub use process::Process;
pub use world::World;
