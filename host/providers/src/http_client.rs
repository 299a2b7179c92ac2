//! The client of HTTP that all senders share, and the text of its errors.

use std::error::Error;

use reqwest::{Client, ClientBuilder, redirect, retry};

/// A client that goes where it is sent and nowhere else: no proxy of the environment, no redirect, no second attempt.
pub(crate) fn builder() -> ClientBuilder {
    Client::builder()
        .no_proxy()
        .redirect(redirect::Policy::none())
        .retry(retry::never())
        .referer(false)
        .tcp_nodelay(true)
        .user_agent(concat!("agent-host/", env!("CARGO_PKG_VERSION")))
}

/// An error with its causes: the first line of reqwest alone says little. The address stays out.
pub(crate) fn reason(error: reqwest::Error) -> String {
    let error = error.without_url();
    let causes = std::iter::successors(error.source(), |cause| (*cause).source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
