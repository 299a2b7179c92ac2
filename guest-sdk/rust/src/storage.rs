//! Storage: bytes by key that outlive the run, in an area of the plugin, the workspace or the binding.
//!
//! ```
//! use agent_host_sdk::{Context, Failure, StorageArea};
//!
//! fn count(ctx: &Context) -> Result<u64, Failure> {
//!     let storage = ctx.storage(StorageArea::Plugin);
//!     let seen = storage.get_json::<u64>("seen")?.unwrap_or(0) + 1;
//!     storage.set_json("seen", &seen)?;
//!     Ok(seen)
//! }
//! ```

use std::fmt;

use serde::Serialize;
use serde::de::{DeserializeOwned, Error as _};

use crate::contract::StorageArea;
use crate::error::ApiError;
use crate::host::storage as host;
use crate::json::{JsonError, from_str};

/// Area of the storage, from [`Context::storage`](crate::Context::storage). The manifest must declare the area.
#[derive(Clone, Copy, Debug)]
pub struct Storage {
    area: StorageArea,
}

impl Storage {
    pub(crate) fn new(area: StorageArea) -> Self {
        Self { area }
    }

    /// Returns the bytes of a key.
    ///
    /// # Errors
    /// Fails with the error of the host.
    pub fn get(&self, key: &str) -> Result<Option<Vec<u8>>, ApiError> {
        Ok(host::get(self.area, key)?)
    }

    /// Stores bytes under a key, at most 10 MiB.
    ///
    /// # Errors
    /// Fails with the error of the host.
    pub fn set(&self, key: &str, value: &[u8]) -> Result<(), ApiError> {
        Ok(host::set(self.area, key, value)?)
    }

    /// Removes a key. A missing key is not an error.
    ///
    /// # Errors
    /// Fails with the error of the host.
    pub fn delete(&self, key: &str) -> Result<(), ApiError> {
        Ok(host::delete(self.area, key)?)
    }

    /// Returns up to `limit` keys (1 to 100) that start with `prefix`; all keys if `prefix` is empty.
    ///
    /// # Errors
    /// Fails with the error of the host.
    pub fn keys(&self, prefix: &str, limit: u32) -> Result<Vec<String>, ApiError> {
        Ok(host::list(self.area, (!prefix.is_empty()).then_some(prefix), limit)?)
    }

    /// Returns the value of a JSON document.
    ///
    /// # Errors
    /// Fails with [`StorageError::Host`] for an error of the host, and with [`StorageError::Value`] if the bytes are not
    /// JSON of the shape of `T`.
    pub fn get_json<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, StorageError> {
        let Some(bytes) = self.get(key)? else { return Ok(None) };
        let value = std::str::from_utf8(&bytes).map_err(JsonError::custom).and_then(from_str);
        value.map(Some).map_err(|error| StorageError::Value(error.within(key)))
    }

    /// Stores a value as a JSON document.
    ///
    /// # Errors
    /// Fails with [`StorageError::Host`] for an error of the host, and with [`StorageError::Value`] if the value has no
    /// JSON form.
    pub fn set_json(&self, key: &str, value: &impl Serialize) -> Result<(), StorageError> {
        let json = serde_json::to_vec(value).map_err(|error| StorageError::Value(JsonError::custom(error).within(key)))?;
        Ok(self.set(key, &json)?)
    }
}

/// Error of reading or writing the storage.
#[derive(Debug)]
#[non_exhaustive]
pub enum StorageError {
    /// Refusal or failure of the host.
    Host(ApiError),
    /// The bytes are not the expected JSON, or a value has no JSON form.
    Value(JsonError),
}

impl fmt::Display for StorageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(_) => f.write_str("the storage is not reachable"),
            Self::Value(_) => f.write_str("the storage has an unexpected shape"),
        }
    }
}

impl std::error::Error for StorageError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Host(error) => Some(error),
            Self::Value(source) => Some(source),
        }
    }
}

impl From<ApiError> for StorageError {
    fn from(error: ApiError) -> Self {
        Self::Host(error)
    }
}
