//! Operations on a running host: reload, backup, statistics.

mod backup;
mod conformance;
mod context;
mod documents;
mod evidence;
mod host;
mod reference;
mod reload;
mod statistics;
