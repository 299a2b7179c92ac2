//! Targets of the crates above the ledger.

pub(crate) mod abi;
pub(crate) mod admission;
pub(crate) mod services;

use std::sync::LazyLock;

use agent_host_runs::rewritten_journal;
use agent_host_server::fuzz;
use tokio::runtime::Runtime;

/// The runtime of targets that wait.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime can be started")
});

/// A segment of a journal: what is read is what a rewritten segment says.
pub(crate) fn journal(data: &[u8]) {
    let Some(written) = rewritten_journal(data) else { return };
    if !written.is_empty() {
        assert_eq!(rewritten_journal(&written).as_ref(), Some(&written), "a segment reads otherwise once it is written again");
    }
}

/// The input of a run of AG-UI, in both profiles.
pub(crate) fn agui_input(data: &[u8]) {
    let lenient = fuzz::agui_input(data, false);
    let strict = fuzz::agui_input(data, true);
    for refusal in [&lenient, &strict].into_iter().filter_map(|parsed| parsed.as_ref().err()) {
        is_problem(refusal);
    }
    assert!(strict.is_err() || lenient == strict, "the strict profile reads what the lenient one does not");
}

/// The body of a request with an event.
pub(crate) fn event_body(data: &[u8]) {
    if let Err(refusal) = fuzz::event(data) {
        is_problem(&refusal);
    }
}

/// A refusal is a problem with a code and a text.
fn is_problem(refusal: &str) {
    let problem: serde_json::Value = serde_json::from_str(refusal).expect("a problem is JSON");
    let has = |member: &str| problem[member].as_str().is_some_and(|text| !text.is_empty());
    assert!(has("code") && has("detail"), "{problem}");
}
