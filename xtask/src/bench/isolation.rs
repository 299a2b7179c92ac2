//! Honest runs beside hostile guests, and starts with a component that keeps a compiler busy.

use super::{
    echo,
    people::load,
    session::{Report, Session},
    site::Site,
};

/// Guests of each kind. The pool has room for them, and for those who are honest.
const MANY: [usize; 3] = [1, 10, 100];
/// Deeds of a guest, by the names of their figures; each goes on until it is cancelled.
const ATTACKS: [(&str, &str); 5] = [
    ("spin", "loop"),
    ("calls", "loop-calls"),
    ("refused", "state-in-vain 1000000000"),
    ("emit", "emit-n 1000000000"),
    ("log", "log-flood 1000000000"),
];
const MEASURE_MS: &str = "4000";

pub(crate) fn measure(session: &mut Session) -> anyhow::Result<()> {
    const ALONE: [(&str, &str); 4] = [
        ("isolation.alone.echo.p50_ms", "echo_p50_ms"),
        ("isolation.alone.echo.p99_ms", "echo_p99_ms"),
        ("isolation.alone.health.p50_ms", "health_p50_ms"),
        ("isolation.alone.health.p99_ms", "health_p99_ms"),
    ];
    for (kind, attack) in ATTACKS {
        for guests in MANY {
            let name = |figure: &str| format!("isolation.{kind}.{guests}.{figure}");
            let (ratio, health, cancel) = (name("echo.p99_ratio"), name("health.p99_ms"), name("cancel_ms"));
            if !session.wants(&[&ratio, &health, &cancel]) {
                continue;
            }
            let [alone, beside] = pair(session, &format!("isolation-{kind}-{guests}"), attack, guests)?;
            ALONE.iter().try_for_each(|(figure, number)| session.record_once(figure, alone.number(number)?))?;
            session.record(&ratio, beside.number("echo_p99_ms")? / alone.number("echo_p99_ms")?)?;
            session.record(&health, beside.number("health_p99_ms")?)?;
            session.record(&cancel, beside.number("cancel_ms")?)?;
        }
    }
    Ok(())
}

/// The same clients without hostile guests, and with them, of one host.
fn pair(session: &Session, name: &str, attack: &str, guests: usize) -> anyhow::Result<[Report; 2]> {
    let honest = format!(
        "[[bindings]]\nid = \"honest\"\nrunner = \"{}\"\nmatch = {{ event_type = \"message.received\" }}\n",
        echo::RUNNER
    );
    let hostile = "[[bindings]]\nid = \"hostile\"\nrunner = \"plugin:test/hostile/default\"\nmatch = { event_type = \"attack\" }\ndeadline_ms = 600000\n";
    let config = format!("{honest}{hostile}");
    let site = Site::holding(session, name, &[&session.echo, &session.hostile], &config)?;
    let host = site.start(session)?.host;
    let run = |guests: usize| {
        let guests = guests.to_string();
        load(session, &host, "isolation", &["--attack", attack, "--guests", &guests, "--measure", MEASURE_MS])
    };
    let reports = run(0).and_then(|alone| Ok([alone, run(guests)?]));
    host.kill();
    reports
}
