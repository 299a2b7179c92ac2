//! AG-UI: whole runs, the delay of what they say, clients that come back, and long threads.

use std::fs;

use super::{
    calls::{RUNNER, UNLIMITED},
    echo,
    people::{load, record},
    session::Session,
    site::Site,
    stream::ModelServer,
};

/// Connections, and how many runs of each are counted of those that take their time: enough tokens for a p99.
const CONNECTIONS: [(u32, u32); 3] = [(1, 5), (20, 2), (200, 1)];
/// Tokens of a run, and letters of each.
const TOKENS: u32 = 200;
const LETTERS: usize = 6;
/// The time between two tokens of a model that takes its time: 50 a second.
const PACE_US: &str = "20000";
/// Clients that come back to one run, one after the other.
const CLIENTS: &str = "300";
/// The official agent, the tokens that its model says at once, and how many runs do.
const LOCAL_AGENT: &str = "plugin:agent-host/local-agent/default";
const DELTAS: u32 = 20_000;
const DELTA_RUNS: &str = "5";
/// The history that a client sends along, and how many runs begin with it.
const HISTORY_TURNS: &str = "300";
const HISTORY_RUNS: &str = "20";
/// A long thread, and how often its first screen is shown.
const MESSAGES: &str = "10000";
const SCREENS: &str = "200";

pub(crate) fn measure(session: &mut Session) -> anyhow::Result<()> {
    runs(session)?;
    tokens(session)?;
    reattach(session)?;
    deltas(session)?;
    history(session)?;
    thread(session)
}

/// Runs of a model that answers at once, as many as there are connections.
fn runs(session: &mut Session) -> anyhow::Result<()> {
    for (connections, _) in CONNECTIONS {
        let figure = format!("agui.runs.{connections}");
        if !session.wants(&[&figure]) {
            continue;
        }
        let host = scripted(session, &figure, TOKENS)?.start(session)?.host;
        let report = load(session, &host, "agui", &["--in-flight", &connections.to_string()]);
        host.kill();
        session.record(&figure, report?.number("runs_per_second")?)?;
    }
    Ok(())
}

/// A site with an agent that passes on what a scripted model says: so many tokens, at once.
pub(crate) fn scripted(session: &Session, name: &str, tokens: u32) -> anyhow::Result<Site> {
    let model = "[[models]]\nid = \"chat\"\nprovider = \"scripted\"\nscript = \"script.toml\"\n";
    let site = Site::configured(session, name, &session.calls, &config(model))?;
    write_script(&site, tokens)?;
    Ok(site)
}

/// The script of a model that says so many tokens.
fn write_script(site: &Site, tokens: u32) -> anyhow::Result<()> {
    let text: String = std::iter::repeat_n("token ", usize::try_from(tokens)?).collect();
    fs::write(site.file("script.toml"), format!("[[reply]]\ntext = \"{text}\"\nchunk_chars = {LETTERS}\n"))?;
    Ok(())
}

/// Runs of a model that takes its time.
fn tokens(session: &mut Session) -> anyhow::Result<()> {
    for (connections, each) in CONNECTIONS {
        let names = ["first_event", "token_delay"].map(|what| format!("agui.{what}.{connections}"));
        let figures = names.map(|name| [format!("{name}.p50_ms"), format!("{name}.p99_ms")]);
        let [first, token] = &figures;
        if !session.wants(&[&first[0], &first[1], &token[0], &token[1]]) {
            continue;
        }
        let models = ModelServer::start(session)?;
        let site = Site::configured(session, &format!("agui-tokens-{connections}"), &session.calls, &config(&models.config()))?;
        let host = site.start(session)?.host;
        let (connections, tokens, each) = (connections.to_string(), TOKENS.to_string(), each.to_string());
        let arguments = ["--in-flight", &connections, "--tokens", &tokens, "--pace-us", PACE_US, "--each", &each];
        let report = load(session, &host, "agui-tokens", &arguments);
        host.kill();
        let report = report?;
        for ([p50, p99], what) in figures.iter().zip(["first_event", "token"]) {
            let delays = report.part(what)?;
            session.record(p50, delays.number("p50_ms")?)?;
            session.record(p99, delays.number("p99_ms")?)?;
        }
    }
    Ok(())
}

