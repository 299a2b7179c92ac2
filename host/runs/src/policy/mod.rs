//! The policy of a run: binding, manifest and event become the terms of a run; approval rules; services and sources opened
//! from the configuration.

pub(crate) mod approval;
pub(crate) mod binding;
pub(crate) mod child;
pub(crate) mod client_tools;
pub(crate) mod context;
mod error;
pub(crate) mod imports;
pub(crate) mod inline;
pub(crate) mod key_limits;
pub(crate) mod keys;
pub(crate) mod library;
pub mod media;
pub(crate) mod platform_action;
pub(crate) mod registered;
pub(crate) mod services;
pub(crate) mod setup;
pub(crate) mod sources;

pub use self::error::StartError;
