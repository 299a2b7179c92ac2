//! The plot of the front page: the rate of echo runs, drawn from the table in `docs/PERFORMANCE.md`.

use anyhow::Context;

use super::table;

const BEGIN: &str = "<!-- plot:begin -->";
const END: &str = "<!-- plot:end -->";
/// The bars: a label and its figure.
const BARS: [(&str, &str); 6] = [
    ("HTTP, 1", "echo.http.1.runs_per_second"),
    ("HTTP, 16", "echo.http.16.runs_per_second"),
    ("HTTP, 256", "echo.http.256.runs_per_second"),
    ("in-process, 1", "echo.inproc.1.runs_per_second"),
    ("in-process, 16", "echo.inproc.16.runs_per_second"),
    ("in-process, 256", "echo.inproc.256.runs_per_second"),
];

/// The front page with the plot of these figures between its markers. Without all figures in `page`, it stays as it is.
pub(crate) fn update(front: &str, page: &str) -> anyhow::Result<String> {
    let missing = |marker| format!("README.md has no `{marker}`: put it where the plot should be");
    let (before, rest) = front.split_once(BEGIN).with_context(|| missing(BEGIN))?;
    let (_, after) = rest.split_once(END).with_context(|| missing(END))?;
    let figures: Option<Vec<_>> = BARS.iter().map(|(_, figure)| table::last(page, figure)).collect();
    let Some(figures) = figures else { return Ok(front.to_owned()) };
    let labels = BARS.map(|(label, _)| format!("\"{label}\"")).join(", ");
    let values = figures.iter().map(|figure| figure.value).collect::<Vec<_>>().join(", ");
    let largest = figures.iter().filter_map(|figure| figure.value.parse::<f64>().ok()).fold(0.0, f64::max);
    // An axis that does not begin at zero would show a difference larger than it is.
    let top = (largest / 1000.0).ceil().max(1.0) * 1000.0;
    let mut commits: Vec<_> = figures.iter().map(|figure| figure.commit).collect();
    commits.dedup();
    let title = format!("Durable echo runs a second, by runs in flight ({})", commits.join(", "));
    Ok(format!(
        "{before}{BEGIN}\n```mermaid\nxychart-beta\n    title \"{title}\"\n    x-axis [{labels}]\n    y-axis \"runs/s\" 0 --> {top}\n    \
         bar [{values}]\n```\n{END}{after}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_front_page_shows_the_figures_of_the_table() {
        let front = include_str!("../../../README.md");
        let page = include_str!("../../../docs/PERFORMANCE.md");
        assert_eq!(update(front, page).unwrap(), front, "run `cargo xtask bench echo.http`, or copy the figures of the table");
        assert!(update("no plot", page).is_err());
        assert_eq!(update(front, table::EMPTY_PAGE).unwrap(), front);
    }
}
