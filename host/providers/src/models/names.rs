//! Names of tools as a provider takes them.

use std::collections::{HashMap, HashSet};

/// The longest name that OpenAI takes.
const MAX_NAME_CHARS: usize = 64;

/// Two-way translation for one request. OpenAI takes letters, digits, `_` and `-`; tools of MCP servers have dots and
/// slashes too. A name that is fine stays as it is.
#[derive(Debug, Default)]
pub(super) struct ToolNames {
    to_wire: HashMap<String, String>,
    to_host: HashMap<String, String>,
}

impl ToolNames {
    /// The mapping for these names. Valid names come first, so that no converted name takes their place.
    pub(super) fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let mut made = Self::default();
        let (fine, others): (HashSet<&str>, Vec<&str>) =
            names.into_iter().fold(Default::default(), |(mut fine, mut others), name| {
                if is_fine(name) {
                    fine.insert(name);
                } else {
                    others.push(name);
                }
                (fine, others)
            });
        for name in others {
            if made.to_wire.contains_key(name) {
                continue;
            }
            let plain: String = name.chars().take(MAX_NAME_CHARS).map(|c| if is_fine_char(c) { c } else { '_' }).collect();
            let free = |wire: &str| is_fine(wire) && !fine.contains(wire) && !made.to_host.contains_key(wire);
            let wire = (2..).map(|number: u32| {
                let end = format!("_{number}");
                plain.chars().take(MAX_NAME_CHARS - end.len()).chain(end.chars()).collect()
            });
            if let Some(wire) = std::iter::once(plain.clone()).chain(wire).find(|wire| free(wire)) {
                made.to_host.insert(wire.clone(), name.to_owned());
                made.to_wire.insert(name.to_owned(), wire);
            }
        }
        made
    }

    /// The name for the provider.
    pub(super) fn to_wire<'a>(&'a self, name: &'a str) -> &'a str {
        self.to_wire.get(name).map_or(name, String::as_str)
    }

    /// The name that the provider means.
    pub(super) fn to_host<'a>(&'a self, name: &'a str) -> &'a str {
        self.to_host.get(name).map_or(name, String::as_str)
    }
}

const fn is_fine_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-')
}

fn is_fine(name: &str) -> bool {
    !name.is_empty() && name.len() <= MAX_NAME_CHARS && name.chars().all(is_fine_char)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_name_that_is_fine_stays_and_no_other_takes_its_place() {
        let names = ToolNames::new(["a.b", "a_b", "a/b", "搜索"]);
        assert_eq!(names.to_wire("a_b"), "a_b");
        assert_eq!((names.to_wire("a.b"), names.to_host("a_b_2")), ("a_b_2", "a.b"));
        assert_eq!(names.to_wire("a/b"), "a_b_3");
        assert_eq!(names.to_host(names.to_wire("搜索")), "搜索");
        assert_eq!(names.to_host("invented"), "invented");
    }

    proptest! {
        #[test]
        fn every_name_comes_back(names in prop::collection::vec("[a._]{0,3}|.{60,70}", 0..12)) {
            let made = ToolNames::new(names.iter().map(String::as_str));
            for name in &names {
                let wire = made.to_wire(name);
                prop_assert!(is_fine(wire));
                prop_assert_eq!(made.to_host(wire), name);
            }
        }
    }
}
