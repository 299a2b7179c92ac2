//! The part of the transcript that the host puts into a context unasked: manifest ∩ binding.
//!
//! A runner that manages its own context (`self_managed`) gets no messages. For the others the manifest says what they want,
//! and a binding narrows that or asks for more; the bounds are the smaller of both.

use agent_host_config::Bootstrap;
use agent_host_protocol::manifest::{
    ArtifactOperation, BootstrapMode, ContextOwnership, ContextPolicy, HistoryOperation, Permissions,
};

/// Bounds where neither the manifest nor the binding has one.
const DEFAULT_EVENTS: u32 = 20;
const DEFAULT_BYTES: u32 = 32 * 1024;
/// Largest bounds that a manifest can ask for.
const MAX_EVENTS: u32 = 100;
const MAX_BYTES: u32 = 256 * 1024;

/// The part of the transcript in a context, and the side that decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InlineTerms {
    pub(crate) bootstrap: Bootstrap,
    pub(crate) reason: &'static str,
}

/// The part of the transcript for runs of a runner with this policy under a binding with this setting.
pub(crate) fn terms(manifest: &ContextPolicy, binding: Option<&Bootstrap>) -> InlineTerms {
    let mode = binding.map_or(manifest.bootstrap, |binding| binding.mode);
    let bounds = |mode| {
        let events = smaller(manifest.max_inline_events, binding.map(|binding| binding.max_events), DEFAULT_EVENTS, MAX_EVENTS);
        let bytes = smaller(manifest.max_inline_bytes, binding.map(|binding| binding.max_bytes), DEFAULT_BYTES, MAX_BYTES);
        Bootstrap { mode, max_events: events, max_bytes: bytes }
    };
    let brings_messages = matches!(mode, BootstrapMode::RecentTail | BootstrapMode::SummaryTail);
    match binding {
        _ if manifest.ownership == ContextOwnership::SelfManaged && brings_messages => InlineTerms {
            bootstrap: bounds(BootstrapMode::CurrentEvent),
            reason: "manifest: the runner manages its own context (`self_managed`)",
        },
        Some(_) => InlineTerms { bootstrap: bounds(mode), reason: "binding" },
        None => InlineTerms { bootstrap: bounds(mode), reason: "manifest" },
    }
}

/// The smaller bound. A manifest says 0 where it has none.
fn smaller(manifest: u32, binding: Option<u32>, default: u32, max: u32) -> u32 {
    match (manifest, binding) {
        (0, binding) => binding.unwrap_or(default),
        (manifest, Some(binding)) => manifest.min(binding),
        (manifest, None) => manifest.min(max),
    }
}

/// Permissions without the reads that the runner does not support.
pub(crate) fn supported(policy: &ContextPolicy, permissions: &mut Permissions) {
    permissions.history.retain(|operation| match operation {
        HistoryOperation::Page => policy.supports_history_pull,
        // A manifest asks for the search by its permission; the declaration of most runners is the default.
        HistoryOperation::Search => policy.supports_history_pull || policy.supports_history_search,
    });
    permissions.artifacts.retain(|operation| match operation {
        ArtifactOperation::Metadata | ArtifactOperation::Read => policy.supports_artifact_pull,
        ArtifactOperation::Create => true,
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(ownership: ContextOwnership, bootstrap: BootstrapMode, events: u32, bytes: u32) -> ContextPolicy {
        ContextPolicy { ownership, bootstrap, max_inline_events: events, max_inline_bytes: bytes, ..ContextPolicy::default() }
    }

    fn binding(mode: BootstrapMode, max_events: u32, max_bytes: u32) -> Bootstrap {
        Bootstrap { mode, max_events, max_bytes }
    }

    #[test]
    fn manifest_and_binding_are_intersected() {
        use BootstrapMode::{CurrentEvent, None as Nothing, RecentTail, SummaryTail};
        use ContextOwnership::{HostBootstrap, Hybrid, SelfManaged};
        let cases = [
            (manifest(SelfManaged, CurrentEvent, 0, 0), None, (CurrentEvent, 20, 32 * 1024), "manifest"),
            (manifest(SelfManaged, RecentTail, 0, 0), None, (CurrentEvent, 20, 32 * 1024), "self_managed"),
            (
                manifest(SelfManaged, CurrentEvent, 0, 0),
                Some(binding(RecentTail, 5, 100)),
                (CurrentEvent, 5, 100),
                "self_managed",
            ),
            (manifest(Hybrid, RecentTail, 0, 0), None, (RecentTail, 20, 32 * 1024), "manifest"),
            (manifest(Hybrid, RecentTail, 7, 900), Some(binding(RecentTail, 50, 100)), (RecentTail, 7, 100), "binding"),
            (manifest(Hybrid, RecentTail, 7, 900), Some(binding(Nothing, 20, 100)), (Nothing, 7, 100), "binding"),
            (manifest(HostBootstrap, CurrentEvent, 0, 0), Some(binding(SummaryTail, 3, 9)), (SummaryTail, 3, 9), "binding"),
            (manifest(HostBootstrap, RecentTail, u32::MAX, u32::MAX), None, (RecentTail, 100, 256 * 1024), "manifest"),
        ];
        for (manifest, binding, (mode, max_events, max_bytes), by) in cases {
            let InlineTerms { bootstrap, reason } = terms(&manifest, binding.as_ref());
            assert_eq!(bootstrap, Bootstrap { mode, max_events, max_bytes }, "{manifest:?} {binding:?}");
            assert!(reason.contains(by), "{reason}");
        }
    }

    #[test]
    fn reads_that_a_runner_does_not_support_are_not_granted() {
        let all = || Permissions {
            history: vec![HistoryOperation::Page, HistoryOperation::Search],
            artifacts: vec![ArtifactOperation::Metadata, ArtifactOperation::Read, ArtifactOperation::Create],
            ..Permissions::default()
        };
        let after = |policy: &ContextPolicy| {
            let mut permissions = all();
            supported(policy, &mut permissions);
            (permissions.history, permissions.artifacts)
        };
        assert_eq!(after(&ContextPolicy::default()), (all().history, all().artifacts));
        let none = ContextPolicy { supports_history_pull: false, supports_artifact_pull: false, ..ContextPolicy::default() };
        assert_eq!(after(&none), (vec![], vec![ArtifactOperation::Create]));
    }
}
