//! AG-UI 1.0 as values: what clients send, what a run says in it, and the bytes of that.
//!
//! The way of an event: the record of the host's run is projected (`project`), checked (`verify`), joined with its
//! neighbours (`coalesce`), converted for old clients (`legacy`), and written (`wire`). Snapshots are the same stream,
//! folded (`fold`). The module does not call the host; `crate::agents` does.

pub(crate) mod capabilities;
pub(crate) mod coalesce;
pub(crate) mod cursor;
pub(crate) mod event;
pub(crate) mod fold;
pub(crate) mod input;
pub(crate) mod interrupts;
pub(crate) mod legacy;
pub(crate) mod project;
mod proto;
#[cfg(test)]
mod sample;
pub(crate) mod shape;
pub(crate) mod shared;
pub(crate) mod split;
pub(crate) mod strict;
pub(crate) mod ui_schema;
pub(crate) mod verify;
pub(crate) mod wire;
