//! Groups of children: start them within bounds, wait for all of them, and return failures as values.

use std::time::Duration;

use super::{ChildEnd, ChildRun, Runs, StartRun};
use crate::contract::ErrorCode;
use crate::error::ApiError;
use crate::limits::millis;
use crate::timers;

/// Result of one child.
#[derive(Clone, Debug, PartialEq)]
pub struct ChildResult {
    /// The run; `None` if the child was not started.
    pub run: Option<ChildRun>,
    /// End of the child.
    pub end: ChildEnd,
}

/// Bounds of a group of children: concurrency and time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Maximum number of concurrent children; 0 counts as 1. The host also has a limit, 16 by default.
    pub at_once: usize,
    /// Maximum time for all children, counted from the call.
    pub at_most: Duration,
}

impl Runs {
    /// Waits until all children have ended, at most for the given time, and returns their ends in the order of
    /// `children`. A child that has not ended is [`ChildEnd::Unfinished`] and continues to run.
    ///
    /// # Errors
    /// Fails if the host refuses to wait, for example after a cancel. An error of a single child is the end of this
    /// child.
    pub fn gather<'c>(
        self,
        children: impl IntoIterator<Item = &'c ChildRun>,
        at_most: Duration,
    ) -> Result<Vec<ChildResult>, ApiError> {
        let mut crew = ChildGroup::new(self, at_most);
        for child in children {
            crew.open.push((crew.ends.len(), child.clone()));
            crew.ends.push(ChildResult { run: Some(child.clone()), end: ChildEnd::Unfinished });
        }
        while crew.wait_for_one()?.is_some() {}
        Ok(crew.ends)
    }

    /// Starts a child for each task, at most [`Bounds::at_once`] concurrently, and returns their ends in the order of the
    /// tasks. On timeout, running children are cancelled and further tasks are not started: both are
    /// [`ChildEnd::Unfinished`].
    ///
    /// Calls `ended` for each end as it happens, with the index of its task, for example to show progress.
    ///
    /// # Errors
    /// Fails if the host refuses to wait, for example after a cancel, or with the error of `ended`. Running children are
    /// then cancelled. An error of a single child is the end of this child.
    pub fn for_each_child(
        self,
        tasks: impl IntoIterator<Item = StartRun>,
        bounds: Bounds,
        mut ended: impl FnMut(usize, &ChildResult) -> Result<(), ApiError>,
    ) -> Result<Vec<ChildResult>, ApiError> {
        let mut crew = ChildGroup::new(self, bounds.at_most);
        let outcome = crew.work_off(tasks, bounds.at_once.max(1), &mut ended);
        crew.cancel_open();
        outcome.map(|()| crew.ends)
    }
}

/// Running children, and the ends of all children.
struct ChildGroup {
    runs: Runs,
    /// Time limit, in ms since the Unix epoch.
    until: u64,
    /// Index of the task, and its run.
    open: Vec<(usize, ChildRun)>,
    ends: Vec<ChildResult>,
}

impl ChildGroup {
    fn new(runs: Runs, at_most: Duration) -> Self {
        Self { runs, until: timers::now().saturating_add(millis(at_most)), open: Vec::new(), ends: Vec::new() }
    }

    fn work_off(
        &mut self,
        tasks: impl IntoIterator<Item = StartRun>,
        at_once: usize,
        ended: &mut impl FnMut(usize, &ChildResult) -> Result<(), ApiError>,
    ) -> Result<(), ApiError> {
        for (place, task) in tasks.into_iter().enumerate() {
            self.ends.push(ChildResult { run: None, end: ChildEnd::Unfinished });
            // Waits for room before the start. If the host has less room than `at_once`, waits again.
            let mut room = at_once;
            while !self.is_late() {
                if self.open.len() >= room {
                    match self.wait_for_one()? {
                        Some(ended_child) => self.report(ended_child, ended)?,
                        None => break,
                    }
                } else if self.start(place, &task, ended)? {
                    break;
                } else {
                    room = self.open.len();
                }
            }
        }
        while let Some(ended_child) = self.wait_for_one()? {
            self.report(ended_child, ended)?;
        }
        Ok(())
    }

    fn remaining(&self) -> Duration {
        Duration::from_millis(self.until.saturating_sub(timers::now()))
    }

    fn is_late(&self) -> bool {
        self.remaining().is_zero()
    }

    /// Starts a child. Returns false if the host has no room until another child ends.
    fn start(
        &mut self,
        place: usize,
        task: &StartRun,
        ended: &mut impl FnMut(usize, &ChildResult) -> Result<(), ApiError>,
    ) -> Result<bool, ApiError> {
        match self.runs.start(task) {
            Ok(child) => {
                if let Some(gathered) = self.ends.get_mut(place) {
                    gathered.run = Some(child.clone());
                }
                self.open.push((place, child));
            }
            Err(error) if error.code == ErrorCode::RateLimited && error.retryable && !self.open.is_empty() => return Ok(false),
            Err(error) => {
                self.set(place, ChildEnd::Refused(own(error)?));
                self.report(place, ended)?;
            }
        }
        Ok(true)
    }

    /// Waits for the next end and returns the index of its task; `None` on timeout, or if no child is running.
    fn wait_for_one(&mut self) -> Result<Option<usize>, ApiError> {
        if self.open.is_empty() {
            return Ok(None);
        }
        let Some(summary) = self.runs.wait_any(self.open.iter().map(|(_, child)| child), self.remaining())? else {
            return Ok(None);
        };
        let Some(at) = self.open.iter().position(|(_, child)| child.id() == summary.run_id) else { return Ok(None) };
        let (place, child) = self.open.remove(at);
        let end = match child.end() {
            Ok(end) => end,
            Err(error) => ChildEnd::Refused(own(error)?),
        };
        self.set(place, end);
        Ok(Some(place))
    }

    fn set(&mut self, place: usize, end: ChildEnd) {
        if let Some(gathered) = self.ends.get_mut(place) {
            gathered.end = end;
        }
    }

    fn report(&self, place: usize, ended: &mut impl FnMut(usize, &ChildResult) -> Result<(), ApiError>) -> Result<(), ApiError> {
        self.ends.get(place).map_or(Ok(()), |gathered| ended(place, gathered))
    }

    /// Best effort: a child that cannot be cancelled here ends with its parent.
    fn cancel_open(&self) {
        for (_, child) in &self.open {
            if let Err(error) = child.cancel("its parent has no time left for it") {
                crate::log::warn!("the run {} was not cancelled: {error}", child.id());
            }
        }
    }
}

/// Returns the error of a single child as a value, and fails with an error of this run as a whole.
fn own(error: ApiError) -> Result<ApiError, ApiError> {
    match error.code {
        ErrorCode::Cancelled | ErrorCode::DeadlineExceeded => Err(error),
        _ => Ok(error),
    }
}
