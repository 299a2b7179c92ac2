//! The queue: which run is executed next, and by whom.
//!
//! Every run waits in the same queue. Runs that the host executes wait for the limits of their binding ([`admission`]).
//! External runs wait for an executor that claims them ([`waiting`]). In a cluster with several partitions the limits are [`permits`] from the database.

pub(crate) mod admission;
mod permits;
pub(crate) mod waiting;
