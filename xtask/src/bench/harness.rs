//! Harnesses: the delay of what an agent says, events and calls of one agent, the start of a process, and the memory of agents that
//! have nothing to say.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::Context;
use serde_json::{Value, json};

use super::{
    calls::{UNLIMITED, guest_call_us},
    memory::resident_kib,
    sample::median,
    session::Session,
    site::Site,
};
use crate::{host::HostProcess, http::Client, process, toolchain};

/// The agent.
const AGENT: &str = include_str!("agent.py");
const RUNNER: &str = "plugin:bench/agent/default";
/// The runner of an executor that makes host calls itself.
const DIRECT: &str = "plugin:bench/direct/default";
/// Runs of which each says one thing.
const ROUNDS: usize = 30;
/// Time for a client to follow before the agent says something, in seconds.
const AFTER: f64 = 0.3;
/// Results of one run.
const EVENTS: usize = 20_000;
/// Calls of one run.
const CALLS: usize = 2_000;
/// Agents that have nothing to say.
const IDLE: usize = 50;
/// Time for all of them to start, and for the host to calm down after that.
const START: Duration = Duration::from_secs(120);
const CALM: Duration = Duration::from_secs(3);
/// Time for one run.
const RUN: Duration = Duration::from_secs(120);
/// Confinements of which the start is measured.
const STARTS: [&str; 3] = ["none", "landlock", "bwrap"];

pub(crate) fn measure(session: &mut Session) -> anyhow::Result<()> {
    first_event(session)?;
    events(session)?;
    calls(session)?;
    starts(session)?;
    idle(session)
}

/// From the first byte of an agent to the first event at a client.
fn first_event(session: &mut Session) -> anyhow::Result<()> {
    const FIGURES: [&str; 2] = ["harness.first_event.added_p50_ms", "harness.first_event.added_max_ms"];
    if !session.wants(&FIGURES) {
        return Ok(());
    }
    let mut times = Vec::new();
    with_host(session, "first", "landlock", |client, _, _| {
        for round in 0..ROUNDS {
            let run = send(client, &format!("first-{round}"), &json!({ "do": "first", "after": AFTER }))?;
            let mut added = None;
            follow(client, &run, |kind, data| {
                if kind == "message.delta" && added.is_none() {
                    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos() as f64;
                    let text = data.pointer("/data/chunk/content").and_then(Value::as_str).context("a delta without a text")?;
                    added = Some((now - text.parse::<f64>()?) / 1e6);
                }
                Ok(())
            })?;
            times.push(added.context("the agent said nothing")?);
        }
        Ok(())
    })?;
    times.sort_by(f64::total_cmp);
    let [p50, max] = [median(&times), times.last().copied()].map(|time| time.unwrap_or(f64::NAN));
    session.record(FIGURES[0], p50)?;
    session.record(FIGURES[1], max)
}

/// Results of one agent, from the first to the last at a client.
fn events(session: &mut Session) -> anyhow::Result<()> {
    const FIGURE: &str = "harness.events_per_second";
    if !session.wants(&[FIGURE]) {
        return Ok(());
    }
    let mut per_second = f64::NAN;
    with_host(session, "events", "landlock", |client, _, _| {
        let run = send(client, "events", &json!({ "do": "events", "count": EVENTS, "after": AFTER }))?;
        let (mut count, mut first, mut last) = (0_usize, None, Instant::now());
        follow(client, &run, |kind, _| {
            if kind == "harness.mode" {
                first.get_or_insert_with(Instant::now);
                last = Instant::now();
                count += 1;
            }
            Ok(())
        })?;
        anyhow::ensure!(count == EVENTS, "{EVENTS} results were written, and {count} came");
        let first = first.context("no result came")?;
        per_second = count as f64 / last.duration_since(first).as_secs_f64();
        Ok(())
    })?;
    session.record(FIGURE, per_second)
}

