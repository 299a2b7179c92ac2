//! MCP: the agent of an executor finds what its run was granted, through the gate of the run, and nothing once the claim is over;
//! and clients with a key find the agents as tools.

use crate::{calls::outside, support};

mod client;

mod agents;
mod bounds;
mod bridge;
mod library;
mod programs;
mod tokens;
mod tools;
