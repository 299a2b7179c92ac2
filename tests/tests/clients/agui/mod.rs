//! AG-UI as clients have it that others wrote: whatever happens to the connection, to the host or to the client, each run is
//! seen once, whole and with one end.

mod bad_input;
mod bodies;
mod clients;
mod cuts;
mod fuzzed;
mod going_away;
mod node;
mod profile;
mod proxy;
mod scenarios;
mod support;
mod threads;
mod wire;
