//! Executors outside reach models, tools, history and the rest for their run: everything that a guest reaches, through the
//! same gate, and nothing once their claim is over.

use crate::support;

pub mod outside;
mod protocol;

mod artifacts;
mod bodies;
mod executor;
mod functions;
mod going_away;
mod langbot;
mod models;
mod reads;
mod streams;
mod tokens;
