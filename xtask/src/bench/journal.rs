//! The cost of journals, and the rate of replays.

use std::path::Path;

use super::{
    calls::{RUNNER, UNLIMITED},
    echo,
    session::Session,
    site::Site,
    stream::ModelServer,
};

const IN_FLIGHT: [u32; 2] = [1, 256];
const CALLS: [&str; 3] = ["timers.now", "state.get", "state.set"];
/// Calls of a replayed run: enough to distinguish them from the start of the run. A call that writes has a segment of the
/// journal of its own, and each segment is decoded separately.
const REPLAYED: &str = "100000";
const REPLAYED_WRITES: &str = "20000";

pub(crate) fn measure(session: &mut Session) -> anyhow::Result<()> {
    runs(session)?;
    calls(session)?;
    bytes(session)?;
    replay(session)
}

/// Echo runs with a journal and without.
fn runs(session: &mut Session) -> anyhow::Result<()> {
    const PARTS: [(&str, &str); 4] = [
        ("runs_per_second", "runs_per_second"),
        ("off.runs_per_second", "off_runs_per_second"),
        ("ratio", "ratio"),
        ("cpu_ratio", "cpu_ratio"),
    ];
    for in_flight in IN_FLIGHT {
        let figures = PARTS.map(|(part, name)| (format!("journal.echo.{in_flight}.{part}"), name));
        if !session.wants(&figures.each_ref().map(|(figure, _)| figure.as_str())) {
            continue;
        }
        let echo = session.echo.clone();
        let site = both(session, &format!("journal-echo-{in_flight}"), &echo, echo::RUNNER, "")?;
        let report = session.load(&["journal-echo", "--config", &site.config(), "--in-flight", &in_flight.to_string()])?;
        for (figure, name) in figures {
            session.record(&figure, report.number(name)?)?;
        }
    }
    Ok(())
}

/// Host calls with a journal and without.
fn calls(session: &mut Session) -> anyhow::Result<()> {
    let figures = |call: &str| [format!("journal.call.{call}.us"), format!("journal.call.{call}.off.us")];
    let measured: Vec<_> =
        CALLS.into_iter().filter(|call| session.wants(&figures(call).each_ref().map(String::as_str))).collect();
    if measured.is_empty() {
        return Ok(());
    }
    let calls = session.calls.clone();
    let site = both(session, "journal-calls", &calls, RUNNER, "")?;
    let report = session.load(&[&["journal-calls", "--config", &site.config()], measured.as_slice()].concat())?;
    for call in measured {
        let [with, without] = figures(call);
        session.record(&with, report.number(&format!("{call}.us"))?)?;
        session.record(&without, report.number(&format!("{call}.off_us"))?)?;
    }
    Ok(())
}

/// The size of journals on disk.
fn bytes(session: &mut Session) -> anyhow::Result<()> {
    const PER_RUN: &str = "journal.bytes_per_run.echo";
    for of in ["echo", "state", "stream"] {
        let figure = format!("journal.bytes_per_call.{of}");
        let per_run = Some(PER_RUN).filter(|_| of == "echo");
        if !session.wants(&[&figure]) && !per_run.is_some_and(|figure| session.wants(&[figure])) {
            continue;
        }
        let models = if of == "stream" { Some(ModelServer::start(session)?) } else { None };
        let model = models.as_ref().map_or_else(String::new, ModelServer::config);
        let (component, runner) =
            if of == "echo" { (session.echo.clone(), echo::RUNNER) } else { (session.calls.clone(), RUNNER) };
        let site = both(session, &format!("journal-bytes-{of}"), &component, runner, &model)?;
        let report = session.load(&["journal-weight", "--config", &site.config(), "--of", of])?;
        session.record(&figure, report.number("bytes_per_call")?)?;
        if let Some(per_run) = per_run {
            session.record(per_run, report.number("bytes_per_run")?)?;
        }
    }
    Ok(())
}

/// Runs of many calls, executed again.
fn replay(session: &mut Session) -> anyhow::Result<()> {
    for call in CALLS {
        let (guest, whole) = (format!("replay.{call}.calls_per_second"), format!("replay.{call}.whole.calls_per_second"));
        if !session.wants(&[&guest, &whole]) {
            continue;
        }
        let calls = session.calls.clone();
        let site = both(session, &format!("replay-{call}"), &calls, RUNNER, "")?;
        let times = if call == "state.set" { REPLAYED_WRITES } else { REPLAYED };
        let report = session.load(&["replay", "--config", &site.config(), "--call", call, "--times", times])?;
        session.record(&guest, report.number("calls_per_second")?)?;
        session.record(&whole, report.number("whole_calls_per_second")?)?;
    }
    Ok(())
}

/// A site that answers conversations `resume…` with a journal and `fail…` without; `replay…` is answered as by default.
fn both(session: &Session, name: &str, component: &Path, runner: &str, more: &str) -> anyhow::Result<Site> {
    let binding = |durability: &str| {
        format!(
            "[[bindings]]\nid = \"{durability}\"\nrunner = \"{runner}\"\ndurability = \"{durability}\"\nmatch = {{ conversation = \"{durability}.*\" }}\n\n"
        )
    };
    let rest = format!("[[bindings]]\nid = \"rest\"\nrunner = \"{runner}\"\nmatch = {{ conversation = \"replay.*\" }}\n");
    let config = format!(
        "{UNLIMITED}journal_bytes = 1000000000\npark_after_ms = 3600000\n\n{more}\n{}{}{rest}",
        binding("resume"),
        binding("fail")
    );
    Site::configured(session, name, component, &config)
}
