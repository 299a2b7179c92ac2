//! The admission of components.

use std::{fs, sync::LazyLock, time::Duration};

use agent_host_protocol::{Limits, PluginStatus};
use agent_host_sandbox::{Options, Sandbox};
use tempfile::TempDir;

use super::RUNTIME;

/// Time for one admission, far above what the limits allow.
const PATIENCE: Duration = Duration::from_secs(60);

struct Host {
    sandbox: Sandbox,
    dir: TempDir,
}

/// Limits for a process that admits one component at a time.
pub(super) fn limits() -> Limits {
    Limits { max_live_runs: 4, compile_ms: 10_000, ..Limits::default() }
}

static HOST: LazyLock<Host> = LazyLock::new(|| {
    let options = Options { limits: limits(), code_cache: None, compiler: None, components: None };
    // The threads of guests belong to a runtime.
    let sandbox = RUNTIME.block_on(async { options.build() }).expect("a sandbox can be started");
    Host { sandbox, dir: tempfile::tempdir().expect("a directory can be made") }
});

/// Any file is a plugin or is refused with a reason and a remedy.
pub(crate) fn component(data: &[u8]) {
    let path = HOST.dir.path().join("plugin.wasm");
    fs::write(&path, data).expect("a file can be written");
    let admission = RUNTIME.block_on(async { tokio::time::timeout(PATIENCE, HOST.sandbox.inspect(&path)).await });
    let report = admission.expect("an admission ends");
    match report.refusal {
        None => assert_eq!((report.status, report.runners.is_empty()), (PluginStatus::Ready, false)),
        Some(refusal) => assert!(!refusal.message.is_empty() && !refusal.fix.is_empty(), "{refusal:?}"),
    }
    assert_eq!(report.size_bytes, data.len() as u64);
}
