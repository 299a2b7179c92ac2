//! Hosts of a cluster among themselves: a host forwards the requests of clients to the owners of partitions, and an owner gives a partition
//! away.
//!
//! - [`listeners`]: the listeners of a host, which stay open while partitions come and go.
//! - [`routing`]: the partition that a request is for.
//! - [`lists`], [`feeds`] and [`statistics`]: lists, streams and counts of what is of all partitions.
//! - [`executors`]: executors of no workspace, which take runs of all of them. ([`partitioned`]: a request that becomes one to each.)
//! - [`local_client`]: requests of executors within the process.
//! - [`own_routes`]: the answers of a host about itself.
//! - [`host_listener`]: the listener for hosts alone, each of whose connections begins with a proof ([`handshake`]).
//! - [`owner`]: the place of the owner of a partition, as this host knows it at the moment.
//! - [`client`]: requests to the active host.
//! - [`client_request`]: a request of a client, which may be sent several times.
//! - [`forward`]: its way: to the active host, or to the routes of this one while that is it.
//! - [`resume`]: a stream of events that goes on at the next active host ([`events`] finds its events).
//!
//! A request is forwarded once at most: a host that is asked by another one, and is not the active one, answers `partition_moving`.

pub(crate) mod client;
pub(crate) mod client_request;
pub(crate) mod events;
mod executors;
mod feeds;
pub(crate) mod forward;
pub(crate) mod handshake;
pub(crate) mod host_listener;
pub(crate) mod listeners;
mod lists;
pub(crate) mod local_client;
mod own_routes;
pub(crate) mod owner;
mod partitioned;
mod repeatable;
pub(crate) mod resume;
mod routing;
mod statistics;
