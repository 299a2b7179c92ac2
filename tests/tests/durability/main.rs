//! A run outlives its host: hosts are killed in the middle of what they do, and come back on the same directories.

mod model;
mod support;

mod doubts;
mod kills;
mod parking;
mod policies;
mod replays;
mod versions;
