//! The way of figures: each is printed beside its bound or the last one, and kept in `docs/PERFORMANCE.md`. The
//! plot of the front page follows.

use std::{fs, path::PathBuf, process::ExitCode};

use anyhow::Context;

use super::{
    STRETCHES,
    bounds::Bounds,
    figures::is_count,
    machine::Machine,
    plot, revision,
    sample::Figure,
    session::Session,
    table::{self, Last, Origin, number},
};
use crate::{process, workspace::Workspace};

/// Takes the figures of one call of `cargo xtask bench`.
pub(crate) struct Keeper {
    page: PathBuf,
    front: PathBuf,
    origin: Origin,
    bounds: Bounds,
    stretches: usize,
    /// True if fewer runs stand for a million.
    is_scaled: bool,
    over: Vec<&'static str>,
}

impl Keeper {
    pub(crate) fn open(workspace: &Workspace, session: &Session, stretches: usize) -> anyhow::Result<Self> {
        let date = process::output(std::process::Command::new("date").args(["-u", "+%F"]))?.trim().to_owned();
        Ok(Self {
            page: workspace.root().join("docs/PERFORMANCE.md"),
            front: workspace.root().join("README.md"),
            origin: Origin { machine: Machine::here(session.data())?, commit: revision::here(workspace)?, date },
            bounds: Bounds::read(workspace)?,
            stretches,
            is_scaled: session.is_scaled(),
            over: Vec::new(),
        })
    }

    /// Prints figures, and keeps those that were measured as the page says.
    pub(crate) fn take(&mut self, figures: &[Figure]) -> anyhow::Result<()> {
        let page = self.read()?;
        for figure in figures {
            let verdict = self.bounds.judge(figure.name, figure.median);
            if verdict.is_some_and(|verdict| verdict.is_over) {
                self.over.push(figure.name);
            }
            println!(
                "{}",
                line(figure, verdict.map(|verdict| (verdict.bound, verdict.is_over)), table::last(&page, figure.name))
            );
        }
        let kept: Vec<_> = figures.iter().filter(|figure| self.is_kept(figure)).cloned().collect();
        if kept.is_empty() {
            return Ok(());
        }
        let page = table::update(&page, &self.origin, &kept)?;
        let front = fs::read_to_string(&self.front).with_context(|| format!("{} cannot be read", self.front.display()))?;
        for (path, text) in [(&self.front, plot::update(&front, &page)?), (&self.page, page)] {
            fs::write(path, text).with_context(|| format!("{} cannot be written", path.display()))?;
        }
        Ok(())
    }

    /// Fails where a count was over its bound.
    pub(crate) fn end(self) -> ExitCode {
        if self.over.is_empty() {
            return ExitCode::SUCCESS;
        }
        let names = self.over.join(", ");
        eprintln!(
            "error: over the bounds of {}: {names}. A change that needs more changes the bound and says why",
            super::bounds::FILE
        );
        ExitCode::FAILURE
    }

    fn is_kept(&self, figure: &Figure) -> bool {
        let of_million = figure.name.starts_with("ledger.") && !figure.name.starts_with("ledger.writer.");
        self.stretches >= STRETCHES && !(self.is_scaled && of_million)
    }

    fn read(&self) -> anyhow::Result<String> {
        match fs::read_to_string(&self.page) {
            Ok(page) => Ok(page),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(table::EMPTY_PAGE.to_owned()),
            Err(error) => Err(error).with_context(|| format!("{} cannot be read", self.page.display())),
        }
    }
}

/// A count is shown with its bound, a time with the last one.
fn line(figure: &Figure, verdict: Option<(f64, bool)>, last: Option<Last<'_>>) -> String {
    let Figure { name, unit, median, smallest, largest, others } = figure;
    if is_count(name) {
        return match verdict {
            Some((bound, is_over)) => {
                format!("{name} {} {} {}", number(*median), number(bound), if is_over { "OVER" } else { "ok" })
            }
            None => format!("{name} {} - no bound", number(*median)),
        };
    }
    let last = last.map_or_else(String::new, |last| format!(", last {} at {}", last.value, last.commit));
    let (smallest, largest) = (number(*smallest), number(*largest));
    format!("{name} {} {unit} ({smallest} to {largest}), others {others:.2} cores{last}", number(*median))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(name: &'static str, median: f64) -> Figure {
        Figure { name, unit: "us", median, smallest: median - 1.0, largest: median + 1.5, others: 0.034 }
    }

    #[test]
    fn counts_are_shown_beside_their_bounds() {
        let line = |median, verdict| super::line(&figure("echo.count.256.rows", median), verdict, None);
        assert_eq!(line(26.0, Some((26.0, false))), "echo.count.256.rows 26.0 26.0 ok");
        assert_eq!(line(27.0, Some((26.0, true))), "echo.count.256.rows 27.0 26.0 OVER");
        assert_eq!(line(27.0, None), "echo.count.256.rows 27.0 - no bound");
    }

    #[test]
    fn times_are_shown_beside_the_last_ones() {
        let figure = figure("echo.cpu_us_per_run", 250.0);
        let last = Some(Last { value: "462", commit: "535a584" });
        let expected = "echo.cpu_us_per_run 250 us (249 to 252), others 0.03 cores";
        assert_eq!(line(&figure, None, None), expected);
        assert_eq!(line(&figure, None, last), format!("{expected}, last 462 at 535a584"));
    }
}