/// Calls of a tool at the endpoint of a run, one after the other, and those of the same function by an executor over HTTP and by a guest.
fn calls(session: &mut Session) -> anyhow::Result<()> {
    const FIGURES: [&str; 4] = [
        "harness.mcp.calls_per_second",
        "harness.mcp.http_calls_per_second",
        "harness.mcp.http_ratio",
        "harness.mcp.guest_calls_per_second",
    ];
    if !session.wants(&FIGURES) {
        return Ok(());
    }
    let (mut per_second, mut direct) = (f64::NAN, f64::NAN);
    with_host(session, "endpoint", "landlock", |client, host, agent| {
        let said = process::output(Command::new("python3").arg(agent).args(["direct", host.url(), &CALLS.to_string()]))?;
        direct = CALLS as f64 / said.trim().parse::<f64>().with_context(|| format!("the executor says `{said}`"))?;
        let run = send(client, "endpoint", &json!({ "do": "calls", "count": CALLS }))?;
        let mut said = String::new();
        follow(client, &run, |kind, data| {
            if kind == "message.delta" {
                said.push_str(data.pointer("/data/chunk/content").and_then(Value::as_str).unwrap_or_default());
            }
            Ok(())
        })?;
        per_second = CALLS as f64 / said.parse::<f64>().with_context(|| format!("the agent says `{said}`"))?;
        Ok(())
    })?;
    session.record(FIGURES[0], per_second)?;
    session.record(FIGURES[1], direct)?;
    session.record(FIGURES[2], direct / per_second)?;
    let guest = 1e6 / guest_call_us(session, "harness-guest", "state.get")?;
    session.record(FIGURES[3], guest)
}

/// From a message to the first event of an agent that answers at once, by its confinement. The start of its interpreter is in it.
fn starts(session: &mut Session) -> anyhow::Result<()> {
    for isolation in STARTS {
        let figure = format!("harness.start.{isolation}.p50_ms");
        if !session.wants(&[&figure]) {
            continue;
        }
        if isolation == "bwrap" {
            toolchain::need_bubblewrap()?;
        }
        let mut times = Vec::new();
        with_host(session, &format!("start-{isolation}"), isolation, |client, _, _| {
            for round in 0..ROUNDS {
                let began = Instant::now();
                let run = send(client, &format!("start-{round}"), &json!({ "do": "first", "after": 0 }))?;
                let mut first = None;
                follow(client, &run, |kind, _| {
                    if kind == "message.delta" {
                        first.get_or_insert_with(|| began.elapsed());
                    }
                    Ok(())
                })?;
                times.push(first.context("the agent said nothing")?.as_secs_f64() * 1e3);
            }
            Ok(())
        })?;
        times.sort_by(f64::total_cmp);
        session.record(&figure, median(&times).unwrap_or(f64::NAN))?;
    }
    Ok(())
}

/// The memory of agents that have nothing to say: in the host, and of the launchers above them.
fn idle(session: &mut Session) -> anyhow::Result<()> {
    const FIGURES: [&str; 2] = ["harness.idle_50.host_kib_per_session", "harness.idle_50.launcher_kib_per_session"];
    if !session.wants(&FIGURES) {
        return Ok(());
    }
    let mut found = [f64::NAN; 2];
    with_host(session, "idle", "landlock", |client, host, _| {
        // The first run of a process sets up more than itself.
        let run = send(client, "before", &json!({ "do": "first", "after": 0 }))?;
        follow(client, &run, |_, _| Ok(()))?;
        thread::sleep(CALM);
        let before = resident_kib(host.id())?;
        for session in 0..IDLE {
            send(client, &format!("idle-{session}"), &json!({ "do": "idle", "seconds": 600 }))?;
        }
        let deadline = Instant::now() + START;
        let launchers = loop {
            let launchers = children(host.id())?;
            if launchers.len() == IDLE
                && launchers.iter().all(|launcher| children(*launcher).is_ok_and(|below| !below.is_empty()))
            {
                break launchers;
            }
            anyhow::ensure!(Instant::now() < deadline, "{IDLE} agents should work, and {} do", launchers.len());
            thread::sleep(Duration::from_millis(100));
        };
        thread::sleep(CALM);
        let host_kib = resident_kib(host.id())?.saturating_sub(before);
        let launcher_kib: u64 = launchers.iter().map(|launcher| own_kib(*launcher)).sum::<anyhow::Result<u64>>()?;
        found = [host_kib, launcher_kib].map(|kib| kib as f64 / IDLE as f64);
        Ok(())
    })?;
    FIGURES.iter().zip(found).try_for_each(|(figure, value)| session.record(figure, value))
}

