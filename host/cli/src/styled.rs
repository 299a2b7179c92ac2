//! Text with styles, which a terminal shows and a pipe does not get.

use std::{fmt, ops::Add};

use anstream::{AutoStream, ColorChoice, stream::RawStream};
use anstyle::{AnsiColor, Style};

use crate::text;

/// The style of the heading of a table.
pub(crate) const HEADING: Style = Style::new().bold();
/// The style of `error:`, as in the messages of the parser of the command line.
pub(crate) const ERROR: Style = AnsiColor::Red.on_default().bold();

/// True for a terminal with colours, unless `NO_COLOR`, `CLICOLOR` or `TERM` refuse them.
pub(crate) fn has_colors(stream: &impl RawStream) -> bool {
    AutoStream::choice(stream) != ColorChoice::Never
}

/// The style of a status or a state: red for what needs somebody, yellow for what was stopped, green for what went well.
pub(crate) fn of_status(word: &str) -> Style {
    let color = match word {
        "completed" | "ready" | "online" | "submitted" | "approved" | "good" => AnsiColor::Green,
        "failed" | "timeout" | "refused" | "refused, old version serves" | "unavailable" | "gone" | "dead" => AnsiColor::Red,
        "cancelled" | "denied" | "expired" | "stale" => AnsiColor::Yellow,
        _ => return Style::new(),
    };
    color.on_default()
}

/// Pieces of text, each in one style. A piece is never taken for a style, whatever is in it.
#[derive(Debug, Clone, Default)]
pub(crate) struct StyledText(Vec<(Style, String)>);

impl StyledText {
    /// Adds text without a style.
    pub(crate) fn push_str(&mut self, text: &str) {
        self.push(Style::new(), text);
    }

    /// Adds text in a style.
    pub(crate) fn push(&mut self, style: Style, text: &str) {
        match self.0.last_mut() {
            Some((last, pieces)) if *last == style => pieces.push_str(text),
            _ => self.0.push((style, text.to_owned())),
        }
    }

    /// The text for a stream: with styles where the stream shows colours. On a terminal, control characters that came from
    /// outside are shown instead of obeyed: a runner could otherwise rewrite the screen or the clipboard.
    pub(crate) fn render(&self, stream: &impl RawStream) -> String {
        if stream.is_terminal() { self.for_terminal(has_colors(stream)) } else { self.to_string() }
    }

    fn for_terminal(&self, has_colors: bool) -> String {
        let pieces = self.0.iter().map(|(style, piece)| match (has_colors, text::printable(piece)) {
            (true, piece) => format!("{style}{piece}{style:#}"),
            (false, piece) => piece.into_owned(),
        });
        pieces.collect()
    }
}

/// The text without styles, as it is.
impl fmt::Display for StyledText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(_, piece)| f.write_str(piece))
    }
}

impl From<String> for StyledText {
    fn from(text: String) -> Self {
        Self(vec![(Style::new(), text)])
    }
}

impl From<&str> for StyledText {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl<T: Into<Self>> Add<T> for StyledText {
    type Output = Self;

    fn add(mut self, other: T) -> Self {
        self.0.extend(other.into().0);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn styles_are_of_the_host_and_control_characters_of_others_are_shown() {
        let mut text = StyledText::from("a\u{1b}[31mb ");
        text.push(of_status("failed"), "failed\u{1b}[2J");
        text.push_str("\n");
        assert_eq!(text.to_string(), "a\u{1b}[31mb failed\u{1b}[2J\n");
        assert_eq!(text.for_terminal(false), "a\\u{1b}[31mb failed\\u{1b}[2J\n");
        assert_eq!(text.for_terminal(true), "a\\u{1b}[31mb \u{1b}[31mfailed\\u{1b}[2J\u{1b}[0m\n");
    }
}
