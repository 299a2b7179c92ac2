//! Executors outside reach models, tools, history and the rest for their run: everything that a guest reaches, through the
//! same gate, and nothing once their claim is over.

#[path = "../durability/support.rs"]
#[allow(dead_code, reason = "written for more tests than these")]
mod support;

mod outside;

mod artifacts;
mod bodies;
mod executor;
mod functions;
mod going_away;
mod streams;
mod tokens;
