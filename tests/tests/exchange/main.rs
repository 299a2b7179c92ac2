//! Runs and what is outside of the host: people and platforms that are asked, executors that claim runs, schedules, webhooks.

use agent_host_tests::support;

mod asks;
mod calls;
mod imports;
mod mcp;
mod queue;
mod sources;
