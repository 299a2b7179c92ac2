//! The queue: which run is executed next, and by whom.
//!
//! Every run stands in the same queue. Runs that the host executes wait where their binding bounds how many run at one
//! time, or how often one begins ([`admission`]). External runs wait for an executor that claims them ([`waiting`]).

pub(crate) mod admission;
pub(crate) mod waiting;
