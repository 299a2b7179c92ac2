//! Progress on long work, on standard error, where a person watches.

use std::{borrow::Cow, time::Duration};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output::Output;

/// Steps of a bar for fractions.
const PARTS: u64 = 1000;

/// A bar or a spinner, removed when dropped. Not shown without a terminal.
#[derive(Debug)]
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// Work whose end is not known.
    pub(crate) fn spinner(output: Output, what: impl Into<Cow<'static, str>>) -> Self {
        let bar = ProgressBar::with_draw_target(None, target(output)).with_message(what);
        // The bar alone would be shown only when it moves.
        bar.enable_steady_tick(Duration::from_millis(100));
        Self(bar)
    }

    /// Work of `total` steps.
    pub(crate) fn bar(output: Output, what: impl Into<Cow<'static, str>>, total: u64) -> Self {
        Self::styled(output, what, total, "{msg} [{bar:30}] {pos}/{len}")
    }

    /// A bar for work with a known fraction.
    pub(crate) fn percent(output: Output, what: impl Into<Cow<'static, str>>) -> Self {
        Self::styled(output, what, PARTS, "{msg} [{bar:30}] {percent} % ({eta})")
    }

    fn styled(output: Output, what: impl Into<Cow<'static, str>>, total: u64, template: &str) -> Self {
        let bar = ProgressBar::with_draw_target(Some(total), target(output)).with_message(what);
        // The templates are constants that parse; the default style would do as well.
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        Self(bar)
    }

    /// Sets the number of completed steps.
    pub(crate) fn done(&self, steps: u64) {
        self.0.set_position(steps);
    }

    /// Sets the completed fraction, from 0 to 1.
    pub(crate) fn fraction(&self, done: f64) {
        self.0.set_position((done.clamp(0.0, 1.0) * PARTS as f64) as u64);
    }

    /// Sets the description of the work.
    pub(crate) fn describe(&self, what: impl Into<Cow<'static, str>>) {
        self.0.set_message(what);
    }
}

fn target(output: Output) -> ProgressDrawTarget {
    if output.shows_progress() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
