//! Fields of the form for the configuration of a binding.

use crate::contract::agent_host::runner::manifest as contract;
use crate::json::IntoJson;

/// Field of the form. The name is the key in the configuration that [`Context::config`](crate::Context::config) reads.
///
/// ```
/// use agent_host_sdk::FormItem;
///
/// let tone = FormItem::select("tone")
///     .label("en", "Tone of the answers")
///     .option("brief", "Brief")
///     .option("friendly", "Friendly")
///     .default("brief");
/// ```
#[must_use]
#[derive(Clone, Debug, PartialEq)]
pub struct FormItem {
    contract: contract::FormItem,
}

impl FormItem {
    /// Creates a field of a kind that has no function here.
    pub fn new(name: impl Into<String>, kind: impl Into<String>) -> Self {
        Self {
            contract: contract::FormItem {
                name: name.into(),
                kind: kind.into(),
                label: Vec::new(),
                description: None,
                required: false,
                default: None,
                options: Vec::new(),
            },
        }
    }

    /// Creates a field for one line of text.
    pub fn string(name: impl Into<String>) -> Self {
        Self::new(name, "string")
    }

    /// Creates a field for text of several lines, such as a prompt.
    pub fn text(name: impl Into<String>) -> Self {
        Self::new(name, "text")
    }

    /// Creates a field for an integer.
    pub fn integer(name: impl Into<String>) -> Self {
        Self::new(name, "integer")
    }

    /// Creates a field for a number.
    pub fn float(name: impl Into<String>) -> Self {
        Self::new(name, "float")
    }

    /// Creates a field for a boolean.
    pub fn boolean(name: impl Into<String>) -> Self {
        Self::new(name, "boolean")
    }

    /// Creates a field for one of several values; [`FormItem::option`] adds a value.
    pub fn select(name: impl Into<String>) -> Self {
        Self::new(name, "select")
    }

    /// Creates a field for a model of the host.
    pub fn model(name: impl Into<String>) -> Self {
        Self::new(name, "model")
    }

    /// Creates a field for tools of the host.
    pub fn tools(name: impl Into<String>) -> Self {
        Self::new(name, "tools")
    }

    /// Creates a field for knowledge bases of the host.
    pub fn knowledge_bases(name: impl Into<String>) -> Self {
        Self::new(name, "knowledge-bases")
    }

    /// Creates a field for the name of a secret that the operator keeps. The runner never sees the secret.
    pub fn secret(name: impl Into<String>) -> Self {
        Self::new(name, "secret")
    }

    /// Adds the displayed name in one language. Call once per language. Default: the name of the field.
    pub fn label(mut self, language: impl Into<String>, text: impl Into<String>) -> Self {
        self.contract.label.push((language.into(), text.into()));
        self
    }

    /// Adds a description in one language.
    pub fn description(mut self, language: impl Into<String>, text: impl Into<String>) -> Self {
        let description = self.contract.description.get_or_insert_default();
        description.push((language.into(), text.into()));
        self
    }

    /// Makes the field required: the host refuses a binding without this field.
    pub fn required(mut self) -> Self {
        self.contract.required = true;
        self
    }

    /// Sets the default value. The type that reads the configuration needs the same default: `#[serde(default)]`.
    pub fn default(mut self, value: impl IntoJson) -> Self {
        self.contract.default = Some(value.into_json());
        self
    }

    /// Adds a choice to a [`select`](FormItem::select), with an English label.
    pub fn option(mut self, value: impl Into<String>, label: impl Into<String>) -> Self {
        self.contract.options.push((value.into(), vec![("en".to_owned(), label.into())]));
        self
    }
}

impl From<FormItem> for contract::FormItem {
    fn from(item: FormItem) -> Self {
        let mut contract = item.contract;
        if contract.label.is_empty() {
            contract.label.push(("en".to_owned(), contract.name.clone()));
        }
        contract
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_select_has_its_choices_and_a_default_in_json() {
        let item =
            contract::FormItem::from(FormItem::select("mode").option("fast", "Fast").option("slow", "Slow").default("fast"));
        assert_eq!(item.kind, "select");
        assert_eq!(item.default.as_deref(), Some("\"fast\""));
        assert_eq!(item.options[1].0, "slow");
        assert_eq!(item.options[1].1, [("en".to_owned(), "Slow".to_owned())]);
        assert_eq!(item.label, [("en".to_owned(), "mode".to_owned())]);
        assert!(!item.required);
    }
}
