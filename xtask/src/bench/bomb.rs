//! A cold start with a component that keeps a compiler busy, and the memory of compiling.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use serde_json::Value;

use super::{
    echo,
    memory::{peak_kib, resident_kib},
    session::Session,
    site::Site,
};
use crate::{
    host::{Group, HostProcess, Start},
    http::Client,
    process,
};

#[path = "../../../tests/src/bomb.rs"]
#[allow(unreachable_pub, reason = "a file of the tests, which are another crate")]
mod component;

/// Functions of the component. Its compiler would be busy for a minute.
const FUNCTIONS: u32 = 240;
/// Time that a compiler may compute.
const LIMITS: &str = "[limits]\ncompile_ms = 5000\n";
/// Time until the host knows of a component whether it is a plugin.
const VERDICT: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(20);

/// A start, until there is a verdict on the component.
pub(super) struct Compiled {
    pub(super) listens_ms: f64,
    /// From the start of the process to the verdict.
    pub(super) verdict_ms: f64,
    compile_mib: f64,
    host_mib: f64,
    pub(super) is_plugin: bool,
}

pub(crate) fn measure(session: &mut Session) -> anyhow::Result<()> {
    const BOMB: [&str; 3] = ["isolation.bomb.listens_ms", "isolation.bomb.compile_mib", "isolation.bomb.host_mib"];
    const AGENT: &str = "isolation.compile.agent_mib";
    if session.wants(&BOMB) {
        let binding = format!("[[bindings]]\nid = \"honest\"\nrunner = \"{}\"\n", echo::RUNNER);
        let site = Site::holding(session, "bomb", &[&session.echo], &format!("{binding}{LIMITS}"))?;
        fs::write(site.file("plugins").join("bomb.wasm"), component::bomb(FUNCTIONS))?;
        let Compiled { listens_ms, compile_mib, host_mib, is_plugin, .. } = compiled(session, &site, "bomb.wasm")?;
        anyhow::ensure!(!is_plugin, "the component that keeps a compiler busy is a plugin");
        for (figure, value) in BOMB.into_iter().zip([listens_ms, compile_mib, host_mib]) {
            session.record(figure, value)?;
        }
    }
    if session.wants(&[AGENT]) {
        let file = session.local_agent.file_name().context("a component has a name")?.to_string_lossy().into_owned();
        let site = Site::configured(session, "compile", &session.local_agent, "")?;
        let compiled = compiled(session, &site, &file)?;
        anyhow::ensure!(compiled.is_plugin, "{file} is refused");
        session.record(AGENT, compiled.compile_mib)?;
    }
    Ok(())
}

/// Starts a host without compiled code, and looks at it until it knows of a file whether it is a plugin.
pub(super) fn compiled(session: &Session, site: &Site, file: &str) -> anyhow::Result<Compiled> {
    let began = Instant::now();
    let (config, log) = (site.file("agent-host.toml"), site.file("agent-host.log"));
    let binary = session.host_binary();
    let host =
        HostProcess::start(&Start { binary, config: &config, environment: &[], log, within: VERDICT, group: Group::Ours })?;
    let listens_ms = began.elapsed().as_secs_f64() * 1e3;
    let client = Client::new(host.url());
    let (mut compile_kib, mut host_kib) = (0, 0);
    let is_plugin = loop {
        // A compiler may have ended since it was seen.
        let peaks = process::children(host.id()).into_iter().filter_map(|child| peak_kib(child).ok());
        compile_kib = peaks.fold(compile_kib, u64::max);
        host_kib = host_kib.max(resident_kib(host.id())?);
        if let Some(is_plugin) = verdict(&client.get("/api/v1/runners")?, file) {
            break is_plugin;
        }
        anyhow::ensure!(began.elapsed() < VERDICT, "the host has no verdict on {file} after {} s", VERDICT.as_secs());
        thread::sleep(LOOK);
    };
    let verdict_ms = began.elapsed().as_secs_f64() * 1e3;
    host.kill();
    Ok(Compiled {
        listens_ms,
        verdict_ms,
        compile_mib: compile_kib as f64 / 1024.0,
        host_mib: host_kib as f64 / 1024.0,
        is_plugin,
    })
}

/// True for a plugin, false for a file that is refused.
fn verdict(runners: &Value, file: &str) -> Option<bool> {
    let plugin = runners.get("plugins")?.as_array()?.iter().find(|plugin| plugin.get("file").is_some_and(|name| name == file))?;
    match plugin.get("status")?.as_str()? {
        "ready" => Some(true),
        "refused" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_file_that_is_compiling_has_no_verdict() {
        let plugins = |status: &str| json!({ "plugins": [{ "file": "b.wasm", "status": status }] });
        let verdicts = ["ready", "refused", "loading"].map(|status| verdict(&plugins(status), "b.wasm"));
        assert_eq!(verdicts, [Some(true), Some(false), None]);
        assert_eq!(verdict(&plugins("ready"), "a.wasm"), None);
    }
}
