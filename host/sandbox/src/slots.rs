//! Slots of guests that compute: as many at one time as there are threads for them, and fair among workspaces, then among
//! the bindings of a workspace, then first come, first served.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// The workspace and the binding that a guest computes for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ComputeShare {
    /// The workspace; empty for what has none.
    pub workspace: Arc<str>,
    /// The binding; empty for what the host does itself.
    pub binding: Arc<str>,
}

/// The slots that there are, and who waits for one.
pub(crate) struct Slots(Mutex<Inner>);

struct Inner {
    free: usize,
    waiting: RoundRobin<RoundRobin<VecDeque<oneshot::Sender<Slot>>>>,
    count: usize,
}

/// A slot: for one poll of a guest. The next one has it when it is dropped.
pub(crate) struct Slot {
    slots: Arc<Slots>,
    /// False once it was passed on.
    is_held: bool,
}

/// Lines that are served one after the other.
#[derive(Default)]
struct RoundRobin<L> {
    lines: HashMap<Arc<str>, L>,
    order: VecDeque<Arc<str>>,
}

trait Line: Default {
    type Item;
    fn pop(&mut self) -> Option<Self::Item>;
    fn is_empty(&self) -> bool;
}

impl<T> Line for VecDeque<T> {
    type Item = T;

    fn pop(&mut self) -> Option<T> {
        self.pop_front()
    }

    fn is_empty(&self) -> bool {
        Self::is_empty(self)
    }
}

impl<L: Line> RoundRobin<L> {
    /// The line of this name. An empty one takes its place behind the others; something has to be put into it.
    fn line(&mut self, name: &Arc<str>) -> &mut L {
        self.lines.entry(Arc::clone(name)).or_insert_with(|| {
            self.order.push_back(Arc::clone(name));
            L::default()
        })
    }
}

impl<L: Line> Line for RoundRobin<L> {
    type Item = L::Item;

    fn pop(&mut self) -> Option<L::Item> {
        let name = self.order.pop_front()?;
        let line = self.lines.get_mut(&name)?;
        let item = line.pop();
        if line.is_empty() {
            self.lines.remove(&name);
        } else {
            self.order.push_back(name);
        }
        item
    }

    fn is_empty(&self) -> bool {
        self.order.is_empty()
    }
}

impl Slots {
    pub(crate) fn new(count: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Inner { free: count, waiting: RoundRobin::default(), count: 0 })))
    }

    /// Waits for a slot.
    pub(crate) async fn take(self: &Arc<Self>, share: &ComputeShare) -> Slot {
        let waits = {
            let mut inner = self.0.lock();
            if inner.free > 0 {
                inner.free -= 1;
                return self.slot();
            }
            let (sender, receiver) = oneshot::channel();
            inner.waiting.line(&share.workspace).line(&share.binding).push_back(sender);
            inner.count += 1;
            receiver
        };
        match waits.await {
            Ok(slot) => slot,
            // A waiting sender is dropped with the slots alone, which this borrow keeps.
            Err(_) => std::future::pending().await,
        }
    }

    /// True if guests wait for a slot.
    pub(crate) fn are_short(&self) -> bool {
        self.0.lock().count > 0
    }

    fn slot(self: &Arc<Self>) -> Slot {
        Slot { slots: Arc::clone(self), is_held: true }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if !self.is_held {
            return;
        }
        loop {
            let next = {
                let mut inner = self.slots.0.lock();
                let next = inner.waiting.pop();
                match &next {
                    Some(_) => inner.count -= 1,
                    None => inner.free += 1,
                }
                next
            };
            let Some(next) = next else { return };
            // Outside of the lock: a slot that nobody waits for any more comes back.
            match next.send(self.slots.slot()) {
                Ok(()) => return,
                Err(mut refused) => refused.is_held = false,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn share(workspace: &str, binding: &str) -> ComputeShare {
        ComputeShare { workspace: workspace.into(), binding: binding.into() }
    }

    #[test]
    fn slots_go_around_workspaces_and_their_bindings() {
        let slots = Slots::new(1);
        let held = slots.take(&share("a", "x")).now_or_never().unwrap();
        let mut waiting: Vec<_> = ["a/x", "a/x", "a/y", "a/x", "b/z", "b/z"]
            .into_iter()
            .map(|name| {
                let (workspace, binding) = name.split_once('/').unwrap();
                let (slots, share) = (Arc::clone(&slots), share(workspace, binding));
                let mut wait = async move { slots.take(&share).await }.boxed();
                assert!(wait.as_mut().now_or_never().is_none());
                Some((name, wait))
            })
            .collect();
        let (mut held, mut order) = (Some(held), Vec::new());
        while waiting.iter().any(Option::is_some) {
            assert!(slots.are_short());
            drop(held.take());
            for place in &mut waiting {
                let Some((name, wait)) = place else { continue };
                if let Some(slot) = wait.as_mut().now_or_never() {
                    assert!(held.replace(slot).is_none(), "one slot at a time");
                    order.push(*name);
                    *place = None;
                }
            }
        }
        assert_eq!(order, ["a/x", "b/z", "a/y", "b/z", "a/x", "a/x"]);
        drop(held);
        assert!(!slots.are_short() && slots.take(&share("c", "c")).now_or_never().is_some());
    }

    #[test]
    fn a_slot_that_nobody_waits_for_any_more_goes_to_the_next() {
        let slots = Slots::new(1);
        let held = slots.take(&share("a", "x")).now_or_never().unwrap();
        let (gone, here) = (share("a", "x"), share("b", "x"));
        let mut gone = slots.take(&gone).boxed();
        let mut here = slots.take(&here).boxed();
        assert!(gone.as_mut().now_or_never().is_none() && here.as_mut().now_or_never().is_none());
        drop(gone);
        drop(held);
        let slot = here.now_or_never().unwrap();
        drop(slot);
        // A slot that was given and not taken is free again.
        let held = slots.take(&share("a", "x")).now_or_never().unwrap();
        let waits = share("a", "x");
        let mut waits = slots.take(&waits).boxed();
        assert!(waits.as_mut().now_or_never().is_none());
        drop(held);
        drop(waits);
        assert!(slots.take(&share("a", "x")).now_or_never().is_some());
    }
}
