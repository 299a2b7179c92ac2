//! AG-UI with foreign clients: whatever happens to the connection, the host or the client, each run is seen once, complete,
//! with one end.

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
