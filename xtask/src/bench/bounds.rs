//! Bounds of the counts: what a run may take, whatever the hour and the machine.

use std::{collections::BTreeMap, fs};

use anyhow::Context;
use toml::Value;

use super::figures::{FIGURES, is_count};
use crate::workspace::Workspace;

/// The file of the bounds, in the repository.
pub(crate) const FILE: &str = "docs/bench-bounds.toml";

/// The bounds, by the names of figures.
#[derive(Debug, PartialEq)]
pub(crate) struct Bounds(BTreeMap<String, f64>);

impl Bounds {
    pub(crate) fn read(workspace: &Workspace) -> anyhow::Result<Self> {
        let text = fs::read_to_string(workspace.root().join(FILE)).with_context(|| format!("{FILE} cannot be read"))?;
        Self::parse(&text).with_context(|| format!("{FILE} is not as it should be"))
    }

    /// Each name must be that of a count, and each bound a number that a count can reach.
    fn parse(text: &str) -> anyhow::Result<Self> {
        let mut bounds = BTreeMap::new();
        flatten("", &Value::Table(toml::from_str(text)?), &mut bounds)?;
        for (name, bound) in &bounds {
            let is_known = is_count(name) && FIGURES.iter().any(|(figure, _)| figure == name);
            anyhow::ensure!(is_known, "`{name}` is not a count; `cargo xtask bench --help` lists them");
            anyhow::ensure!(bound.is_finite() && *bound >= 0.0, "the bound of `{name}` is {bound}");
        }
        Ok(Self(bounds))
    }

    /// The verdict on a count: `None` where it has no bound.
    pub(crate) fn judge(&self, name: &str, value: f64) -> Option<Verdict> {
        let bound = *self.0.get(name)?;
        // A value that is not a number is no proof of anything.
        Some(Verdict { bound, is_over: value.is_nan() || value > bound })
    }
}

/// A count beside its bound.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Verdict {
    pub(crate) bound: f64,
    pub(crate) is_over: bool,
}

/// Dots in a name make tables in TOML; here they are parts of the name.
fn flatten(prefix: &str, value: &Value, bounds: &mut BTreeMap<String, f64>) -> anyhow::Result<()> {
    let bound = match value {
        Value::Table(table) => {
            for (key, value) in table {
                let name = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
                flatten(&name, value, bounds)?;
            }
            return Ok(());
        }
        Value::Integer(number) => *number as f64,
        Value::Float(number) => *number,
        other => anyhow::bail!("`{prefix}` is `{other}` and not a number"),
    };
    bounds.insert(prefix.to_owned(), bound);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_within_its_bound_or_over() {
        let bounds = Bounds::parse("# why\necho.count.256.rows = 26\necho.count.1.commits = 2.5\n").unwrap();
        let judge = |name: &str, value: f64| bounds.judge(name, value).map(|verdict| (verdict.bound, verdict.is_over));
        assert_eq!(judge("echo.count.256.rows", 26.0), Some((26.0, false)));
        assert_eq!(judge("echo.count.256.rows", 26.01), Some((26.0, true)));
        assert_eq!(judge("echo.count.1.commits", f64::NAN), Some((2.5, true)));
        assert_eq!(judge("echo.count.1.rows", 26.0), None);
    }

    #[test]
    fn a_bound_without_effect_is_refused() {
        for text in [
            "echo.count.256.row = 26",
            "echo.cpu_us_per_run = 120",
            "echo.count.256.rows = \"26\"",
            "echo.count.256.rows = -1",
            "echo.count.256.rows = nan",
            "echo.count.256.rows = 1\necho.count.256.rows = 2",
        ] {
            assert!(Bounds::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn every_count_has_a_bound_and_the_file_is_sorted() {
        let text = include_str!("../../../docs/bench-bounds.toml");
        let bounds = Bounds::parse(text).unwrap();
        for (name, _) in FIGURES.iter().filter(|(name, _)| is_count(name)) {
            assert!(bounds.0.contains_key(*name), "{name} has no bound");
        }
        let names: Vec<_> = text.lines().filter_map(|line| line.split_once(" = ")).map(|(name, _)| name).collect();
        let names: Vec<_> = names.into_iter().filter(|name| !name.starts_with('#')).collect();
        assert!(names.is_sorted(), "{names:?}");
        assert_eq!(names.len(), bounds.0.len());
    }
}
