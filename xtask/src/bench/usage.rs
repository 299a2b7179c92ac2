//! Processor time of this program and its processes, and of all others meanwhile.

use std::{
    collections::HashMap,
    fs, thread,
    time::{Duration, Instant},
};

use anyhow::Context;

/// Linux shows times to programs in hundredths of a second (time(7), `USER_HZ`).
const TICKS_PER_SECOND: f64 = 100.0;

/// Processor time up to a moment, in ticks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Usage {
    at: Instant,
    all: u64,
    ours: u64,
}

impl Usage {
    /// Up to now.
    pub(crate) fn now() -> anyhow::Result<Self> {
        let stat = fs::read_to_string("/proc/stat").context("/proc/stat cannot be read")?;
        let all = busy(&stat).context("/proc/stat has another form than proc(5) says")?;
        Ok(Self { at: Instant::now(), all, ours: of_tree(&processes()?, std::process::id()) })
    }

    /// Cores that processes of others have taken since then, on average.
    pub(crate) fn others(self) -> anyhow::Result<f64> {
        let now = Self::now()?;
        Ok(others(self, now))
    }
}

/// Seconds of processor time that a process has taken, with the processes that it has started.
pub(crate) fn of_process(id: u32) -> anyhow::Result<f64> {
    Ok(of_tree(&processes()?, id) as f64 / TICKS_PER_SECOND)
}

/// Cores that others take in the next second.
pub(crate) fn others_now() -> anyhow::Result<f64> {
    let before = Usage::now()?;
    thread::sleep(Duration::from_secs(1));
    before.others()
}

fn others(before: Usage, after: Usage) -> f64 {
    let all = after.all.saturating_sub(before.all);
    let theirs = all.saturating_sub(after.ours.saturating_sub(before.ours));
    let seconds = after.at.saturating_duration_since(before.at).as_secs_f64();
    if seconds > 0.0 { theirs as f64 / TICKS_PER_SECOND / seconds } else { 0.0 }
}

/// Ticks of all processors that were neither idle nor spent on waiting for a disk (proc(5), `/proc/stat`). Time of guests of
/// this machine is in the user time already.
fn busy(stat: &str) -> Option<u64> {
    let times: Vec<u64> =
        stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace().map_while(|time| time.parse().ok()).take(8).collect();
    let idle = times.get(3)? + times.get(4)?;
    Some(times.iter().sum::<u64>().saturating_sub(idle))
}

/// A process: its parent, and its ticks with those of its children that have ended and were waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Process {
    parent: u32,
    ticks: u64,
}

fn processes() -> anyhow::Result<HashMap<u32, Process>> {
    let mut processes = HashMap::new();
    for entry in fs::read_dir("/proc").context("/proc cannot be read")? {
        let entry = entry?;
        let Some(id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // A process may end while it is looked at.
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        processes.extend(process(&stat).map(|process| (id, process)));
    }
    Ok(processes)
}

/// Fields 4 and 14 to 17 (proc(5), `/proc/PID/stat`). The name, field 2, may hold anything, so counting starts behind it.
fn process(stat: &str) -> Option<Process> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(1);
    let parent = fields.next()?.parse().ok()?;
    let times: Vec<u64> = fields.skip(9).take(4).map_while(|field| field.parse().ok()).collect();
    (times.len() == 4).then(|| Process { parent, ticks: times.iter().sum() })
}

/// The ticks of a process and of its descendants. An ended process is included: its parent has its ticks after waiting for
/// it.
fn of_tree(processes: &HashMap<u32, Process>, root: u32) -> u64 {
    let is_below = |id: u32| {
        let mut at = id;
        // No chain of parents is longer than there are processes.
        for _ in 0..=processes.len() {
            if at == root {
                return true;
            }
            match processes.get(&at) {
                Some(process) if process.parent != 0 => at = process.parent,
                _ => return false,
            }
        }
        false
    };
    processes.iter().filter(|(id, _)| is_below(**id)).map(|(_, process)| process.ticks).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_with_an_active_run_is_busy() {
        assert_eq!(busy("cpu  30 1 20 160 10 2 3 4 99 99\ncpu0 1\n"), Some(60));
        assert_eq!(busy("cpu  30 1\n"), None);
        assert_eq!(busy("x"), None);
    }

    #[test]
    fn others_are_all_without_ours() {
        let at = Instant::now();
        let before = Usage { at, all: 1_000, ours: 100 };
        let after = Usage { at: at + Duration::from_secs(2), all: 1_300, ours: 350 };
        assert!((others(before, after) - 0.25).abs() < 1e-9);
        assert!(others(before, before).abs() < 1e-9);
    }

    #[test]
    fn a_tree_of_processes_is_summed() {
        let stat = |parent: u32, ticks: u64| format!("7 (a ) b) S {parent} 2 3 4 5 6 7 8 9 10 {ticks} 1 2 3 20 0 5 0 100");
        assert_eq!(process(&stat(4, 10)), Some(Process { parent: 4, ticks: 16 }));
        assert_eq!(process("7 (a) S 1"), None);
        let processes: HashMap<_, _> =
            [(1, 0, 1), (2, 1, 10), (3, 2, 100), (4, 1, 1_000)].map(|(id, parent, ticks)| (id, Process { parent, ticks })).into();
        assert_eq!(of_tree(&processes, 2), 110);
        assert_eq!(of_tree(&processes, 9), 0);
    }

    #[test]
    fn this_process_is_one_of_ours() {
        assert!(processes().unwrap().contains_key(&std::process::id()));
        assert!(Usage::now().unwrap().others().is_ok());
    }
}
