//! JSON objects that are taken apart, and such that are put together.

use serde_json::{Map, Value};

/// The members of a JSON object that nobody has taken yet. A member that is `null` counts as absent.
pub(super) struct Members(Map<String, Value>);

impl Members {
    /// The members of an object. Any other value has none.
    pub(super) fn of(value: Value) -> Self {
        if let Value::Object(members) = value { Self(members) } else { Self(Map::new()) }
    }

    /// The members of a member.
    pub(super) fn within(&mut self, name: &str) -> Self {
        Self::of(self.take(name).unwrap_or_default())
    }

    pub(super) fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name).filter(|value| !value.is_null())
    }

    /// A member that stays.
    pub(super) fn peek(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    /// The member under its name, for [`object`].
    pub(super) fn named(&mut self, name: &'static str) -> (&'static str, Option<Value>) {
        (name, self.take(name))
    }

    pub(super) fn text(&mut self, name: &str) -> Option<String> {
        if let Some(Value::String(text)) = self.take(name) { Some(text) } else { None }
    }

    /// The items of a list, each made into another value.
    pub(super) fn list(&mut self, name: &str, item: impl FnMut(Value) -> Value) -> Vec<Value> {
        if let Some(Value::Array(items)) = self.take(name) { items.into_iter().map(item).collect() } else { Vec::new() }
    }

    /// A time of the host (ms) as a time of LangBot (s).
    pub(super) fn seconds(&mut self, name: &'static str) -> (&'static str, Option<Value>) {
        (name, self.take(name).and_then(|time| seconds(&time)))
    }

    /// The members that nobody has taken.
    pub(super) fn rest(self) -> Map<String, Value> {
        self.0
    }
}

/// A time in ms as whole seconds.
pub(super) fn seconds(time: &Value) -> Option<Value> {
    Some((time.as_u64()? / 1_000).into())
}

/// An object of the members that are there.
pub(super) fn object(members: impl IntoIterator<Item = (&'static str, Option<Value>)>) -> Value {
    Value::Object(members.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect())
}

/// True if an object has the member, and a value in it.
pub(super) fn has(value: &Value, name: &str) -> bool {
    value.get(name).is_some_and(|member| !member.is_null())
}