/// Clients that come back to a run that is under way.
fn reattach(session: &mut Session) -> anyhow::Result<()> {
    const FIGURES: [(&str, &str); 2] = [("agui.reattach.p50_ms", "p50_ms"), ("agui.reattach.p99_ms", "p99_ms")];
    if !session.wants(&FIGURES.map(|(figure, _)| figure)) {
        return Ok(());
    }
    let models = ModelServer::start(session)?;
    let site = Site::configured(session, "agui-reattach", &session.calls, &config(&models.config()))?;
    let host = site.start(session)?.host;
    let report = load(session, &host, "agui-reattach", &["--rounds", CLIENTS]);
    host.kill();
    record(session, &FIGURES, &report?)
}

/// One run of the official agent with the default limits, whose model is faster than the host.
fn deltas(session: &mut Session) -> anyhow::Result<()> {
    const FIGURE: &str = "agui.deltas_per_second";
    if !session.wants(&[FIGURE]) {
        return Ok(());
    }
    let config = format!(
        "[[models]]\nid = \"chat\"\nprovider = \"scripted\"\nscript = \"script.toml\"\n\n[[bindings]]\nid = \"bench\"\nrunner = \
         \"{LOCAL_AGENT}\"\n"
    );
    let site = Site::configured(session, "agui-deltas", &session.local_agent, &config)?;
    write_script(&site, DELTAS)?;
    let host = site.start(session)?.host;
    let report = load(session, &host, "agui-deltas", &["--tokens", &DELTAS.to_string(), "--rounds", DELTA_RUNS]);
    host.kill();
    session.record(FIGURE, report?.number("per_second")?)
}

/// A client that sends a long history along.
fn history(session: &mut Session) -> anyhow::Result<()> {
    const FIGURE: &str = "agui.history_300.first_event_ms";
    if !session.wants(&[FIGURE]) {
        return Ok(());
    }
    let config = format!("[[bindings]]\nid = \"echo\"\nrunner = \"{}\"\n", echo::RUNNER);
    let site = Site::configured(session, "agui-history", &session.echo, &config)?;
    let host = site.start(session)?.host;
    let report = load(session, &host, "agui-history", &["--turns", HISTORY_TURNS, "--rounds", HISTORY_RUNS]);
    host.kill();
    session.record(FIGURE, report?.number("p50_ms")?)
}

/// The first screen of a long thread.
fn thread(session: &mut Session) -> anyhow::Result<()> {
    const FIGURES: [(&str, &str); 3] = [
        ("agui.thread_10000.first_ms", "first_ms"),
        ("agui.thread_10000.p50_ms", "p50_ms"),
        ("agui.thread_10000.p99_ms", "p99_ms"),
    ];
    if !session.wants(&FIGURES.map(|(figure, _)| figure)) {
        return Ok(());
    }
    let runner = echo::RUNNER;
    let config = format!("{UNLIMITED}\n[[bindings]]\nid = \"echo\"\nrunner = \"{runner}\"\n");
    let site = Site::configured(session, "agui-thread", &session.echo, &config)?;
    let host = site.start(session)?.host;
    let report = load(session, &host, "agui-thread", &["--messages", MESSAGES, "--rounds", SCREENS]);
    host.kill();
    record(session, &FIGURES, &report?)
}

/// An agent that passes on what this model streams.
fn config(model: &str) -> String {
    format!("{UNLIMITED}\n{model}\n[[bindings]]\nid = \"bench\"\nrunner = \"{RUNNER}\"\n")
}
