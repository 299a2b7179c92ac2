//! The place of the active host, as this host knows it at the moment.

use std::{sync::Arc, time::Duration};

use agent_host_runs::StandbyWatch;
use axum::Router;
use tokio::sync::watch;

/// Interval between looks at what the standby has learned.
const LOOK: Duration = Duration::from_millis(100);

/// The active host.
#[derive(Debug, Clone, Default)]
pub(crate) enum Owner {
    /// No host is active, or this one is about to be.
    #[default]
    Nobody,
    /// Another host, at this address.
    At(Arc<str>),
    /// This host.
    Here(Router),
}

impl Owner {
    /// True if a request that was sent to `asked` has its answer to expect from there no more: another host is active.
    fn is_another_than(&self, asked: &str) -> bool {
        match self {
            // The host before may still answer what it has begun.
            Self::Nobody => false,
            Self::At(host) => **host != *asked,
            Self::Here(_) => true,
        }
    }
}

/// Shows the active host. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct OwnerWatch(watch::Receiver<Owner>);

impl OwnerWatch {
    pub(crate) fn now(&self) -> Owner {
        self.0.borrow().clone()
    }

    /// Waits for a change, and no longer than `pause`.
    pub(crate) async fn changed_within(&mut self, pause: Duration) {
        match tokio::time::timeout(pause, self.0.changed()).await {
            Ok(Ok(())) | Err(_) => {}
            // The server is gone: nothing changes any more.
            Ok(Err(_)) => tokio::time::sleep(pause).await,
        }
    }

    /// Waits until another host than `asked` is the active one.
    pub(crate) async fn has_moved_from(mut self, asked: Arc<str>) {
        if self.0.wait_for(|owner| owner.is_another_than(&asked)).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// The one that knows the active host.
#[derive(Debug)]
pub(crate) struct OwnerSource(watch::Sender<Owner>);

impl OwnerSource {
    pub(crate) fn new() -> (Self, OwnerWatch) {
        let (sender, receiver) = watch::channel(Owner::Nobody);
        (Self(sender), OwnerWatch(receiver))
    }

    /// This host is the active one, and answers by this router.
    pub(crate) fn is_here(&self, router: Router) {
        self.0.send_replace(Owner::Here(router));
    }

    /// Follows what the standby learns, until this host is the active one.
    pub(crate) async fn follow(&self, standby: &StandbyWatch, advertise: &str) {
        loop {
            let active = standby.status().active.filter(|active| active != advertise);
            let mut is_here = false;
            self.0.send_if_modified(|owner| {
                let is_same = match (&*owner, &active) {
                    (Owner::Here(_), _) => {
                        is_here = true;
                        true
                    }
                    (Owner::Nobody, None) => true,
                    (Owner::At(host), Some(active)) => **host == **active,
                    _ => false,
                };
                if !is_same {
                    *owner = active.as_deref().map_or(Owner::Nobody, |active| Owner::At(active.into()));
                }
                !is_same
            });
            if is_here {
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_request_has_moved_when_another_host_is_active_and_not_when_none_is() {
        let (source, watch) = OwnerSource::new();
        let moved = tokio::spawn(watch.clone().has_moved_from("one:1".into()));
        for owner in [Owner::At("one:1".into()), Owner::Nobody] {
            source.0.send_replace(owner);
            tokio::task::yield_now().await;
            assert!(!moved.is_finished());
        }
        source.0.send_replace(Owner::At("other:1".into()));
        moved.await.unwrap();
        source.is_here(Router::new());
        watch.has_moved_from("other:1".into()).await;
    }
}
