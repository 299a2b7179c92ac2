//! The reasons why a server does not listen, or does so no longer.

use std::{io, net::SocketAddr};

/// The address cannot be listened at.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen at {listen}: {source}{}", hint(source, *is_for_hosts))]
pub struct BindError {
    listen: SocketAddr,
    /// True for the listener for the other hosts of a cluster.
    is_for_hosts: bool,
    source: io::Error,
}

fn hint(error: &io::Error, is_for_hosts: bool) -> &'static str {
    match (error.kind(), is_for_hosts) {
        (io::ErrorKind::AddrInUse, false) => {
            "; another process has the port: end it, or set another in [server] listen (port 0 takes a free one)"
        }
        (io::ErrorKind::PermissionDenied, false) => "; ports below 1024 need a privilege: set a higher one in [server] listen",
        (io::ErrorKind::AddrNotAvailable, false) => {
            "; the machine does not have this address: set one that it has in [server] listen"
        }
        (io::ErrorKind::AddrInUse, true) => {
            "; another process has the port: end it, or set another in [cluster] listen and [cluster] advertise"
        }
        (io::ErrorKind::PermissionDenied, true) => {
            "; ports below 1024 need a privilege: set a higher one in [cluster] listen and [cluster] advertise"
        }
        (io::ErrorKind::AddrNotAvailable, true) => {
            "; the machine does not have this address: set one that it has in [cluster] listen, such as 0.0.0.0 with the port of [cluster] \
             advertise"
        }
        _ => "",
    }
}

/// Serving failed.
#[derive(Debug, thiserror::Error)]
#[error("the HTTP server failed: {0}")]
pub struct ServeError(#[from] io::Error);

impl BindError {
    pub(crate) const fn new(listen: SocketAddr, source: io::Error) -> Self {
        Self { listen, is_for_hosts: false, source }
    }

    pub(crate) const fn for_hosts(listen: SocketAddr, source: io::Error) -> Self {
        Self { listen, is_for_hosts: true, source }
    }
}
