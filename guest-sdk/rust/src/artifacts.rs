//! Artifacts: files that the host keeps, such as attachments of a message. Messages and events contain references; a
//! runner reads the content on demand.
//!
//! ```
//! use std::io::{BufRead as _, BufReader, Write as _};
//!
//! use agent_host_sdk::{Completion, Context, Failure};
//!
//! /// Numbers the lines of each attachment.
//! fn run(ctx: Context) -> Result<Completion, Failure> {
//!     for attachment in ctx.attachments() {
//!         let lines = BufReader::new(ctx.artifacts().open(&attachment.artifact_id)?).lines();
//!         let mut numbered = ctx.artifacts().create("text/plain", Some("numbered.txt"))?;
//!         for (number, line) in lines.enumerate() {
//!             writeln!(numbered, "{number}: {}", line?)?;
//!         }
//!         numbered.finish()?;
//!     }
//!     Ok(Completion::stop())
//! }
//! ```

use std::io;

use crate::contract::{ArtifactMetadata, ArtifactRef, ErrorCode};
use crate::error::ApiError;
use crate::host::artifacts as host;

/// Size of one read or write: few calls, and far below the host's limit of 1 MiB.
const CHUNK_BYTES: usize = 64 * 1024;

/// Maximum size of one ranged read.
const RANGE_BYTES: u32 = 1024 * 1024;

/// Artifacts that this run may use, from [`Context::artifacts`](crate::Context::artifacts). The manifest must declare
/// [`ArtifactOperation`](crate::ArtifactOperation)s.
#[derive(Clone, Copy, Debug, Default)]
pub struct Artifacts(());

impl Artifacts {
    pub(crate) fn new() -> Self {
        Self(())
    }

    /// Returns media type, name, size, creation time and expiry.
    ///
    /// # Errors
    /// Fails with the error of the host.
    pub fn metadata(self, artifact_id: &str) -> Result<ArtifactMetadata, ApiError> {
        Ok(host::metadata(artifact_id)?)
    }

    /// Returns up to `length` bytes (at most 1 MiB) from `offset`; fewer at the end.
    ///
    /// # Errors
    /// Fails with the error of the host.
    pub fn read_range(self, artifact_id: &str, offset: u64, length: u32) -> Result<Vec<u8>, ApiError> {
        Ok(host::read_range(artifact_id, offset, length)?)
    }

    /// Returns the whole content.
    ///
    /// # Errors
    /// Fails with `payload_too_large` if the content has more than `max_bytes`; otherwise with the error of the host.
    pub fn read_all(self, artifact_id: &str, max_bytes: usize) -> Result<Vec<u8>, ApiError> {
        let reader = host::open(artifact_id)?;
        let mut content = Vec::new();
        loop {
            let chunk = reader.read(CHUNK_BYTES as u32)?;
            if chunk.is_empty() {
                return Ok(content);
            }
            if content.len() + chunk.len() > max_bytes {
                return Err(ApiError {
                    code: ErrorCode::PayloadTooLarge,
                    message: format!("the artifact has more than {max_bytes} bytes: read a part of it"),
                    retryable: false,
                    details: None,
                });
            }
            content.extend_from_slice(&chunk);
        }
    }

    /// Returns the whole content as text. Invalid UTF-8 becomes `U+FFFD`.
    ///
    /// # Errors
    /// Like [`Artifacts::read_all`].
    pub fn read_text(self, artifact_id: &str, max_bytes: usize) -> Result<String, ApiError> {
        Ok(match String::from_utf8(self.read_all(artifact_id, max_bytes)?) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        })
    }

    /// Returns a part of the content as text, from `offset`: whole characters of at most `max_bytes`, and the offset of
    /// the next part, if any.
    ///
    /// # Errors
    /// Fails with the error of the host.
    pub fn text_part(self, artifact_id: &str, offset: u64, max_bytes: u32) -> Result<(String, Option<u64>), ApiError> {
        let length = max_bytes.clamp(4, RANGE_BYTES);
        let bytes = self.read_range(artifact_id, offset, length)?;
        let full = bytes.len() >= length as usize;
        // A character that is cut by the end of the part belongs to the next part.
        let whole = match std::str::from_utf8(&bytes) {
            Err(error) if full && error.error_len().is_none() => error.valid_up_to(),
            _ => bytes.len(),
        };
        let text = String::from_utf8_lossy(bytes.get(..whole).unwrap_or_default()).into_owned();
        Ok((text, full.then_some(offset + whole as u64)))
    }

    /// Opens the content as a [`std::io::Read`].
    ///
    /// # Errors
    /// Fails with the error of the host.
    pub fn open(self, artifact_id: &str) -> Result<ArtifactReader, ApiError> {
        Ok(ArtifactReader { reader: host::open(artifact_id)?, chunk: Vec::new(), at: 0 })
    }

    /// Creates an artifact as a [`std::io::Write`]. The artifact exists only after [`finish`](ArtifactWriter::finish).
    ///
    /// # Errors
    /// Fails with the error of the host.
    pub fn create(self, media_type: &str, name: Option<&str>) -> Result<ArtifactWriter, ApiError> {
        Ok(ArtifactWriter { writer: host::create(media_type, name)?, chunk: Vec::new() })
    }

    /// Creates an artifact from bytes or text in memory.
    ///
    /// # Errors
    /// Fails with the error of the host.
    pub fn store(self, media_type: &str, name: Option<&str>, content: impl AsRef<[u8]>) -> Result<ArtifactRef, ApiError> {
        let writer = host::create(media_type, name)?;
        for chunk in content.as_ref().chunks(CHUNK_BYTES) {
            writer.write(chunk)?;
        }
        Ok(host::Writer::finish(writer)?)
    }
}

/// Reader of an artifact. Errors are those of the host; `?` in a runner keeps their code.
#[derive(Debug)]
pub struct ArtifactReader {
    reader: host::Reader,
    chunk: Vec<u8>,
    /// Number of bytes of `chunk` that were returned.
    at: usize,
}

impl io::Read for ArtifactReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        if self.at >= self.chunk.len() {
            self.chunk = self.reader.read(CHUNK_BYTES as u32).map_err(failed)?;
            self.at = 0;
        }
        let mut rest = self.chunk.get(self.at..).unwrap_or_default();
        let count = io::Read::read(&mut rest, buffer)?;
        self.at += count;
        Ok(count)
    }
}

/// Writer of an artifact. **Without [`finish`](Self::finish) the artifact never exists.**
#[must_use = "an artifact exists only after `finish`"]
#[derive(Debug)]
pub struct ArtifactWriter {
    writer: host::Writer,
    chunk: Vec<u8>,
}

impl ArtifactWriter {
    /// Stores the content and returns the reference for a message.
    ///
    /// # Errors
    /// Fails with the error of the host.
    pub fn finish(mut self) -> Result<ArtifactRef, ApiError> {
        self.send()?;
        Ok(host::Writer::finish(self.writer)?)
    }

    fn send(&mut self) -> Result<(), ApiError> {
        if !self.chunk.is_empty() {
            self.writer.write(&self.chunk)?;
            self.chunk.clear();
        }
        Ok(())
    }
}

impl io::Write for ArtifactWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.chunk.len() >= CHUNK_BYTES {
            self.flush()?;
        }
        let room = CHUNK_BYTES - self.chunk.len();
        let head = bytes.get(..room.min(bytes.len())).unwrap_or_default();
        self.chunk.extend_from_slice(head);
        Ok(head.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send().map_err(io::Error::other)
    }
}

fn failed(error: impl Into<ApiError>) -> io::Error {
    io::Error::other(error.into())
}
