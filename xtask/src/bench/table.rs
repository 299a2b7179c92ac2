//! The table in `docs/PERFORMANCE.md`.

use anyhow::Context;

use super::{figures::FIGURES, machine::Machine, sample::Figure};

const BEGIN: &str = "<!-- bench:begin -->";
const END: &str = "<!-- bench:end -->";
const HEAD: &str = "| figure | median | smallest | largest | unit | commit | others | machine | measured |\n\
                    |---|---:|---:|---:|---|---|---:|---|---|\n";
/// Places of cells in a row.
const MEDIAN: usize = 1;
const COMMIT: usize = 5;
const MACHINE: usize = 7;
const CELLS: usize = 9;

/// The page, where there is none yet.
pub(crate) const EMPTY_PAGE: &str =
    "# Performance\n\n`cargo xtask bench` measures these and writes them here.\n\n<!-- bench:begin -->\n<!-- bench:end -->\n";

/// The origin that figures of one call share.
#[derive(Debug, Clone)]
pub(crate) struct Origin {
    pub(crate) machine: Machine,
    pub(crate) commit: String,
    pub(crate) date: String,
}

/// A figure as it was measured before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Last<'a> {
    pub(crate) value: &'a str,
    pub(crate) commit: &'a str,
}

/// A number with three digits that count, or all before the point.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        1.0.. => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// The figure of this name in the table.
pub(crate) fn last<'a>(page: &'a str, name: &str) -> Option<Last<'a>> {
    let (_, _, table) = split(page).ok()?;
    let cells = cells(row(table, name)?)?;
    Some(Last { value: cells.get(MEDIAN)?, commit: cells.get(COMMIT)? })
}

/// The page with these figures in its table. Earlier figures stay as they are, each with its commit and its machine.
pub(crate) fn update(page: &str, origin: &Origin, figures: &[Figure]) -> anyhow::Result<String> {
    let (before, after, old) = split(page)?;
    let mut machines = machines(old);
    let letter = letter(&mut machines, &origin.machine)?;
    let rows: Vec<_> = FIGURES
        .iter()
        .filter_map(|(name, _)| match figures.iter().find(|figure| figure.name == *name) {
            Some(figure) => Some(new_row(figure, origin, &letter)),
            None => row(old, name).map(str::to_owned),
        })
        .collect();
    // A machine of which no figure is left is not named.
    machines
        .retain(|(letter, _)| rows.iter().any(|row| cells(row).and_then(|cells| cells.get(MACHINE).copied()) == Some(letter)));
    let machines: String = machines.iter().map(|(letter, machine)| format!("- Machine {letter}: {machine}\n")).collect();
    let rows: String = rows.iter().map(|row| format!("{row}\n")).collect();
    Ok(format!("{before}{BEGIN}\n{machines}\n{HEAD}{rows}{END}{after}"))
}

/// The text before the table, the text after it, and the table.
fn split(page: &str) -> anyhow::Result<(&str, &str, &str)> {
    let (before, rest) = page.split_once(BEGIN).with_context(|| missing(BEGIN))?;
    let (table, after) = rest.split_once(END).with_context(|| missing(END))?;
    Ok((before, after, table))
}

fn new_row(figure: &Figure, origin: &Origin, machine: &str) -> String {
    let Figure { name, unit, median, smallest, largest, others } = figure;
    let Origin { commit, date, .. } = origin;
    let [median, smallest, largest] = [median, smallest, largest].map(|value| number(*value));
    format!("| `{name}` | {median} | {smallest} | {largest} | {unit} | {commit} | {others:.2} | {machine} | {date} |")
}

/// The machines above the table: letter and description.
fn machines(table: &str) -> Vec<(String, String)> {
    let machine = |line: &str| line.strip_prefix("- Machine ")?.split_once(": ").map(|(a, b)| (a.to_owned(), b.to_owned()));
    table.lines().filter_map(machine).collect()
}

/// The letter of a machine; a new machine takes the first that is free.
fn letter(machines: &mut Vec<(String, String)>, machine: &Machine) -> anyhow::Result<String> {
    let description = format!("{}. {}.", machine.hardware, machine.system);
    if let Some((letter, _)) = machines.iter().find(|(_, known)| *known == description) {
        return Ok(letter.clone());
    }
    let is_free = |letter: &String| machines.iter().all(|(taken, _)| taken != letter);
    let letter = ('A'..='Z').map(String::from).find(is_free).context("docs/PERFORMANCE.md has figures of 26 machines")?;
    machines.push((letter.clone(), description));
    machines.sort();
    Ok(letter)
}

