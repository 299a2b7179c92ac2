//! Honest runs beside hostile guests, and starts with a component that keeps a compiler busy.

use super::{
    bomb, echo,
    people::load,
    session::{Report, Session},
    site::Site,
};

/// Guests of each kind. The pool has room for them, and for those who are honest.
const MANY: [usize; 3] = [1, 10, 100];
/// Guests of a kind whose runs end by what they do.
const ENDING: [usize; 1] = [10];
const MEASURE_MS: &str = "4000";

/// A deed of hostile guests.
pub(crate) struct Attack {
    /// In the names of its figures.
    kind: &'static str,
    /// Text of the message to a guest.
    pub(crate) text: &'static str,
    /// False for one that goes on until it is cancelled. Where it ends its run, the next run begins at once.
    ends: bool,
}

impl Attack {
    const fn endless(kind: &'static str, text: &'static str) -> Self {
        Self { kind, text, ends: false }
    }

    const fn ending(kind: &'static str, text: &'static str) -> Self {
        Self { kind, text, ends: true }
    }

    fn guests(&self) -> &'static [usize] {
        if self.ends { &ENDING } else { &MANY }
    }
}

pub(crate) const ATTACKS: [Attack; 10] = [
    Attack::endless("spin", "loop"),
    Attack::endless("calls", "loop-calls"),
    Attack::endless("refused", "state-in-vain 1000000000"),
    Attack::endless("emit", "emit-n 1000000000"),
    Attack::endless("log", "log-flood 1000000000"),
    Attack::ending("memory", "grow"),
    Attack::ending("stack", "recurse"),
    Attack::ending("trap", "trap"),
    Attack::ending("values", "deep-json 200000"),
    Attack::ending("handles", "pollables 1000000"),
];

pub(crate) fn measure(session: &mut Session) -> anyhow::Result<()> {
    const ALONE: [(&str, &str); 4] = [
        ("isolation.alone.echo.p50_ms", "echo_p50_ms"),
        ("isolation.alone.echo.p99_ms", "echo_p99_ms"),
        ("isolation.alone.health.p50_ms", "health_p50_ms"),
        ("isolation.alone.health.p99_ms", "health_p99_ms"),
    ];
    for attack in &ATTACKS {
        let Attack { kind, text, ends } = attack;
        for &guests in attack.guests() {
            let name = |figure: &str| format!("isolation.{kind}.{guests}.{figure}");
            let (median, ratio) = (name("echo.p50_ratio"), name("echo.p99_ratio"));
            let (health, cancel) = (name("health.p99_ms"), name("cancel_ms"));
            let mut wanted = vec![&*median, &ratio, &health];
            wanted.extend((!ends).then_some(&*cancel));
            if !session.wants(&wanted) {
                continue;
            }
            let [alone, beside] = pair(session, &format!("isolation-{kind}-{guests}"), text, guests)?;
            ALONE.iter().try_for_each(|(figure, number)| session.record_once(figure, alone.number(number)?))?;
            session.record(&median, beside.number("echo_p50_ms")? / alone.number("echo_p50_ms")?)?;
            session.record(&ratio, beside.number("echo_p99_ms")? / alone.number("echo_p99_ms")?)?;
            session.record(&health, beside.number("health_p99_ms")?)?;
            if !ends {
                session.record(&cancel, beside.number("cancel_ms")?)?;
            }
        }
    }
    cancel_tree(session)?;
    bomb::measure(session)
}

/// A tree of 48 runs on two levels, half of which compute, whose root is cancelled.
fn cancel_tree(session: &mut Session) -> anyhow::Result<()> {
    const CANCEL: &str = "isolation.tree.48.cancel_ms";
    const RUNS: &str = "48";
    const TREE: &str =
        "fan 22 default [spin]; fan 22 default [await never]; fan 2 default [start default [spin]; await never]; await never";
    if !session.wants(&[CANCEL]) {
        return Ok(());
    }
    let config = "[limits]\nchild_runs_at_once = 60\n[[bindings]]\nid = \"tree\"\nrunner = \"plugin:test/family/default\"\n\
                  deadline_ms = 600000\n[bindings.resources]\nruns = [\"start\", \"get\", \"list\", \"events\", \"cancel\"]\n";
    let site = Site::holding(session, "isolation-tree", &[&session.family], config)?;
    let host = site.start(session)?.host;
    let report = load(session, &host, "cancel-tree", &["--text", TREE, "--runs", RUNS]);
    host.kill();
    session.record(CANCEL, report?.number("cancel_ms")?)
}

/// A site whose host echoes messages, and has a hostile guest for each attack.
pub(crate) fn site(session: &Session, name: &str) -> anyhow::Result<Site> {
    let honest = format!(
        "[[bindings]]\nid = \"honest\"\nrunner = \"{}\"\nmatch = {{ event_type = \"message.received\" }}\n",
        echo::RUNNER
    );
    let hostile = "[[bindings]]\nid = \"hostile\"\nrunner = \"plugin:test/hostile/default\"\nmatch = { event_type = \"attack\" }\ndeadline_ms = 600000\n";
    let config = format!("{honest}{hostile}");
    Site::holding(session, name, &[&session.echo, &session.hostile], &config)
}

/// The same clients without hostile guests, and with them, of one host.
fn pair(session: &Session, name: &str, attack: &str, guests: usize) -> anyhow::Result<[Report; 2]> {
    let site = site(session, name)?;
    let host = site.start(session)?.host;
    let run = |guests: usize| {
        let guests = guests.to_string();
        load(session, &host, "isolation", &["--attack", attack, "--guests", &guests, "--measure", MEASURE_MS])
    };
    let reports = run(0).and_then(|alone| Ok([alone, run(guests)?]));
    host.kill();
    reports
}
