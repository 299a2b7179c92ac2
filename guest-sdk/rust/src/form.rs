//! Fields of the form by which a binding is configured.

use crate::contract::agent_host::runner::manifest as contract;
use crate::json::IntoJson;

/// One field. The name is the key in the configuration that
/// [`Context::config`](crate::Context::config) reads.
#[must_use]
#[derive(Clone, Debug, PartialEq)]
pub struct FormItem {
    contract: contract::FormItem,
}

impl FormItem {
    /// A field of a kind that this SDK has no function for.
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

    /// A line of text.
    pub fn string(name: impl Into<String>) -> Self {
        Self::new(name, "string")
    }

    /// Text of several lines, such as a prompt.
    pub fn text(name: impl Into<String>) -> Self {
        Self::new(name, "text")
    }

    /// A whole number.
    pub fn integer(name: impl Into<String>) -> Self {
        Self::new(name, "integer")
    }

    /// A number.
    pub fn float(name: impl Into<String>) -> Self {
        Self::new(name, "float")
    }

    /// Yes or no.
    pub fn boolean(name: impl Into<String>) -> Self {
        Self::new(name, "boolean")
    }

    /// One of several values, which [`FormItem::option`] adds.
    pub fn select(name: impl Into<String>) -> Self {
        Self::new(name, "select")
    }

    /// A model of the host.
    pub fn model(name: impl Into<String>) -> Self {
        Self::new(name, "model")
    }

    /// Tools of the host.
    pub fn tools(name: impl Into<String>) -> Self {
        Self::new(name, "tools")
    }

    /// Knowledge bases of the host.
    pub fn knowledge_bases(name: impl Into<String>) -> Self {
        Self::new(name, "knowledge-bases")
    }

    /// The name of a secret that the operator keeps. The runner never sees its value.
    pub fn secret(name: impl Into<String>) -> Self {
        Self::new(name, "secret")
    }

    /// The name that people see, in a language; call it once a language. Without any, it is the
    /// name of the field.
    pub fn label(mut self, language: impl Into<String>, text: impl Into<String>) -> Self {
        self.contract.label.push((language.into(), text.into()));
        self
    }

    /// What the field means, in a language.
    pub fn description(mut self, language: impl Into<String>, text: impl Into<String>) -> Self {
        let description = self.contract.description.get_or_insert_default();
        description.push((language.into(), text.into()));
        self
    }

    /// A binding without this field is refused.
    pub fn required(mut self) -> Self {
        self.contract.required = true;
        self
    }

    /// The value where the binding gives none. Give the type that reads the configuration the same
    /// default: `#[serde(default)]`.
    pub fn default(mut self, value: impl IntoJson) -> Self {
        self.contract.default = Some(value.into_json());
        self
    }

    /// One more choice of a [`select`](FormItem::select), with its English label.
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
