//! Progress on long work, on standard error, where a person watches.

use std::{borrow::Cow, time::Duration};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::{output::Output, terminal};

/// Steps of a bar for fractions.
const PARTS: u64 = 1000;
/// Time between two pictures of a spinner.
const TICK: Duration = Duration::from_millis(100);

/// A bar or a spinner, removed when dropped. Not shown without a terminal.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    is_shown: bool,
}

impl Progress {
    /// Work whose end is not known.
    pub(crate) fn spinner(output: Output, what: impl Into<Cow<'static, str>>) -> Self {
        let progress = Self::styled(output, what, None, SPINNER);
        // A spinner alone would be shown only when it moves.
        progress.bar.enable_steady_tick(TICK);
        progress
    }

    /// Work of `total` steps.
    pub(crate) fn bar(output: Output, what: impl Into<Cow<'static, str>>, total: u64) -> Self {
        Self::styled(output, what, Some(total), "{msg} [{bar:30}] {pos}/{len}")
    }

    /// A bar for work with a known fraction.
    pub(crate) fn percent(output: Output, what: impl Into<Cow<'static, str>>) -> Self {
        Self::styled(output, what, Some(PARTS), "{msg} [{bar:30}] {percent} % ({eta})")
    }

    fn styled(output: Output, what: impl Into<Cow<'static, str>>, total: Option<u64>, template: &str) -> Self {
        let is_shown = output.shows_progress();
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::hidden()).with_message(what);
        bar.set_style(style(template));
        let bar = if is_shown { terminal::show(bar) } else { bar };
        Self { bar, is_shown }
    }

    /// Sets the number of completed steps.
    pub(crate) fn done(&self, steps: u64) {
        self.bar.set_position(steps);
    }

    /// Sets the completed fraction, from 0 to 1.
    pub(crate) fn fraction(&self, done: f64) {
        self.bar.set_position((done.clamp(0.0, 1.0) * PARTS as f64) as u64);
    }

    /// Sets the description of the work.
    pub(crate) fn describe(&self, what: impl Into<Cow<'static, str>>) {
        self.bar.set_message(what);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
        if self.is_shown {
            terminal::remove(&self.bar);
        }
    }
}

/// A spinner, the work, and the time since its start.
const SPINNER: &str = "{spinner} {msg} ({elapsed})";

fn style(template: &str) -> ProgressStyle {
    // The templates are constants that parse, as a test shows; the default style would do as well.
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    style.progress_chars("=> ")
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use indicatif::{MultiProgress, TermLike};

    use super::*;

    /// A terminal of one line of text.
    #[derive(Debug, Clone, Default)]
    struct Screen(Arc<Mutex<String>>);

    impl Screen {
        fn text(&self) -> String {
            self.0.lock().unwrap().clone()
        }
    }

    impl TermLike for Screen {
        fn width(&self) -> u16 {
            80
        }

        fn move_cursor_up(&self, _: usize) -> std::io::Result<()> {
            Ok(())
        }

        fn move_cursor_down(&self, _: usize) -> std::io::Result<()> {
            Ok(())
        }

        fn move_cursor_right(&self, _: usize) -> std::io::Result<()> {
            Ok(())
        }

        fn move_cursor_left(&self, _: usize) -> std::io::Result<()> {
            Ok(())
        }

        fn write_line(&self, text: &str) -> std::io::Result<()> {
            self.write_str(text)
        }

        fn write_str(&self, text: &str) -> std::io::Result<()> {
            self.0.lock().unwrap().push_str(text);
            Ok(())
        }

        fn clear_line(&self) -> std::io::Result<()> {
            self.0.lock().unwrap().clear();
            Ok(())
        }

        fn flush(&self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_spinner_says_what_it_waits_for_and_makes_room_for_other_lines() {
        let screen = Screen::default();
        let bars = MultiProgress::with_draw_target(ProgressDrawTarget::term_like(Box::new(screen.clone())));
        let bar = bars.add(ProgressBar::new_spinner().with_message("loading plugins"));
        bar.set_style(style(SPINNER));
        bar.tick();
        assert!(screen.text().contains(" loading plugins (0s)"), "{:?}", screen.text());
        assert_eq!(bars.suspend(|| screen.text()), "", "nothing is on the line of another writer");
        assert!(screen.text().contains("loading plugins"), "it is drawn again: {:?}", screen.text());
        bar.finish_and_clear();
        assert_eq!(screen.text(), "");
    }

    #[test]
    fn nothing_is_drawn_with_json() {
        let progress = Progress::spinner(Output::new(true), "loading plugins");
        assert!(!progress.is_shown && progress.bar.is_hidden());
    }
}
