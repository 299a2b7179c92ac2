//! MCP, the side of the server: the endpoint of a run, for the agent that its executor runs ([`run`]), and the agents of the host as
//! tools, for who has a key ([`agents`]).
//!
//! `rmcp` owns the protocol: messages, sessions and streams. This module owns what a server shows, who reaches it, and how
//! answers and refusals of the host are said in MCP. Every call of a run passes the gate of the run.

mod agents;
mod endpoint;
mod outcome;
mod progress;
mod run;

use self::{agents::AgentEndpoints, run::RunEndpoints};

/// The endpoints of a server.
#[derive(Default)]
pub(crate) struct McpState {
    pub(crate) runs: RunEndpoints,
    pub(crate) agents: AgentEndpoints,
}