/// Starts a host with a harness, and ends it whatever comes of `work`.
fn with_host(
    session: &Session,
    name: &str,
    isolation: &str,
    work: impl FnOnce(&Client, &HostProcess, &Path) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    toolchain::need_python()?;
    // What is on the PATH may be a script that chooses an interpreter.
    let facts = "import sys; print(sys.executable); print(sys.base_prefix)";
    let output = process::output(Command::new("python3").args(["-c", facts]))?;
    let (python, prefix) = output.trim().split_once('\n').context("Python does not say where it is")?;
    let name = format!("harness-{name}");
    // Beside the data directory, which a confined agent does not see.
    let dir = session.dir(&format!("{name}-agent"))?;
    let agent = dir.join("agent.py");
    fs::write(&agent, AGENT)?;
    let config = format!(
        "{UNLIMITED}\n[[harnesses]]\nid = \"{RUNNER}\"\npreset = \"command\"\ncommand = [{python:?}, \"-B\", {agent:?}]\n\
         readable = [{dir:?}, {prefix:?}]\nisolation = \"{isolation}\"\nmax_processes = {IDLE}\nlimits = {{ messages_per_second = 1000000 }}\n\n\
         [[bindings]]\nid = \"bench\"\nrunner = \"{RUNNER}\"\ndeadline_ms = 3600000\n\n\
         [[external_runners]]\nid = \"{DIRECT}\"\npermissions = {{ state = [\"conversation\"] }}\n\n\
         [[bindings]]\nid = \"direct\"\nrunner = \"{DIRECT}\"\n"
    );
    let site = Site::holding(session, &name, &[], &config)?;
    let host = site.start(session)?.host;
    let worked = work(&Client::new(host.url()), &host, &agent);
    // Its runs go back to the queue, and its agents end.
    host.stop()?;
    worked
}

/// Sends a message; gives the id of its run.
fn send(client: &Client, conversation: &str, task: &Value) -> anyhow::Result<String> {
    let event = json!({
        "event_type": "message.received",
        "conversation": { "conversation_id": conversation },
        "input": { "text": task.to_string() },
    });
    let accepted = client.post("/api/v1/events", &[], &event)?;
    let run = accepted.pointer("/runs/0/run_id").and_then(Value::as_str);
    run.map(str::to_owned).with_context(|| format!("the event made no run: {accepted}"))
}

/// Follows a run to its end, which is a success.
fn follow(client: &Client, run: &str, mut each: impl FnMut(&str, &Value) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let mut end = None;
    client.stream(&format!("/api/v1/runs/{run}/events"), RUN, |event| {
        let data: Value = serde_json::from_str(&event.data).with_context(|| format!("an event is no JSON: {}", event.data))?;
        if matches!(event.event.as_str(), "run.completed" | "run.failed" | "run.cancelled") {
            end = Some((event.event.clone(), data.clone()));
        }
        each(&event.event, &data)
    })?;
    let (end, data) = end.with_context(|| format!("run {run} has no end"))?;
    anyhow::ensure!(end == "run.completed", "run {run} did not complete: {data}");
    Ok(())
}

/// The processes below a process.
fn children(pid: u32) -> anyhow::Result<Vec<u32>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Some(id) = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        // A process may end meanwhile.
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        if parent(&stat) == Some(pid) {
            found.push(id);
        }
    }
    Ok(found)
}

/// The parent of a process, from its `stat` (proc(5)). Its name may have any characters, and the fields after it have no `)`.
fn parent(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// The memory of a process alone, with its part of what it shares (proc(5), `smaps_rollup`, `Pss`).
fn own_kib(pid: u32) -> anyhow::Result<u64> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = fs::read_to_string(&path).with_context(|| format!("{path} cannot be read"))?;
    let fields: BTreeMap<_, _> = text.lines().filter_map(|line| line.split_once(':')).collect();
    let kib = fields.get("Pss").and_then(|size| size.trim().strip_suffix(" kB")?.parse().ok());
    kib.with_context(|| format!("{path} has no Pss"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_found_by_their_parent() {
        assert_eq!(parent("17 (a) b (c)) S 42 17 17 0"), Some(42));
        assert_eq!(parent("17"), None);
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let found = children(std::process::id()).unwrap();
        assert!(own_kib(child.id()).unwrap() > 0);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(found.contains(&child.id()), "{found:?}");
    }

    #[test]
    fn every_start_has_a_figure() {
        for isolation in STARTS {
            let name = format!("harness.start.{isolation}.p50_ms");
            assert!(super::super::figures::FIGURES.iter().any(|(figure, _)| *figure == name), "{name}");
        }
    }
}
