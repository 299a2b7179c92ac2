//! Many plugins of one: the guest `bench_variant` has a place for digits in its name, which are set in the file.

use std::{fs, path::Path};

use anyhow::Context;

/// The name in the built component. Only its digits can change, not its length.
const NAME: &[u8] = b"bench-variant-0000";
/// Digits in the name.
const DIGITS: usize = 4;

/// The id of the runner in variant `number`.
pub(crate) fn runner(number: usize) -> String {
    format!("plugin:test/bench-variant-{number:0DIGITS$}/default")
}

/// Writes `count` variants of a component into a directory; gives how many.
pub(crate) fn write(component: &Path, dir: &Path, count: usize) -> anyhow::Result<usize> {
    let original = fs::read(component).with_context(|| format!("{} cannot be read", component.display()))?;
    for number in 0..count {
        let component = renamed(&original, number).with_context(|| format!("{} cannot be varied", component.display()))?;
        fs::write(dir.join(format!("variant-{number:0DIGITS$}.wasm")), component)?;
    }
    Ok(count)
}

/// The component with another number in its name, wherever that stands.
fn renamed(component: &[u8], number: usize) -> anyhow::Result<Vec<u8>> {
    let name = format!("bench-variant-{number:0DIGITS$}");
    anyhow::ensure!(name.len() == NAME.len(), "{number} has more than {DIGITS} digits");
    let places: Vec<_> =
        component.windows(NAME.len()).enumerate().filter(|(_, bytes)| *bytes == NAME).map(|(at, _)| at).collect();
    anyhow::ensure!(!places.is_empty(), "its name is not in it as one piece");
    let mut renamed = component.to_vec();
    for at in places {
        if let Some(bytes) = renamed.get_mut(at..at + NAME.len()) {
            bytes.copy_from_slice(name.as_bytes());
        }
    }
    Ok(renamed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_is_set_everywhere_and_nothing_else_changes() {
        let renamed = renamed(b"\0asm bench-variant-0000, bench-variant-0000 bench-variant-000", 42).unwrap();
        assert_eq!(renamed, b"\0asm bench-variant-0042, bench-variant-0042 bench-variant-000");
        assert_eq!(runner(42), "plugin:test/bench-variant-0042/default");
    }

    #[test]
    fn a_component_without_the_name_is_refused() {
        assert!(renamed(b"\0asm", 1).is_err());
        assert!(renamed(NAME, 10_000).is_err());
    }
}
