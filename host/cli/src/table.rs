//! Tables of text.

use anstyle::Style;

use crate::{
    styled::{self, StyledText},
    text,
};

/// Rows under a heading, each column as wide as its widest cell.
#[derive(Debug)]
pub(crate) struct Table {
    heading: Vec<String>,
    rows: Vec<Vec<String>>,
}

/// Longer cells are cut, so that one value cannot push all others off the screen.
const MAX_CELL: usize = 80;
/// Cells between two columns.
const GAP: usize = 2;
/// Columns whose words have colours.
const COLORED: [&str; 2] = ["STATUS", "STATE"];

impl Table {
    pub(crate) fn new<const N: usize>(heading: [&str; N]) -> Self {
        Self { heading: heading.map(ToOwned::to_owned).to_vec(), rows: Vec::new() }
    }

    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.iter().map(|cell| text::one_line(cell, MAX_CELL)).collect());
    }

    /// The lines, without spaces at their ends.
    pub(crate) fn render(&self) -> StyledText {
        let width = |column: usize| {
            let cells = std::iter::once(&self.heading).chain(&self.rows).filter_map(|row| row.get(column));
            cells.map(|cell| text::width(cell)).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.heading.len()).map(width).collect();
        let mut lines = StyledText::default();
        self.line(&mut lines, &self.heading, &widths, |_, _| styled::HEADING);
        for row in &self.rows {
            self.line(
                &mut lines,
                row,
                &widths,
                |heading, cell| {
                    if COLORED.contains(&heading) { styled::of_status(cell) } else { Style::new() }
                },
            );
        }
        lines
    }

    fn line(&self, lines: &mut StyledText, row: &[String], widths: &[usize], style: impl Fn(&str, &str) -> Style) {
        // Spaces that are written only before another word.
        let mut pending = 0;
        for ((heading, cell), width) in self.heading.iter().zip(row).zip(widths) {
            let cell = cell.trim_end();
            if cell.is_empty() {
                pending += width;
            } else {
                lines.push_str(&" ".repeat(pending));
                lines.push(style(heading, cell), cell);
                pending = width.saturating_sub(text::width(cell));
            }
            pending += GAP;
        }
        lines.push_str("\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_they_need() {
        let mut table = Table::new(["RUN", "STATUS", "WHY"]);
        table.row(["1".to_owned(), "completed".to_owned(), String::new()]);
        table.row(["zwölf\n13".to_owned(), String::new(), "x ".to_owned()]);
        let expected = "RUN       STATUS     WHY\n1         completed\nzwölf 13             x\n";
        assert_eq!(table.render().to_string(), expected);
    }

    #[test]
    fn a_wide_character_takes_two_cells() {
        let mut table = Table::new(["NAME", "STATUS"]);
        table.row(["智能体".to_owned(), "ready".to_owned()]);
        table.row(["e\u{301}".to_owned(), "ready".to_owned()]);
        assert_eq!(table.render().to_string(), "NAME    STATUS\n智能体  ready\ne\u{301}       ready\n");
    }
}
