//! The principal of a request and its permissions. No route is known here.

pub(crate) mod authentication;
pub(crate) mod caller;
pub(crate) mod cors;
pub(crate) mod idempotency;
pub(crate) mod identity;
mod request;
pub(crate) mod stream_token;

pub(crate) use request::ApiRequest;
