//! The bounds of one call of a model, the requests in it that failed and were sent again, and the models that failed before another.

use std::time::{Duration, Instant};

use agent_host_config::ModelPrice;
use agent_host_protocol::{
    ApiError,
    model::{Fallback, Retry},
};
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
            let listed = &mut retries.0.lock().requests;
            if listed.len() < MOST_LISTED {
                listed.push(Retry { category: error.category().to_owned(), pause_ms: milliseconds(pause) });
            }
        }
    }

    /// Notes that a model has failed, and that `next` is asked.
    pub(super) fn fell_back(&self, failed: Fallback, next: AskedModel) {
        if let Some(retries) = self.retries {
            let mut listed = retries.0.lock();
            listed.models.push(failed);
            listed.asked = Some(next);
        }
    }
}

/// A model of a fallback chain that was asked in place of the first.
#[derive(Debug, Clone, PartialEq)]
pub struct AskedModel {
    /// Id of the model.
    pub model_id: String,
    /// The price of its tokens, where the operator set one.
    pub price: Option<ModelPrice>,
}

/// The first requests of a call that failed and were sent again, in their order, and the models that failed before another was
/// asked.
#[derive(Debug, Default)]
pub struct Retries(Mutex<Listed>);

#[derive(Debug, Default)]
struct Listed {
    requests: Vec<Retry>,
    models: Vec<Fallback>,
    asked: Option<AskedModel>,
}

impl Retries {
    /// Takes the requests so far.
    #[must_use]
    pub fn take(&self) -> Vec<Retry> {
        std::mem::take(&mut self.0.lock().requests)
    }

    /// Takes the model that was asked last, where that is not the first, and those that failed before.
    #[must_use]
    pub fn take_models(&self) -> (Option<AskedModel>, Vec<Fallback>) {
        let mut listed = self.0.lock();
        (listed.asked.take(), std::mem::take(&mut listed.models))
    }
}
