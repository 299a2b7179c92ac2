//! Operations on a running host: reload, backup, statistics.

mod backup;
mod context;
mod documents;
mod host;
mod reference;
mod reload;
mod statistics;
