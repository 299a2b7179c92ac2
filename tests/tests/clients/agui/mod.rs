//! AG-UI with foreign clients: whatever happens to the connection, the host or the client, each run is seen once, complete,
//! with one end.

mod arguments;
mod bad_input;
mod bodies;
mod branches;
mod children;
mod claims;
mod clients;
mod cuts;
mod days;
mod end_users;
mod examples;
mod fuzzed;
mod going_away;
mod identity;
mod long;
mod node;
mod pages;
mod people;
mod profile;
mod proxy;
mod scenarios;
mod stopping;
mod strict;
mod support;
mod threads;
mod wire;
