//! State: small JSON values that the host keeps for a conversation, an actor, a subject, the runner or the binding.
//!
//! ```
//! use agent_host_sdk::state::StateError;
//! use agent_host_sdk::{Context, StateScope};
//!
//! /// Stores the name of the actor and returns the one before.
//! fn rename(ctx: &Context, name: &str) -> Result<Option<String>, StateError> {
//!     let state = ctx.state(StateScope::Actor);
//!     let before = state.snapshot("name")?;
//!     state.set("name", &name)?;
//!     Ok(before)
//! }
//! ```

use std::fmt;

use serde::Serialize;
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use crate::contract::{ErrorCode, StateScope};
use crate::error::ApiError;
use crate::host::state as host;
use crate::json::{JsonError, Reader, from_str};

/// Maximum attempts of [`State::update`]. Runs of one conversation do not run concurrently, so conflicts are rare.
pub const UPDATE_TRIES: u32 = 5;

/// Scope of the state, from [`Context::state`](crate::Context::state).
///
/// [`snapshot`](Self::snapshot) reads the context without a host call; the other methods are host calls. The manifest
/// must declare the scope.
#[derive(Clone, Copy, Debug)]
pub struct State<'a> {
    scope: StateScope,
    snapshot: &'a str,
}

impl<'a> State<'a> {
    pub(crate) fn new(scope: StateScope, snapshot: &'a str) -> Self {
        Self { scope, snapshot }
    }

    /// Returns the value at the start of the run.
    ///
    /// # Errors
    /// Fails with [`StateError::Value`] if the value does not have the shape of `T`.
    pub fn snapshot<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, StateError> {
        member(self.snapshot, key).map_err(StateError::Value)
    }

    /// Returns the present value.
    ///
    /// # Errors
    /// Fails with [`StateError::Host`] for an error of the host, and with [`StateError::Value`] if the value does not
    /// have the shape of `T`.
    pub fn get<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, StateError> {
        match host::get(self.scope, key).map_err(ApiError::from)? {
            Some(json) => from_str(&json).map(Some).map_err(|error| StateError::Value(error.within(key))),
            None => Ok(None),
        }
    }

    /// Stores a value. [`results::state_updated`](crate::results::state_updated) saves this call if other results are
    /// emitted anyway.
    ///
    /// # Errors
    /// Fails with [`StateError::Host`] for an error of the host, and with [`StateError::Value`] if `value` has no JSON
    /// form.
    pub fn set(&self, key: &str, value: &impl Serialize) -> Result<(), StateError> {
        let json = serde_json::to_string(value).map_err(|error| StateError::Value(JsonError::custom(error).within(key)))?;
        Ok(host::set(self.scope, key, &json).map_err(ApiError::from)?)
    }

    /// Replaces a value: `change` maps the old value to the new one. After a conflict with a concurrent run, `change` is
    /// called again with the value of the other run.
    ///
    /// ```
    /// # use agent_host_sdk::{Context, StateScope, state::StateError};
    /// fn count(ctx: &Context) -> Result<u64, StateError> {
    ///     ctx.state(StateScope::Runner).update("seen", |seen: Option<u64>| seen.unwrap_or(0) + 1)
    /// }
    /// ```
    ///
    /// # Errors
    /// Like [`State::get`] and [`State::set`]; fails with `conflict` after [`UPDATE_TRIES`] conflicts.
    pub fn update<T: DeserializeOwned + Serialize>(
        &self,
        key: &str,
        mut change: impl FnMut(Option<T>) -> T,
    ) -> Result<T, StateError> {
        let mut tries = 1;
        loop {
            let new = change(self.get(key)?);
            match self.set(key, &new) {
                Ok(()) => return Ok(new),
                Err(StateError::Host(error)) if error.code == ErrorCode::Conflict && tries < UPDATE_TRIES => tries += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Removes a value. A missing key is not an error.
    ///
    /// # Errors
    /// Fails with the error of the host.
    pub fn delete(&self, key: &str) -> Result<(), ApiError> {
        Ok(host::delete(self.scope, key)?)
    }

    /// Returns up to `limit` keys (1 to 100) that start with `prefix`; all keys if `prefix` is empty.
    ///
    /// # Errors
    /// Fails with the error of the host.
    pub fn keys(&self, prefix: &str, limit: u32) -> Result<Vec<String>, ApiError> {
        let prefix = (!prefix.is_empty()).then_some(prefix);
        Ok(host::list_keys(self.scope, prefix, limit)?)
    }
}

/// Error of reading or writing the state.
#[derive(Debug)]
#[non_exhaustive]
pub enum StateError {
    /// Refusal or failure of the host.
    Host(ApiError),
    /// The value has another shape than the runner expects, or no JSON form.
    Value(JsonError),
}

impl fmt::Display for StateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(_) => f.write_str("the state is not reachable"),
            Self::Value(_) => f.write_str("the state has an unexpected shape"),
        }
    }
}

impl std::error::Error for StateError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Host(error) => Some(error),
            Self::Value(source) => Some(source),
        }
    }
}

impl From<ApiError> for StateError {
    fn from(error: ApiError) -> Self {
        Self::Host(error)
    }
}

/// Returns one member of a JSON object; other members are skipped without being built.
pub(crate) fn member<T: DeserializeOwned>(object: &str, key: &str) -> Result<Option<T>, JsonError> {
    struct Member<'k, T>(&'k str, std::marker::PhantomData<T>);

    impl<'de, T: DeserializeOwned> Visitor<'de> for Member<'_, T> {
        type Value = Option<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut found = None;
            while let Some(is_it) = map.next_key_seed(Is(self.0))? {
                if is_it {
                    found = Some(map.next_value()?);
                } else {
                    map.next_value::<IgnoredAny>()?;
                }
            }
            Ok(found)
        }
    }

    struct Is<'k>(&'k str);

    impl<'de> DeserializeSeed<'de> for Is<'_> {
        type Value = bool;

        fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
            deserializer.deserialize_str(self)
        }
    }

    impl Visitor<'_> for Is<'_> {
        type Value = bool;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a key")
        }

        fn visit_str<E>(self, key: &str) -> Result<bool, E> {
            Ok(key == self.0)
        }
    }

    let mut json = Reader::new(object);
    let found = (&mut json).deserialize_map(Member(key, std::marker::PhantomData))?;
    json.end()?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(snapshot: &str) -> State<'_> {
        State::new(StateScope::Conversation, snapshot)
    }

    #[test]
    fn a_snapshot_gives_the_value_of_its_key() {
        let state = state(r#"{"a": {"turns": 7}, "turns": 3, "es\"c": "x"}"#);
        assert_eq!(state.snapshot::<u64>("turns").unwrap(), Some(3));
        assert_eq!(state.snapshot::<String>("es\"c").unwrap().as_deref(), Some("x"));
        assert_eq!(state.snapshot::<u64>("missing").unwrap(), None);
    }

    #[test]
    fn a_value_of_another_shape_names_its_key() {
        let error = state(r#"{"turns": "three"}"#).snapshot::<u64>("turns").unwrap_err();
        let failure = crate::Failure::from(error);
        assert_eq!(failure.code, "runner.invalid_state");
        assert!(failure.message.contains("`turns`"), "{}", failure.message);
    }
}
