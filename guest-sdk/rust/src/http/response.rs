//! HTTP response: read whole within a limit, or as it arrives.

use std::io;

use serde::de::DeserializeOwned;

use super::sse::{Events, LineSplitter};
use crate::contract::ErrorCode;
use crate::error::ApiError;
use crate::host::http as host;
use crate::json::{IntoJson, from_str};
use crate::limits::split_at_json_len;

/// Maximum size of one read. The host returns the bytes that have arrived and does not wait for more.
const READ_BYTES: u32 = 64 * 1024;

/// Maximum length of the body in an error message.
const ERROR_BYTES: usize = 512;

/// Response with a body that is read as it arrives. Dropping the response ends the request.
#[derive(Debug)]
pub struct Response {
    contract: host::Response,
}

impl Response {
    pub(super) fn new(contract: host::Response) -> Self {
        Self { contract }
    }

    /// Returns the status, such as 200.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.contract.status()
    }

    /// Returns true if the status is 200 to 299.
    #[must_use]
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status())
    }

    /// Returns all headers.
    #[must_use]
    pub fn headers(&self) -> Vec<(String, String)> {
        self.contract.headers()
    }

    /// Returns the first header with this name, compared without case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<String> {
        self.headers().into_iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// Returns the response if its status is 200 to 299; otherwise an error with the status and the beginning of the
    /// body. A run that fails with this error has the code `http_status`.
    ///
    /// # Errors
    /// Fails with `runtime_error` for any other status; retryable for 408, 429, 502, 503 and 504.
    pub fn error_for_status(self) -> Result<Self, ApiError> {
        let status = self.status();
        if self.is_success() {
            return Ok(self);
        }
        // Best effort: a body that breaks off does not change the error.
        let body = self.head(ERROR_BYTES);
        let body = String::from_utf8_lossy(&body);
        let excerpt = split_at_json_len(body.trim(), ERROR_BYTES).0;
        let excerpt = if excerpt.is_empty() { String::new() } else { format!(": {excerpt}") };
        Err(ApiError {
            code: ErrorCode::RuntimeError,
            message: format!("the other side answered {status}{excerpt}"),
            retryable: matches!(status, 408 | 429 | 502 | 503 | 504),
            details: Some(format!(r#"{{"code":"http_status","status":{}}}"#, status.into_json())),
        })
    }

    /// Waits for bytes and returns at most `max_bytes` of them; an empty list at the end.
    ///
    /// # Errors
    /// Fails with the error of the host, for example if the connection breaks.
    pub fn read(&self, max_bytes: u32) -> Result<Vec<u8>, ApiError> {
        Ok(self.contract.read(max_bytes)?)
    }

    /// Returns the rest of the body.
    ///
    /// # Errors
    /// Fails with `payload_too_large` if the rest has more than `limit` bytes; otherwise like [`read`](Self::read).
    pub fn bytes(&self, limit: usize) -> Result<Vec<u8>, ApiError> {
        let mut bytes = Vec::new();
        loop {
            let part = self.read(READ_BYTES)?;
            if part.is_empty() {
                return Ok(bytes);
            }
            bytes.extend_from_slice(&part);
            if bytes.len() > limit {
                let message = format!("the response has more than {limit} bytes");
                return Err(ApiError::new(ErrorCode::PayloadTooLarge, message));
            }
        }
    }

    /// Returns the rest of the body as text. Invalid UTF-8 becomes U+FFFD.
    ///
    /// # Errors
    /// Like [`bytes`](Self::bytes).
    pub fn text(&self, limit: usize) -> Result<String, ApiError> {
        let bytes = self.bytes(limit)?;
        Ok(String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
    }

    /// Parses the rest of the body as JSON.
    ///
    /// # Errors
    /// Fails with `runtime_error` if the body is not JSON of this shape; otherwise like [`bytes`](Self::bytes).
    pub fn json<T: DeserializeOwned>(&self, limit: usize) -> Result<T, ApiError> {
        from_str(&self.text(limit)?)
            .map_err(|error| ApiError::new(ErrorCode::RuntimeError, format!("the response does not fit: {error}")))
    }

    /// Returns the lines of the body as they arrive. Lines end with LF, CRLF or CR.
    pub fn lines(self) -> Lines {
        Lines { bytes: Parts { response: Some(self) }, splitter: LineSplitter::default() }
    }

    /// Returns the text of the body in pieces as they arrive. Characters are not split; invalid UTF-8 becomes U+FFFD.
    pub fn pieces(self) -> Pieces {
        Pieces { bytes: Parts { response: Some(self) }, rest: Vec::new() }
    }

    /// Returns the server-sent events of the body as they arrive.
    pub fn events(self) -> Events {
        Events::new(Parts { response: Some(self) })
    }

    /// Returns the body as a [`std::io::Read`], for example for `std::io::copy` into an artifact.
    #[must_use]
    pub fn reader(self) -> Reader {
        Reader(self)
    }

    /// Reads at least the first `max` bytes, if the body has as many.
    fn head(&self, max: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        while bytes.len() < max {
            match self.read(READ_BYTES) {
                Ok(part) if !part.is_empty() => bytes.extend_from_slice(&part),
                _ => break,
            }
        }
        bytes
    }
}

/// Body as a [`std::io::Read`], from [`Response::reader`].
#[derive(Debug)]
pub struct Reader(Response);

impl io::Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let max = u32::try_from(buffer.len()).unwrap_or(READ_BYTES).min(READ_BYTES);
        if max == 0 {
            return Ok(0);
        }
        let part = self.0.read(max).map_err(io::Error::other)?;
        let length = part.len().min(buffer.len());
        if let (Some(to), Some(from)) = (buffer.get_mut(..length), part.get(..length)) {
            to.copy_from_slice(from);
        }
        Ok(length)
    }
}

