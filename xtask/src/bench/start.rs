//! The time of the host's start, also with a plugin that is compiled for long, and the memory of a plugin.

use std::{thread, time::Duration};

use super::{
    bomb, memory, python,
    session::Session,
    site::{ReadyHost, Site},
    variant,
};
use crate::workspace::Workspace;

/// A single start with a warm cache is too short to be measured once.
const WARM_STARTS: usize = 5;
/// Memory is looked at when a start has calmed down.
const CALM: Duration = Duration::from_millis(300);

const PER_PLUGIN: &str = "memory.per_plugin.kib";
const FEW: usize = 1;
const MANY: usize = 100;

/// Starts with 1, 10 and 100 plugins: the first compiles them, the next find the code.
pub(crate) fn measure(session: &mut Session) -> anyhow::Result<()> {
    let mut few = None;
    for plugins in [FEW, 10, MANY] {
        let (cold, warm) = (format!("start.cold.{plugins}.ms"), format!("start.warm.{plugins}.ms"));
        let wants_memory = plugins != 10 && session.wants(&[PER_PLUGIN]);
        if !wants_memory && !session.wants(&[&cold, &warm]) {
            continue;
        }
        let component = session.variant.clone();
        let write = |dir: &std::path::Path| variant::write(&component, dir, plugins);
        let site = Site::with_plugins(session, &format!("start-{plugins}"), &variant::runner(0), write)?;
        let first = site.start(session)?;
        session.record(&cold, milliseconds(first.took))?;
        first.host.stop()?;

        let mut times = Vec::new();
        let mut memory = 0;
        for _ in 0..WARM_STARTS {
            let ReadyHost { host, took } = site.start(session)?;
            times.push(took);
            thread::sleep(CALM);
            memory = memory::resident_kib(host.id())?;
            host.stop()?;
        }
        times.sort_unstable();
        session.record(&warm, times.get(WARM_STARTS / 2).copied().map_or(f64::NAN, milliseconds))?;
        match (plugins, few) {
            (FEW, _) => few = Some(memory),
            (MANY, Some(few)) => session.record(PER_PLUGIN, memory.saturating_sub(few) as f64 / (MANY - FEW) as f64)?,
            _ => {}
        }
    }
    cold_python(session)
}

/// A start with a plugin in Python that nothing has compiled: the host listens before it is ready.
fn cold_python(session: &mut Session) -> anyhow::Result<()> {
    const COLD: [&str; 2] = ["start.port_open_cold_python.ms", "start.ready_cold_python.ms"];
    if !session.wants(&COLD) {
        return Ok(());
    }
    let component = python::component(&Workspace::find()?)?;
    let site = Site::configured(session, "start-python", &component, "")?;
    let compiled = bomb::compiled(session, &site, "python.wasm")?;
    anyhow::ensure!(compiled.is_plugin, "the example in Python is refused");
    COLD.into_iter().zip([compiled.listens_ms, compiled.verdict_ms]).try_for_each(|(name, value)| session.record(name, value))
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
