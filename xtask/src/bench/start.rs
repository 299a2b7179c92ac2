//! The time of the host's start, and the memory of a plugin.

use std::{thread, time::Duration};

use super::{
    memory,
    session::Session,
    site::{ReadyHost, Site},
    variant,
};

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
    Ok(())
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
