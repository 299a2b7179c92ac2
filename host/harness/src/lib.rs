//! Coding agents as runners.
//!
//! A harness is an executor (docs/EXECUTORS.md) that starts a process of a coding agent for each run: Claude Code, Codex, Gemini CLI,
//! OpenCode, any other agent that speaks the Agent Client Protocol, or a program of the operator. The crate knows no store and no
//! server: the host is reached by a [`Link`], within the process or over HTTP.
//!
//! | module | |
//! |---|---|
//! | `harness`, `setup` | the executor: registration, claims, slots; facts that its runs share |
//! | `run` | one run, from its claim to its end |
//! | `acp`, `acp_schema` | the Agent Client Protocol, and its messages |
//! | `command` | programs that read one request and write results |
//! | `workspace` | working directories: locks, files that do not lead out |
//! | `projection` | the files that tell an agent of its run |
//! | `session` | sessions of agents as state of conversations |
//! | `permissions` | rules and questions for what an agent wants to do |
//! | `results`, `secrets` | what an agent says, as results without secrets |
//! | `process`, `launcher`, `confinement` | processes: their bounds, their end, what they reach |
//! | `host_api`, `link` | requests to the host |
//! | `doctor` | examination of a harness |
//! | `failure`, `stop`, `frame` | reasons of an end; everything that one run is about |
//!
//! Processes are confined and ended by means of Linux; elsewhere the crate is empty.

#![cfg(target_os = "linux")]

mod acp;
mod acp_schema;
mod command;
mod confinement;
mod doctor;
mod failure;
mod frame;
mod harness;
mod host_api;
mod launcher;
mod link;
mod permissions;
mod process;
mod projection;
mod results;
mod run;
mod secrets;
mod session;
mod setup;
mod stop;
mod workspace;

pub use self::{
    doctor::{Diagnosis, diagnose},
    harness::Harness,
    launcher::launch,
    link::{Answer, Link, LinkError, Registered, Request},
    setup::{HarnessSetup, Variable},
};
