//! Files of pages for browsers, which are part of the binary.
//!
//! A page has no data and needs no key; its requests to the API do. It shows what others wrote, so a policy forbids foreign scripts and
//! other hosts.

use std::borrow::Cow;

use axum::{
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use sha2::{Digest, Sha256};

use crate::http::headers::{CROSS_ORIGIN_RESOURCE_POLICY, matches_etag};

pub(super) const HTML: &str = "text/html; charset=utf-8";

/// The policy of every page, and more. Pictures that need a key are shown as `data:`.
macro_rules! policy {
    ($more:literal) => {
        concat!(
            "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; ",
            "form-action 'none'; frame-ancestors 'none'",
            $more
        )
    };
}
pub(super) use policy;

/// The policy of a page that needs no other.
pub(super) const POLICY: HeaderValue = HeaderValue::from_static(policy!(""));

/// A file of a page.
pub(super) struct PageFile<'a> {
    pub(super) media_type: &'a str,
    pub(super) bytes: Cow<'static, [u8]>,
    /// The tag of all files of the page: a page and a script of two versions do not go together.
    pub(super) etag: &'a str,
    /// The `Content-Security-Policy` of the page.
    pub(super) policy: HeaderValue,
}

/// The tag of the files of a page.
pub(super) fn etag(files: impl Iterator<Item = Cow<'static, [u8]>>) -> String {
    let mut hasher = Sha256::new();
    files.for_each(|bytes| hasher.update(&bytes));
    let hash: String = hasher.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("\"{hash}\"")
}

/// The answer with a file, or with none where the client has it already.
pub(super) fn respond(file: &PageFile<'_>, headers: &HeaderMap) -> Response {
    let mut response = if matches_etag(headers, file.etag) {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        ([(header::CONTENT_TYPE, file.media_type)], file.bytes.clone()).into_response()
    };
    let always: [(HeaderName, HeaderValue); 5] = [
        // Asked for again each time: the next version of the host has another page.
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (header::CONTENT_SECURITY_POLICY, file.policy.clone()),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (CROSS_ORIGIN_RESOURCE_POLICY, HeaderValue::from_static("same-origin")),
    ];
    response.headers_mut().extend(always);
    // Hexadecimal digits in quotes are a value that a header can have.
    if let Ok(etag) = HeaderValue::from_str(file.etag) {
        response.headers_mut().insert(header::ETAG, etag);
    }
    response
}
