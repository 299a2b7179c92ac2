//! Key sets of identity providers (JWKS, RFC 7517): from their address, or from a file. The content is judged elsewhere.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    time::Duration,
};

use agent_host_config::IdentityProviderConfig;
use reqwest::{
    Client, StatusCode,
    header::{ACCEPT, HeaderValue},
};

use crate::http_client;

/// The place of a key set. One connection is kept, nothing is followed, nothing is tried again.
#[derive(Debug)]
pub struct KeySetSource {
    place: Place,
    max_bytes: usize,
    patience: Duration,
}

#[derive(Debug)]
enum Place {
    Address {
        url: String,
        client: Client,
    },
    File(PathBuf),
    /// The HTTP client could not be set up.
    Broken(String),
}

/// The reason why a key set could not be had. No message has the address, which may be confidential.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeySetError {
    /// The address has no answer, or none of HTTP.
    #[error("its address does not answer: {0}")]
    Unreachable(String),
    /// The answer is an error or a redirect.
    #[error("its address answers with {0}; 200 is expected, and redirects are not followed")]
    Status(StatusCode),
    /// The whole answer did not come in time.
    #[error("it did not come within {0} ms (`fetch_ms`)")]
    Late(u128),
    /// The set is larger than allowed.
    #[error("it has more than {0} bytes (`key_set_bytes`)")]
    TooLarge(usize),
    /// The file cannot be read.
    #[error("{path} cannot be read: {source}", path = path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The HTTP client could not be set up.
    #[error("the HTTP client cannot be set up: {0}")]
    NoClient(String),
}

impl KeySetSource {
    /// The source of a checked configuration. Nothing is fetched.
    #[must_use]
    pub fn new(config: &IdentityProviderConfig) -> Self {
        let place = match (&config.jwks_url, &config.jwks_file) {
            (_, Some(path)) => Place::File(path.clone()),
            (url, None) => match http_client::builder().pool_max_idle_per_host(1).build() {
                Ok(client) => Place::Address { url: url.clone().unwrap_or_default(), client },
                Err(error) => Place::Broken(error.to_string()),
            },
        };
        Self { place, max_bytes: config.key_set_bytes, patience: Duration::from_millis(config.fetch_ms) }
    }

    /// The bytes of the set, within the size and the time of the configuration.
    ///
    /// # Errors
    /// [`KeySetError`].
    pub async fn fetch(&self) -> Result<Vec<u8>, KeySetError> {
        let fetched = async {
            match &self.place {
                Place::Address { url, client } => get(client, url, self.max_bytes).await,
                Place::File(path) => {
                    let (file, max) = (path.clone(), self.max_bytes);
                    let read = tokio::task::spawn_blocking(move || read(&file, max)).await;
                    read.unwrap_or_else(|error| Err(unreadable(path, io::Error::other(error))))
                }
                Place::Broken(problem) => Err(KeySetError::NoClient(problem.clone())),
            }
        };
        match tokio::time::timeout(self.patience, fetched).await {
            Ok(fetched) => fetched,
            Err(_) => Err(KeySetError::Late(self.patience.as_millis())),
        }
    }
}

async fn get(client: &Client, url: &str, max_bytes: usize) -> Result<Vec<u8>, KeySetError> {
    let unreachable = |error: reqwest::Error| KeySetError::Unreachable(http_client::reason(error));
    let accepted = HeaderValue::from_static("application/jwk-set+json, application/json;q=0.9");
    let mut response = client.get(url).header(ACCEPT, accepted).send().await.map_err(unreachable)?;
    if response.status() != StatusCode::OK {
        return Err(KeySetError::Status(response.status()));
    }
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(unreachable)? {
        if bytes.len().saturating_add(chunk.len()) > max_bytes {
            return Err(KeySetError::TooLarge(max_bytes));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

fn read(path: &Path, max_bytes: usize) -> Result<Vec<u8>, KeySetError> {
    let failed = |source| unreadable(path, source);
    // A pipe or a device would never end.
    if !path.metadata().map_err(failed)?.is_file() {
        return Err(failed(io::Error::other("it is no regular file")));
    }
    let mut bytes = Vec::new();
    let more_than_allowed = u64::try_from(max_bytes).unwrap_or(u64::MAX).saturating_add(1);
    File::open(path).map_err(failed)?.take(more_than_allowed).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() > max_bytes { Err(KeySetError::TooLarge(max_bytes)) } else { Ok(bytes) }
}

fn unreadable(path: &Path, source: io::Error) -> KeySetError {
    KeySetError::Unreadable { path: path.to_owned(), source }
}
