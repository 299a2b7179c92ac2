//! Guests in a host of this process: the contract, what a guest may not do, what outlives its run, and the example runners.

mod agent;
mod bombs;
mod echo;
mod examples;
mod files;
mod gate;
mod golden;
mod hostile;
mod library;
mod memory;
mod plugins;
mod services;
mod threads;
mod toolchains;
