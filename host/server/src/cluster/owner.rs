//! The place of the active host, as this host knows it at the moment.

use std::{sync::Arc, time::Duration};

use agent_host_runs::StandbyWatch;
use axum::{Router, extract::Request, response::Response};
use tokio::sync::watch;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::ServiceExt;

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
    Here(ActiveRoutes),
}

/// The routes of the active host, for as long as this one is that.
#[derive(Debug, Clone)]
pub(crate) struct ActiveRoutes {
    router: Router,
    leaving: CancellationToken,
    left: CancellationToken,
    closing: CancellationToken,
    /// Requests without the head of their answer.
    unanswered: TaskTracker,
}

impl ActiveRoutes {
    /// `closing` ends what the routes wait for.
    pub(crate) fn new(router: Router, closing: CancellationToken) -> Self {
        let (leaving, left) = (CancellationToken::new(), CancellationToken::new());
        Self { router, leaving, left, closing, unanswered: TaskTracker::new() }
    }

    /// Cancelled when the host begins to end, or to give the ledger away: what other hosts have asked for goes on at the next active host.
    pub(crate) const fn leaving(&self) -> &CancellationToken {
        &self.leaving
    }

    /// Cancelled when the host gives the ledger away: what its own clients have asked for goes on at the next active host too.
    pub(crate) const fn left(&self) -> &CancellationToken {
        &self.left
    }

    /// Answers a request.
    pub(crate) async fn answer(self, request: Request) -> Response {
        let _unanswered = self.unanswered.token();
        self.router.oneshot(request).await.unwrap_or_else(|never| match never {})
    }

    /// Ends what requests wait for, and returns when those that were begun are answered.
    pub(crate) async fn answered(&self) {
        self.closing.cancel();
        self.unanswered.close();
        self.unanswered.wait().await;
    }
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

    /// This host is the active one, and answers by these routes.
    pub(crate) fn is_here(&self, routes: ActiveRoutes) {
        self.0.send_replace(Owner::Here(routes));
    }

    /// This host begins to leave: what other hosts have asked it for goes on at the next active host.
    pub(crate) fn begin_to_leave(&self) {
        if let Owner::Here(routes) = &*self.0.borrow() {
            routes.leaving.cancel();
        }
    }

    /// This host is the active one no more, and the next one is not known yet. Gives the routes by which it has answered.
    pub(crate) fn leave(&self) -> Option<ActiveRoutes> {
        let mut left = None;
        self.0.send_if_modified(|owner| {
            let Owner::Here(routes) = owner else { return false };
            routes.leaving.cancel();
            routes.left.cancel();
            left = Some(routes.clone());
            *owner = Owner::Nobody;
            true
        });
        left
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
        source.is_here(ActiveRoutes::new(Router::new(), CancellationToken::new()));
        watch.clone().has_moved_from("other:1".into()).await;
        source.begin_to_leave();
        assert!(matches!(watch.now(), Owner::Here(routes) if routes.leaving().is_cancelled() && !routes.left().is_cancelled()));
        let left = source.leave().unwrap();
        assert!(left.leaving().is_cancelled() && left.left().is_cancelled() && source.leave().is_none());
    }
}
