//! The basis of the end-to-end tests: real components, and a host in this process or the real binary in its own.

pub mod bomb;
pub mod components;
pub mod grants;
pub mod npm;
pub mod outside;
pub mod pip;
pub mod process;
pub mod support;
pub mod webhook;
pub mod world;

pub use components::component;
pub use outside::OutsideServer;
pub use process::Process;
pub use webhook::Webhook;
pub use world::World;
