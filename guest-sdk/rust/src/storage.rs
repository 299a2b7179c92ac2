//! Bytes that outlive the run: a plugin's own, a workspace's, or a binding's.
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

/// One area, as [`Context::storage`](crate::Context::storage) gives it. The manifest must declare
/// it.
#[derive(Clone, Copy, Debug)]
pub struct Storage {
    area: StorageArea,
}

impl Storage {
    pub(crate) fn new(area: StorageArea) -> Self {
        Self { area }
    }

    /// The bytes under a key.
    ///
    /// # Errors
    /// As the host answers.
    pub fn get(&self, key: &str) -> Result<Option<Vec<u8>>, ApiError> {
        Ok(host::get(self.area, key)?)
    }

    /// Stores bytes under a key, at most 10 MiB.
    ///
    /// # Errors
    /// As the host answers.
    pub fn set(&self, key: &str, value: &[u8]) -> Result<(), ApiError> {
        Ok(host::set(self.area, key, value)?)
    }

    /// Removes a key. One that is not there is no error.
    ///
    /// # Errors
    /// As the host answers.
    pub fn delete(&self, key: &str) -> Result<(), ApiError> {
        Ok(host::delete(self.area, key)?)
    }

    /// The keys that start with `prefix` (all, where it is empty), at most `limit` (1 to 100).
    ///
    /// # Errors
    /// As the host answers.
    pub fn keys(&self, prefix: &str, limit: u32) -> Result<Vec<String>, ApiError> {
        Ok(host::list(self.area, (!prefix.is_empty()).then_some(prefix), limit)?)
    }

    /// The value of a JSON document under a key.
    ///
    /// # Errors
    /// [`StorageError::Host`] as the host answers, [`StorageError::Value`] when it is no JSON or
    /// has not the shape of `T`.
    pub fn get_json<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, StorageError> {
        let Some(bytes) = self.get(key)? else { return Ok(None) };
        let value = std::str::from_utf8(&bytes).map_err(JsonError::custom).and_then(from_str);
        value.map(Some).map_err(|error| StorageError::Value(error.within(key)))
    }

    /// Stores a value as a JSON document.
    ///
    /// # Errors
    /// [`StorageError::Host`] as the host answers, [`StorageError::Value`] when it has no JSON form.
    pub fn set_json(&self, key: &str, value: &impl Serialize) -> Result<(), StorageError> {
        let json = serde_json::to_vec(value).map_err(|error| StorageError::Value(JsonError::custom(error).within(key)))?;
        Ok(self.set(key, &json)?)
    }
}

/// Why a value of the storage could not be read or written.
#[derive(Debug)]
#[non_exhaustive]
pub enum StorageError {
    /// The host refused or failed.
    Host(ApiError),
    /// The bytes are not the JSON that the runner expects, or a value has none.
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
