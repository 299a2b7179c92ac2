//! What an operator does to a host that runs: reads its configuration again, backs it up, counts its runs.

mod backup;
mod documents;
mod host;
mod reference;
mod reload;
mod statistics;
