//! Hosts of a cluster among themselves: a warm host forwards the requests of clients to the active one, and an active one gives the ledger
//! away.
//!
//! - [`listeners`]: the listeners of a host, which stay open while it changes from a warm one to the active one and back.
//! - [`host_listener`]: the listener for hosts alone, each of whose connections begins with a proof ([`handshake`]).
//! - [`owner`]: the place of the active host, as this host knows it at the moment.
//! - [`client`]: requests to the active host.
//! - [`client_request`]: a request of a client, which may be sent several times.
//! - [`forward`]: its way: to the active host, or to the routes of this one while that is it.
//! - [`resume`]: a stream of events that goes on at the next active host ([`events`] finds its events).
//!
//! A request is forwarded once at most: a host that is asked by another one, and is not the active one, answers `partition_moving`.

pub(crate) mod client;
pub(crate) mod client_request;
pub(crate) mod events;
pub(crate) mod forward;
pub(crate) mod handshake;
pub(crate) mod host_listener;
pub(crate) mod listeners;
pub(crate) mod owner;
mod repeatable;
pub(crate) mod resume;
