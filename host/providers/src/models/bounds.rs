//! The bounds of one call of a model, and the requests in it that failed and were sent again.

use std::time::{Duration, Instant};

use agent_host_protocol::{ApiError, model::Retry};
use parking_lot::Mutex;

use super::milliseconds;

/// Requests that are listed; later ones are only made.
const MOST_LISTED: usize = 16;

/// The last moment of a call, and who keeps a list of its failed requests.
#[derive(Debug, Clone, Copy)]
pub struct CallBounds<'a> {
    pub(super) deadline: Instant,
    retries: Option<&'a Retries>,
}

impl From<Instant> for CallBounds<'_> {
    fn from(deadline: Instant) -> Self {
        Self { deadline, retries: None }
    }
}

impl<'a> CallBounds<'a> {
    /// A call until `deadline` whose failed requests are listed in `retries`.
    #[must_use]
    pub const fn new(deadline: Instant, retries: &'a Retries) -> Self {
        Self { deadline, retries: Some(retries) }
    }

    pub(super) fn note(&self, error: &ApiError, pause: Duration) {
        if let Some(retries) = self.retries {
            let mut listed = retries.0.lock();
            if listed.len() < MOST_LISTED {
                listed.push(Retry { category: error.category().to_owned(), pause_ms: milliseconds(pause) });
            }
        }
    }
}

/// The first requests of a call that failed and were sent again, in their order.
#[derive(Debug, Default)]
pub struct Retries(Mutex<Vec<Retry>>);

impl Retries {
    /// Takes the requests so far.
    #[must_use]
    pub fn take(&self) -> Vec<Retry> {
        std::mem::take(&mut self.0.lock())
    }
}
