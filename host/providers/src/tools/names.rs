//! Names of tools for runners and models: `SERVER__TOOL`.

use std::collections::HashMap;

use agent_host_protocol::hex;
use sha2::{Digest, Sha256};

/// Longest name that the APIs of models accept.
pub(super) const MAX_NAME: usize = 64;
/// Hexadecimal digits that distinguish otherwise equal names.
const HASH_DIGITS: usize = 8;

/// The full names of the tools of one server, in the order of `tools`. Characters other than `A-Za-z0-9_-` become `_`.
///
/// A name without replacements is kept. If a replaced name equals that of another tool, or is cut, a part of its hash
/// follows: a name therefore depends on the set of tools and not on their order.
pub(super) fn full_names(server: &str, tools: &[&str]) -> Vec<String> {
    let plain: Vec<String> = tools.iter().map(|tool| format!("{server}__{}", replaced(tool))).collect();
    let mut uses: HashMap<&str, usize> = HashMap::new();
    for name in &plain {
        *uses.entry(name).or_default() += 1;
    }
    let full = |(name, tool): (&String, &&str)| {
        let changed = name.strip_prefix(server).and_then(|rest| rest.strip_prefix("__")) != Some(tool);
        let ambiguous = changed && uses.get(name.as_str()).is_some_and(|uses| *uses > 1);
        if name.len() > MAX_NAME || ambiguous { with_hash(name, tool) } else { name.clone() }
    };
    plain.iter().zip(tools).map(full).collect()
}

fn replaced(name: &str) -> String {
    let name: String = name.chars().map(|c| if c.is_ascii_alphanumeric() || matches!(c, '_' | '-') { c } else { '_' }).collect();
    if name.is_empty() { "_".into() } else { name }
}

fn with_hash(name: &str, tool: &str) -> String {
    let mut short: String = name.chars().take(MAX_NAME - HASH_DIGITS - 1).collect();
    short.push('_');
    short.push_str(&hex::encode(Sha256::digest(tool.as_bytes()).get(..HASH_DIGITS / 2).unwrap_or_default()));
    short
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_kept_where_they_can_be() {
        assert_eq!(full_names("fs", &["read-file", "a.b", ""]), ["fs__read-file", "fs__a_b", "fs___"]);
    }

    #[test]
    fn names_that_would_be_the_same_are_told_apart_whatever_their_order() {
        let names = full_names("s", &["a.b", "a_b", "a/b"]);
        assert_eq!(names[1], "s__a_b", "the one that needs no change keeps its name");
        assert!(names[0].starts_with("s__a_b_") && names[0] != names[2], "{names:?}");
        let mut again = full_names("s", &["a/b", "a_b", "a.b"]);
        again.reverse();
        assert_eq!(names, again);
    }

    #[test]
    fn a_long_name_is_cut_and_stays_unique() {
        let (a, b) = (format!("{}a", "x".repeat(90)), format!("{}b", "x".repeat(90)));
        let names = full_names("server", &[&a, &b]);
        assert!(names.iter().all(|name| name.len() == MAX_NAME) && names[0] != names[1], "{names:?}");
    }

    proptest! {
        #[test]
        fn every_name_fits_what_models_accept(server in "[a-zA-Z0-9-]{1,32}", tools in prop::collection::btree_set(".{0,100}", 0..8)) {
            let tools: Vec<&str> = tools.iter().map(String::as_str).collect();
            let names = full_names(&server, &tools);
            for name in &names {
                prop_assert!(name.len() <= MAX_NAME);
                prop_assert_eq!(name.split_once("__").map(|(server, _)| server), Some(server.as_str()));
                prop_assert!(name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-')));
            }
            let unique: std::collections::BTreeSet<_> = names.iter().collect();
            prop_assert_eq!(unique.len(), names.len());
        }
    }
}
