//! The memory that all requests for AG-UI threads share. Losing it costs time and no facts.

use std::{num::NonZeroUsize, sync::Arc};

use agent_host_protocol::RunId;
use lru::LruCache;
use parking_lot::Mutex;
use tokio::sync::MutexGuard;

use super::{event::Message, shape::ShapedMessage};

/// Locks that the threads share. A thread holds its own for the moment in which a run of it begins.
const STRIPES: usize = 1_024;
/// Runs whose messages are kept in memory, folded: those of a screen of some hundred threads.
const KEPT_RUNS: NonZeroUsize = NonZeroUsize::new(4_096).unwrap();
/// Requests with a large body that are read at one time: each may have a message of its whole size in memory. The others wait.
const LARGE_BODIES: usize = 8;
/// Runs whose shapes are kept: a hundred bytes for each message.
const KEPT_SHAPES: NonZeroUsize = NonZeroUsize::new(32_768).unwrap();
/// Messages of such a run.
const KEPT_SHAPES_OF_RUN: usize = 256;
/// A run whose messages are larger is folded each time.
const KEPT_BYTES: usize = 16 * 1024;

/// Locks and cache of all threads.
pub(crate) struct AguiState {
    locks: Vec<tokio::sync::Mutex<()>>,
    pub(crate) messages: MessageCache,
    pub(crate) shapes: ShapeCache,
    /// Permits of requests with a large body.
    pub(crate) large_bodies: tokio::sync::Semaphore,
}

impl Default for AguiState {
    fn default() -> Self {
        Self {
            locks: (0..STRIPES).map(|_| tokio::sync::Mutex::default()).collect(),
            messages: MessageCache::default(),
            shapes: ShapeCache::default(),
            large_bodies: tokio::sync::Semaphore::new(LARGE_BODIES),
        }
    }
}

impl AguiState {
    /// The lock of a thread, by the digest of its name: of two requests for one thread, one begins and the other sees that
    /// it has.
    pub(crate) async fn lock(&self, digest: &str) -> Option<MutexGuard<'_, ()>> {
        let number = digest.bytes().take(8).fold(0_usize, |number, byte| number.wrapping_mul(31).wrapping_add(byte.into()));
        match self.locks.get(number % STRIPES) {
            Some(lock) => Some(lock.lock().await),
            None => None,
        }
    }
}

/// The shapes of the messages of ended runs, which never change: the cache only saves time.
pub(crate) struct ShapeCache(Mutex<LruCache<RunId, Arc<[ShapedMessage]>>>);

impl Default for ShapeCache {
    fn default() -> Self {
        Self(Mutex::new(LruCache::new(KEPT_SHAPES)))
    }
}

impl ShapeCache {
    pub(crate) fn get(&self, id: RunId) -> Option<Arc<[ShapedMessage]>> {
        self.0.lock().get(&id).cloned()
    }

    pub(crate) fn keep(&self, id: RunId, shapes: &Arc<[ShapedMessage]>) {
        if shapes.len() <= KEPT_SHAPES_OF_RUN {
            self.0.lock().put(id, Arc::clone(shapes));
        }
    }

    /// Empties the cache, as messages in it are to be deleted.
    pub(crate) fn clear(&self) {
        self.0.lock().clear();
    }
}

/// The folded messages of ended runs, which never change: the cache only saves time.
pub(crate) struct MessageCache(Mutex<LruCache<RunId, Arc<[Message]>>>);

impl Default for MessageCache {
    fn default() -> Self {
        Self(Mutex::new(LruCache::new(KEPT_RUNS)))
    }
}

impl MessageCache {
    pub(crate) fn get(&self, id: RunId) -> Option<Arc<[Message]>> {
        self.0.lock().get(&id).cloned()
    }

    pub(crate) fn keep(&self, id: RunId, messages: &Arc<[Message]>) {
        let bytes = serde_json::to_vec(&**messages).map_or(usize::MAX, |json| json.len());
        if bytes <= KEPT_BYTES {
            self.0.lock().put(id, Arc::clone(messages));
        }
    }

    /// Empties the cache, as messages in it are to be deleted.
    pub(crate) fn clear(&self) {
        self.0.lock().clear();
    }
}
