//! Tables of text.

use crate::text;

/// Rows under a heading, each column as wide as its widest cell.
#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

/// Longer cells are cut, so that one value cannot push all others off the screen.
const MAX_CELL: usize = 80;

impl Table {
    pub(crate) fn new<const N: usize>(heading: [&str; N]) -> Self {
        Self { rows: vec![heading.map(ToOwned::to_owned).to_vec()] }
    }

    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.iter().map(|cell| text::one_line(cell, MAX_CELL)).collect());
    }

    /// The lines, without spaces at their ends.
    pub(crate) fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let line = |row: &Vec<String>| {
            let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
            format!("{}\n", cells.join("  ").trim_end())
        };
        self.rows.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_they_need() {
        let mut table = Table::new(["RUN", "STATUS"]);
        table.row(["1".to_owned(), "completed".to_owned()]);
        table.row(["zwölf\n13".to_owned(), String::new()]);
        assert_eq!(table.render(), "RUN       STATUS\n1         completed\nzwölf 13\n");
    }
}
