//! Many children at once: start them within bounds, wait for all of them, and take failures as values.

use std::time::Duration;

use super::{ChildEnd, ChildRun, Runs, StartRun};
use crate::contract::ErrorCode;
use crate::error::ApiError;
use crate::limits::millis;
use crate::timers;

/// What became of one child.
#[derive(Clone, Debug, PartialEq)]
pub struct Gathered {
    /// The run; none where it was never started.
    pub run: Option<ChildRun>,
    /// How it ended.
    pub end: ChildEnd,
}

/// How many children run beside each other, and how long all of it may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Children at the same time; 0 counts as 1. The host has a limit of its own, 16 where nothing is configured.
    pub at_once: usize,
    /// From the first start on.
    pub at_most: Duration,
}

impl Runs {
    /// Waits until all have ended, at most so long, and gives their ends in the order of `children`. What has not ended is
    /// [`ChildEnd::Unfinished`] and runs on.
    ///
    /// # Errors
    /// When the host refuses to wait, such as after a cancel. What goes wrong with one child is its end.
    pub fn gather<'c>(
        self,
        children: impl IntoIterator<Item = &'c ChildRun>,
        at_most: Duration,
    ) -> Result<Vec<Gathered>, ApiError> {
        let mut crew = Crew::new(self, at_most);
        for child in children {
            crew.open.push((crew.ends.len(), child.clone()));
            crew.ends.push(Gathered { run: Some(child.clone()), end: ChildEnd::Unfinished });
        }
        while crew.wait_for_one()?.is_some() {}
        Ok(crew.ends)
    }

    /// Starts a child for each task, at most [`Bounds::at_once`] beside each other, and gives their ends in the order of the
    /// tasks. When the time is over, what still runs is cancelled and what was not started is not: both are
    /// [`ChildEnd::Unfinished`].
    ///
    /// `ended` is told of each end as it comes, with the place of its task: to show progress.
    ///
    /// # Errors
    /// When the host refuses to wait, such as after a cancel, or as `ended` says: children that run are cancelled then too.
    /// What goes wrong with one child is its end.
    pub fn for_each_child(
        self,
        tasks: impl IntoIterator<Item = StartRun>,
        bounds: Bounds,
        mut ended: impl FnMut(usize, &Gathered) -> Result<(), ApiError>,
    ) -> Result<Vec<Gathered>, ApiError> {
        let mut crew = Crew::new(self, bounds.at_most);
        let outcome = crew.work_off(tasks, bounds.at_once.max(1), &mut ended);
        crew.cancel_open();
        outcome.map(|()| crew.ends)
    }
}

/// Children that run, and the ends of all.
struct Crew {
    runs: Runs,
    /// When the time is over, Unix milliseconds.
    until: u64,
    /// The place of the task, and its run.
    open: Vec<(usize, ChildRun)>,
    ends: Vec<Gathered>,
}

impl Crew {
    fn new(runs: Runs, at_most: Duration) -> Self {
        Self { runs, until: timers::now().saturating_add(millis(at_most)), open: Vec::new(), ends: Vec::new() }
    }

    fn work_off(
        &mut self,
        tasks: impl IntoIterator<Item = StartRun>,
        at_once: usize,
        ended: &mut impl FnMut(usize, &Gathered) -> Result<(), ApiError>,
    ) -> Result<(), ApiError> {
        for (place, task) in tasks.into_iter().enumerate() {
            self.ends.push(Gathered { run: None, end: ChildEnd::Unfinished });
            // Room first, then the start; and where the host has less room than that, once more.
            let mut room = at_once;
            while !self.is_late() {
                if self.open.len() >= room {
                    match self.wait_for_one()? {
                        Some(done) => self.tell(done, ended)?,
                        None => break,
                    }
                } else if self.start(place, &task, ended)? {
                    break;
                } else {
                    room = self.open.len();
                }
            }
        }
        while let Some(done) = self.wait_for_one()? {
            self.tell(done, ended)?;
        }
        Ok(())
    }

    fn left(&self) -> Duration {
        Duration::from_millis(self.until.saturating_sub(timers::now()))
    }

    fn is_late(&self) -> bool {
        self.left().is_zero()
    }

    /// Starts a child. False where the host has no room for one more and another must end first.
    fn start(
        &mut self,
        place: usize,
        task: &StartRun,
        ended: &mut impl FnMut(usize, &Gathered) -> Result<(), ApiError>,
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
                self.tell(place, ended)?;
            }
        }
        Ok(true)
    }

    /// Waits for the next end, and gives the place of its task. None when the time is over, or nothing runs.
    fn wait_for_one(&mut self) -> Result<Option<usize>, ApiError> {
        if self.open.is_empty() {
            return Ok(None);
        }
        let Some(summary) = self.runs.wait_any(self.open.iter().map(|(_, child)| child), self.left())? else { return Ok(None) };
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

    fn tell(&self, place: usize, ended: &mut impl FnMut(usize, &Gathered) -> Result<(), ApiError>) -> Result<(), ApiError> {
        self.ends.get(place).map_or(Ok(()), |gathered| ended(place, gathered))
    }

    /// Best effort: a child that cannot be cancelled ends with its parent.
    fn cancel_open(&self) {
        for (_, child) in &self.open {
            if let Err(error) = child.cancel("its parent has no more time for it") {
                crate::log::warn!("the run {} was not cancelled: {error}", child.id());
            }
        }
    }
}

/// An error that is about a child, and not about this run as a whole.
fn own(error: ApiError) -> Result<ApiError, ApiError> {
    match error.code {
        ErrorCode::Cancelled | ErrorCode::DeadlineExceeded => Err(error),
        _ => Ok(error),
    }
}
