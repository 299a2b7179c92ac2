//! The table in `docs/PERFORMANCE.md`.

use anyhow::Context;

use super::{FIGURES, machine::Machine, session::Figure};

const BEGIN: &str = "<!-- bench:begin -->";
const END: &str = "<!-- bench:end -->";
const HEAD: &str = "| figure | value | unit | measured |\n|---|---:|---|---|\n";

/// The page, where there is none yet.
pub(crate) const EMPTY_PAGE: &str =
    "# Performance\n\n`cargo xtask bench` measures these and writes them here.\n\n<!-- bench:begin -->\n<!-- bench:end -->\n";

/// A number with three digits that count, or all before the point.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        1.0.. => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// The page with these figures in its table. Those of earlier calls stay, unless another machine measured them.
pub(crate) fn update(page: &str, machine: &Machine, date: &str, figures: &[Figure]) -> anyhow::Result<String> {
    let (before, rest) = page.split_once(BEGIN).with_context(|| missing(BEGIN))?;
    let (old, after) = rest.split_once(END).with_context(|| missing(END))?;
    let hardware = format!("Machine: {}.", machine.hardware);
    let kept = if old.contains(&hardware) { old } else { "" };
    let rows = FIGURES.iter().filter_map(|(name, _)| match figures.iter().find(|figure| figure.name == *name) {
        Some(Figure { value, unit, .. }) => Some(format!("| `{name}` | {} | {unit} | {date} |\n", number(*value))),
        None => row(kept, name).map(|row| format!("{row}\n")),
    });
    let table: String = rows.collect();
    Ok(format!("{before}{BEGIN}\n{hardware} System: {}.\n\n{HEAD}{table}{END}{after}", machine.system))
}

/// The row of a figure in a table.
fn row<'a>(table: &'a str, name: &str) -> Option<&'a str> {
    let start = format!("| `{name}` |");
    table.lines().find(|line| line.starts_with(&start))
}

fn missing(marker: &str) -> String {
    format!("docs/PERFORMANCE.md has no `{marker}`: put it where the table should be")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(hardware: &str) -> Machine {
        Machine { hardware: hardware.to_owned(), system: "Linux 6".to_owned() }
    }

    fn figure(name: &'static str, value: f64) -> Figure {
        Figure { name, value, unit: "ms" }
    }

    #[test]
    fn figures_are_replaced_or_kept() {
        let page = format!("before\n{BEGIN}\n{END}\nafter\n");
        let first = [figure("start.warm.1.ms", 123.4), figure("echo.unloaded.p50_ms", 0.5)];
        let page = update(&page, &machine("A"), "2026-11-21", &first).unwrap();
        let page = update(&page, &machine("A"), "2026-11-22", &[figure("start.warm.1.ms", 12.34)]).unwrap();
        let expected = format!(
            "before\n{BEGIN}\nMachine: A. System: Linux 6.\n\n{HEAD}\
             | `echo.unloaded.p50_ms` | 0.500 | ms | 2026-11-21 |\n\
             | `start.warm.1.ms` | 12.3 | ms | 2026-11-22 |\n{END}\nafter\n"
        );
        assert_eq!(page, expected);
        let page = update(&page, &machine("B"), "2026-11-23", &[figure("start.warm.1.ms", 1.0)]).unwrap();
        assert!(!page.contains("p50_ms"), "figures of two machines in one table: {page}");
    }

    #[test]
    fn a_page_without_a_place_is_left_alone() {
        assert!(update("no table", &machine("A"), "", &[]).is_err());
        assert!(update(EMPTY_PAGE, &machine("A"), "", &[]).is_ok());
    }

    #[test]
    fn numbers_have_three_digits_that_count() {
        let numbers = [1234.5, 123.4, 12.34, 1.234, 0.1234].map(number);
        assert_eq!(numbers, ["1234", "123", "12.3", "1.23", "0.123"]);
    }
}
