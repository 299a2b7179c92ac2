//! Coding agents as runners.
//!
//! A harness is an executor (docs/EXECUTORS.md) that starts a process of a coding agent for each run: Claude Code, Codex, Gemini CLI,
//! OpenCode, any other agent that speaks the Agent Client Protocol, or a program of the operator. The crate knows no store and no
//! server: the host is reached by a [`Transport`], within the process or over HTTP.
//!
//! | module | |
//! |---|---|
//! | `harness`, `shared` | the executor: registration, claims, slots; facts that its runs share |
//! | `run` | one run, from its claim to its end |
//! | `acp`, `acp_schema` | the Agent Client Protocol, and its messages, into which the other protocols are translated |
//! | `codex`, `claude` | the protocols of `codex app-server` and of `claude` with streams of JSON |
//! | `client`, `feed`, `rpc`, `turn`, `terminal` | parts that the protocols share: messages, reports of a turn, commands |
//! | `command` | programs that read one request and write results |
//! | `workspace`, `folder` | working directories and their locks; files that do not lead out |
//! | `projection` | the files that tell an agent of its run |
//! | `mcp_forms` | the MCP endpoint of a run in the configuration of its agent |
//! | `session`, `gemini_sessions` | sessions of agents as state of conversations; files of sessions that Gemini CLI would lose |
//! | `permissions`, `shell` | rules and questions for what an agent wants to do; commands as a shell has them |
//! | `results`, `secrets` | what an agent says, as results without secrets |
//! | `process`, `launcher`, `confinement` | processes: their bounds, their end, what they reach |
//! | `enclosure`, `bubblewrap`, `sandbox`, `forwarder` | the sandbox of `bwrap`: its files, and its network within |
//! | `proxy`, `egress` | the network of a sandbox, outside of it: the proxy, and the destinations that it may reach |
//! | `door`, `relay`, `activity` | the way to the host for agents that share its network; requests that are passed on |
//! | `host_client`, `transport` | requests to the host |
//! | `doctor` | examination of a harness |
//! | `failure`, `stop`, `agent_run` | reasons of an end; everything that one run is about |
//!
//! Processes are confined and ended by means of Linux; elsewhere the crate is empty.

#![cfg(target_os = "linux")]

mod acp;
mod acp_schema;
mod activity;
mod agent_run;
mod bubblewrap;
mod claude;
mod client;
mod codex;
mod command;
mod confinement;
mod doctor;
mod door;
mod egress;
mod enclosure;
mod failure;
mod feed;
mod folder;
mod forwarder;
mod gemini_sessions;
mod harness;
mod host_client;
mod launcher;
mod mcp_forms;
mod permissions;
mod process;
mod projection;
mod proxy;
mod relay;
mod results;
mod rpc;
mod run;
mod sandbox;
mod secrets;
mod session;
mod shared;
mod shell;
mod stop;
mod terminal;
mod transport;
mod turn;
mod workspace;

pub use self::{
    client::Login,
    doctor::{Diagnosis, diagnose},
    harness::Harness,
    launcher::launch,
    shared::{HarnessSetup, Variable},
    transport::{Answer, Registered, Request, Transport, TransportError},
};
