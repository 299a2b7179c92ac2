//! The mailbox of a live run: what comes for it from outside while it is in memory.
//!
//! A run writes its own record as long as it lives, so whoever has an answer for it hands that over and is told when it is
//! durable. A run that leaves memory closes its mailbox; what nobody took is given back, and looked at again.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};

use crate::{asks::Given, error::HostError};

/// An answer that is on its way to a run.
pub(crate) struct Letter {
    pub(crate) action_id: String,
    pub(crate) given: Given,
    /// Set when the run begins to write it: from then on it may be durable, whatever becomes of the run.
    pub(crate) begun: Arc<AtomicBool>,
    /// Told when the answer is durable. Dropped where the run does not take it.
    pub(crate) taken: oneshot::Sender<Result<(), HostError>>,
}

/// The run has left memory.
pub(crate) struct Closed;

pub(crate) struct Mailbox {
    letters: Mutex<Option<Letters>>,
    came: watch::Sender<()>,
    asked: Arc<AskedNow>,
}

#[derive(Default)]
struct Letters {
    waiting: Vec<Letter>,
    /// Letters that were taken and are being written.
    writing: usize,
}

/// As long as it lives, a letter is being written.
pub(crate) struct Writing<'a>(&'a Mailbox);

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        if let Some(letters) = &mut *self.0.letters.lock() {
            letters.writing = letters.writing.saturating_sub(1);
        }
    }
}

/// What runs that are in memory wait for an answer to.
pub(crate) type AskedNow = Mutex<BTreeSet<String>>;

/// As long as it lives, the run waits for an answer.
pub(crate) struct Asking<'a> {
    asked: &'a AskedNow,
    action_id: String,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.asked.lock().remove(&self.action_id);
    }
}

impl Mailbox {
    pub(crate) fn new(asked: &Arc<AskedNow>) -> Arc<Self> {
        Arc::new(Self { letters: Mutex::new(Some(Letters::default())), came: watch::Sender::new(()), asked: Arc::clone(asked) })
    }

    /// The run waits for an answer to this.
    pub(crate) fn asks(&self, action_id: &str) -> Asking<'_> {
        self.asked.lock().insert(action_id.to_owned());
        Asking { asked: &self.asked, action_id: action_id.to_owned() }
    }

    /// Tells when something has come. To be called before anything is looked at.
    pub(crate) fn watch(&self) -> watch::Receiver<()> {
        self.came.subscribe()
    }

    /// Something has happened that the run may wait for.
    pub(crate) fn poke(&self) {
        self.came.send_replace(());
    }

    pub(crate) fn post(&self, letter: Letter) -> Result<(), Closed> {
        match &mut *self.letters.lock() {
            Some(letters) => letters.waiting.push(letter),
            None => return Err(Closed),
        }
        self.poke();
        Ok(())
    }

    /// The first answer for an action. Those behind it are given back: they are told that it was answered.
    pub(crate) fn take(&self, action_id: &str) -> Option<(Letter, Writing<'_>)> {
        let mut letters = self.letters.lock();
        let letters = letters.as_mut()?;
        let place = letters.waiting.iter().position(|letter| letter.action_id == action_id)?;
        let letter = letters.waiting.remove(place);
        letters.writing += 1;
        letter.begun.store(true, Ordering::Release);
        Some((letter, Writing(self)))
    }

    /// The run takes nothing for this action any more.
    pub(crate) fn refuse(&self, action_id: &str) {
        if let Some(letters) = &mut *self.letters.lock() {
            letters.waiting.retain(|letter| letter.action_id != action_id);
        }
    }

    /// Closes it where nothing is in it and nothing of it is being written. [`Mailbox::open`] undoes that.
    pub(crate) fn close_if_idle(&self) -> bool {
        let mut letters = self.letters.lock();
        let idle = letters.as_ref().is_some_and(|letters| letters.waiting.is_empty() && letters.writing == 0);
        if idle {
            *letters = None;
        }
        idle
    }

    pub(crate) fn open(&self) {
        self.letters.lock().get_or_insert_default();
    }

    pub(crate) fn close(&self) {
        drop(self.letters.lock().take());
    }
}
