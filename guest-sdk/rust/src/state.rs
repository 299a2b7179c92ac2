//! Small JSON values that the host keeps for a conversation, an actor, a subject, the runner or the
//! binding.

use std::fmt;

use serde::Serialize;
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use crate::contract::{ErrorCode, StateScope};
use crate::error::ApiError;
use crate::host::state as host;
use crate::json::{JsonError, Reader, from_str};

/// How often [`State::update`] tries. Runs of one conversation do not run at the same time, so a
/// conflict is rare in the first place.
pub const UPDATE_TRIES: u32 = 5;

/// One scope of the state, as [`Context::state`](crate::Context::state) gives it.
///
/// [`snapshot`](Self::snapshot) reads what the host put into the context and costs nothing;
/// the other methods are host calls. The manifest must declare the scope.
#[derive(Clone, Copy, Debug)]
pub struct State<'a> {
    scope: StateScope,
    snapshot: &'a str,
}

impl<'a> State<'a> {
    pub(crate) fn new(scope: StateScope, snapshot: &'a str) -> Self {
        Self { scope, snapshot }
    }

    /// The value as it was when the run started.
    ///
    /// # Errors
    /// [`StateError::Value`] when the value has not the shape of `T`.
    pub fn snapshot<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, StateError> {
        member(self.snapshot, key).map_err(StateError::Value)
    }

    /// The value now.
    ///
    /// # Errors
    /// [`StateError::Host`] as the host answers, [`StateError::Value`] when the value has not the
    /// shape of `T`.
    pub fn get<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, StateError> {
        match host::get(self.scope, key).map_err(ApiError::from)? {
            Some(json) => from_str(&json).map(Some).map_err(|error| StateError::Value(error.within(key))),
            None => Ok(None),
        }
    }

    /// Stores a value. Where results are emitted anyway,
    /// [`results::state_updated`](crate::results::state_updated) saves this call.
    ///
    /// # Errors
    /// [`StateError::Host`] as the host answers, [`StateError::Value`] when `value` has no JSON
    /// form.
    pub fn set(&self, key: &str, value: &impl Serialize) -> Result<(), StateError> {
        let json = serde_json::to_string(value).map_err(|error| StateError::Value(JsonError::custom(error).within(key)))?;
        Ok(host::set(self.scope, key, &json).map_err(ApiError::from)?)
    }

    /// Changes a value by what it is now: `change` gets the old one and gives the new one. When a
    /// concurrent run was faster, it is asked again with the value that this run left.
    ///
    /// ```
    /// # use agent_host_sdk::{Context, StateScope, state::StateError};
    /// fn count(ctx: &Context) -> Result<u64, StateError> {
    ///     ctx.state(StateScope::Runner).update("seen", |seen: Option<u64>| seen.unwrap_or(0) + 1)
    /// }
    /// ```
    ///
    /// # Errors
    /// As [`State::get`] and [`State::set`]; `conflict` when others were faster
    /// [`UPDATE_TRIES`] times.
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

    /// Removes a value. A key that is not there is no error.
    ///
    /// # Errors
    /// As the host answers.
    pub fn delete(&self, key: &str) -> Result<(), ApiError> {
        Ok(host::delete(self.scope, key)?)
    }

    /// The keys that start with `prefix` (all, where it is empty), at most `limit` (1 to 100).
    ///
    /// # Errors
    /// As the host answers.
    pub fn keys(&self, prefix: &str, limit: u32) -> Result<Vec<String>, ApiError> {
        let prefix = (!prefix.is_empty()).then_some(prefix);
        Ok(host::list_keys(self.scope, prefix, limit)?)
    }
}

/// Why a value of the state could not be read or written.
#[derive(Debug)]
#[non_exhaustive]
pub enum StateError {
    /// The host refused or failed.
    Host(ApiError),
    /// The value has another shape than the runner expects, or none in JSON.
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

/// One member of a JSON object; the others are skipped without being built.
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