/// The row of a figure in a table.
fn row<'a>(table: &'a str, name: &str) -> Option<&'a str> {
    let start = format!("| `{name}` |");
    table.lines().find(|line| line.starts_with(&start) && cells(line).is_some())
}

/// The cells of a row, where it has as many as it should.
fn cells(row: &str) -> Option<Vec<&str>> {
    let cells: Vec<_> = row.strip_prefix('|')?.strip_suffix('|')?.split('|').map(str::trim).collect();
    (cells.len() == CELLS).then_some(cells)
}

fn missing(marker: &str) -> String {
    format!("docs/PERFORMANCE.md has no `{marker}`: put it where the table should be")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(hardware: &str, commit: &str) -> Origin {
        let machine = Machine { hardware: hardware.to_owned(), system: "Linux 6".to_owned() };
        Origin { machine, commit: commit.to_owned(), date: "2026-11-21".to_owned() }
    }

    fn figure(name: &'static str, median: f64) -> Figure {
        Figure { name, median, smallest: median / 2.0, largest: median * 2.0, others: 0.055, unit: "ms" }
    }

    #[test]
    fn figures_are_replaced_or_kept_with_their_origin() {
        let page = format!("before\n{BEGIN}\n{END}\nafter\n");
        let first = [figure("start.warm.1.ms", 123.4), figure("echo.unloaded.p50_ms", 0.5)];
        let page = update(&page, &origin("Old, 2 cores", "aaaaaaa"), &first).unwrap();
        let page = update(&page, &origin("New, 4 cores", "bbbbbbb"), &[figure("start.warm.1.ms", 12.34)]).unwrap();
        let expected = format!(
            "before\n{BEGIN}\n- Machine A: Old, 2 cores. Linux 6.\n- Machine B: New, 4 cores. Linux 6.\n\n{HEAD}\
             | `echo.unloaded.p50_ms` | 0.500 | 0.250 | 1.00 | ms | aaaaaaa | 0.06 | A | 2026-11-21 |\n\
             | `start.warm.1.ms` | 12.3 | 6.17 | 24.7 | ms | bbbbbbb | 0.06 | B | 2026-11-21 |\n{END}\nafter\n"
        );
        assert_eq!(page, expected);
        assert_eq!(last(&page, "start.warm.1.ms"), Some(Last { value: "12.3", commit: "bbbbbbb" }));
        assert_eq!(last(&page, "start.warm.10.ms"), None);
    }

    #[test]
    fn a_machine_without_figures_is_not_named() {
        let page = update(EMPTY_PAGE, &origin("Old", "aaaaaaa"), &[figure("start.warm.1.ms", 1.0)]).unwrap();
        let page = update(&page, &origin("New", "bbbbbbb"), &[figure("start.warm.1.ms", 2.0)]).unwrap();
        assert!(!page.contains("Old") && page.contains("- Machine B: New. Linux 6.\n"), "{page}");
        let page = update(&page, &origin("New", "ccccccc"), &[figure("start.warm.10.ms", 2.0)]).unwrap();
        assert_eq!(page.matches("- Machine ").count(), 1, "{page}");
        assert_eq!(page.matches("| B |").count(), 2, "{page}");
    }

    #[test]
    fn a_page_without_a_place_is_left_alone() {
        assert!(update("no table", &origin("A", ""), &[]).is_err());
        assert!(update(EMPTY_PAGE, &origin("A", ""), &[]).is_ok());
    }

    #[test]
    fn the_page_of_the_project_has_rows_of_figures_only() {
        let page = include_str!("../../../docs/PERFORMANCE.md");
        let (_, _, table) = split(page).unwrap();
        let rows: Vec<_> = table.lines().filter(|line| line.starts_with("| `")).collect();
        assert!(rows.len() > 100);
        for line in rows {
            let cells = cells(line).unwrap_or_else(|| panic!("{line}"));
            assert!(FIGURES.iter().any(|(name, _)| cells[0] == format!("`{name}`")), "{line}");
            assert!(machines(table).iter().any(|(letter, _)| cells[MACHINE] == letter), "{line}");
        }
    }

    #[test]
    fn numbers_have_three_digits_that_count() {
        let numbers = [1234.5, 123.4, 12.34, 1.234, 0.1234].map(number);
        assert_eq!(numbers, ["1234", "123", "12.3", "1.23", "0.123"]);
    }
}
