//! Error of a JSON document, with its position.

use std::fmt;

use serde::de::{self, Expected, Unexpected};

/// Error of reading a JSON document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonError {
    path: String,
    message: String,
}

impl JsonError {
    /// Returns the path of the error, such as `hosts[1].name`; empty for the document as a whole.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns the description of the error.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    pub(super) fn new(message: impl Into<String>) -> Self {
        Self { path: String::new(), message: message.into() }
    }

    /// Prepends a step to the path of the error.
    pub(crate) fn within(mut self, step: &str) -> Self {
        let dot = !self.path.is_empty() && !self.path.starts_with('[');
        self.path.insert_str(0, if dot { "." } else { "" });
        self.path.insert_str(0, step);
        self
    }
}

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            f.write_str("field `")?;
            f.write_str(&self.path)?;
            f.write_str("`: ")?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for JsonError {}

impl de::Error for JsonError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new(message.to_string())
    }

    // Own versions of two methods of serde, whose description of a value can format a float.

    fn invalid_type(unexpected: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::new(format!("expected {expected}, found {}", describe(unexpected)))
    }

    fn invalid_value(unexpected: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::new(format!("expected {expected}, found {}", describe(unexpected)))
    }
}

fn describe(value: Unexpected<'_>) -> String {
    match value {
        Unexpected::Bool(value) => if value { "`true`" } else { "`false`" }.to_owned(),
        Unexpected::Unsigned(value) => format!("the number {value}"),
        Unexpected::Signed(value) => format!("the number {value}"),
        Unexpected::Float(_) => "a number with a fraction".to_owned(),
        Unexpected::Char(value) => format!("the text `{value}`"),
        Unexpected::Str(value) => format!("the text `{value}`"),
        Unexpected::Unit => "`null`".to_owned(),
        Unexpected::Seq => "an array".to_owned(),
        Unexpected::Map => "an object".to_owned(),
        Unexpected::Other(what) => what.to_owned(),
        _ => "this".to_owned(),
    }
}
