//! Hosts of a cluster among themselves: a warm host forwards the requests of clients to the active one.
//!
//! - [`listeners`]: the listeners of a host, which stay open while it changes from a warm one to the active one.
//! - [`host_listener`]: the listener for hosts alone, each of whose connections begins with a proof ([`handshake`]).
//! - [`owner`]: the place of the active host, as this host knows it at the moment.
//! - [`client`]: requests to the active host.
//! - [`forward`]: a request of a client on its way: to the active host, or, after a takeover, to this one.
//! - [`resume`]: a stream of events that goes on at the next active host ([`events`] finds its events).
//!
//! A request is forwarded once at most: a host that is asked by another one, and is not the active one, answers `partition_moving`.

pub(crate) mod client;
pub(crate) mod events;
pub(crate) mod forward;
pub(crate) mod handshake;
pub(crate) mod host_listener;
pub(crate) mod listeners;
pub(crate) mod owner;
mod repeatable;
pub(crate) mod resume;
