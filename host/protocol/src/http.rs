//! Requests to the outside (wit/capabilities.wit, `http`).

use serde::{Deserialize, Serialize};

/// A request, as a guest makes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpRequest {
    /// Such as `GET`.
    pub method: String,
    /// `https://` or `http://`, without user information.
    pub url: String,
    /// A value may hold `{{secret:NAME}}`.
    pub headers: Vec<(String, String)>,
    /// All of it.
    pub body: Vec<u8>,
    /// Time limit until the last byte is read, in ms; absent for the limit of the host.
    pub timeout_ms: Option<u32>,
}

/// The beginning of a response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpHead {
    /// Such as 200.
    pub status: u16,
    /// As they came, names in lower case.
    pub headers: Vec<(String, String)>,
}