/// Body in the parts as they arrive. The request ends with the last part.
#[derive(Debug)]
pub(super) struct Parts {
    response: Option<Response>,
}

impl Parts {
    /// Returns the next part; `None` at the end and after an error.
    pub(super) fn next(&mut self) -> Option<Result<Vec<u8>, ApiError>> {
        match self.response.as_ref()?.read(READ_BYTES) {
            Ok(part) if !part.is_empty() => Some(Ok(part)),
            Ok(_) => {
                self.response = None;
                None
            }
            Err(error) => {
                self.response = None;
                Some(Err(error))
            }
        }
    }

    pub(super) fn stop(&mut self) {
        self.response = None;
    }
}

/// Lines of a body, without line ends. Invalid UTF-8 becomes U+FFFD. An error is the last item.
#[must_use = "an iterator does nothing until `next` is called"]
#[derive(Debug)]
pub struct Lines {
    bytes: Parts,
    splitter: LineSplitter,
}

impl Iterator for Lines {
    type Item = Result<String, ApiError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let error = match self.splitter.next_line() {
                Ok(Some(line)) => return Some(Ok(line)),
                Ok(None) => None,
                Err(error) => Some(error),
            };
            match error.map_or_else(|| self.bytes.next(), |error| Some(Err(error))) {
                Some(Ok(part)) => self.splitter.push(&part),
                // An incomplete line before an error is dropped.
                Some(Err(error)) => {
                    self.bytes.stop();
                    self.splitter = LineSplitter::default();
                    return Some(Err(error));
                }
                // The last line need not have an end.
                None => return self.splitter.rest().map(Ok),
            }
        }
    }
}

/// Text of a body, in pieces as they arrive. An error is the last item.
#[must_use = "an iterator does nothing until `next` is called"]
#[derive(Debug)]
pub struct Pieces {
    bytes: Parts,
    /// Beginning of an incomplete character: at most 3 bytes.
    rest: Vec<u8>,
}

impl Iterator for Pieces {
    type Item = Result<String, ApiError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let text = match self.bytes.next() {
                Some(Ok(part)) => {
                    self.rest.extend_from_slice(&part);
                    whole_characters(&mut self.rest)
                }
                Some(Err(error)) => {
                    self.rest.clear();
                    return Some(Err(error));
                }
                None => {
                    let rest = std::mem::take(&mut self.rest);
                    return (!rest.is_empty()).then(|| Ok(String::from_utf8_lossy(&rest).into_owned()));
                }
            };
            if !text.is_empty() {
                return Some(Ok(text));
            }
        }
    }
}

/// Removes and returns all bytes but an incomplete last character.
fn whole_characters(bytes: &mut Vec<u8>) -> String {
    // A character has at most 4 bytes, so an incomplete one starts in the last 3 bytes.
    let last = bytes.len().saturating_sub(3);
    let incomplete = (last..bytes.len()).find(|at| {
        let tail = bytes.get(*at..).unwrap_or_default();
        std::str::from_utf8(tail).is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
    });
    let tail = bytes.split_off(incomplete.unwrap_or(bytes.len()));
    let whole = std::mem::replace(bytes, tail);
    String::from_utf8_lossy(&whole).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_character_that_is_not_all_there_waits_for_its_end() {
        let text = "aä€🦀z";
        for cut in 0..=text.len() {
            let (head, tail) = text.as_bytes().split_at(cut);
            let mut rest = head.to_vec();
            let first = whole_characters(&mut rest);
            assert!(text.starts_with(&first) && rest.len() < 4, "{cut}");
            rest.extend_from_slice(tail);
            assert_eq!(first + &whole_characters(&mut rest), text, "{cut}");
            assert!(rest.is_empty());
        }
        let mut broken = b"a\xffb\xf0".to_vec();
        assert_eq!(whole_characters(&mut broken), "a\u{fffd}b");
        assert_eq!(broken, [0xf0]);
    }
}
