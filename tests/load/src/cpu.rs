//! Counters of the kernel for a process and its threads: CPU time, context switches, bytes for the disk (proc(5)).

use std::{fs, io, path::Path, time::Duration};

use anyhow::Context;

/// Linux shows times to programs in hundredths of a second, whatever the kernel counts in (time(7), `USER_HZ`).
const TICK: Duration = Duration::from_millis(10);

/// The user and system time of a process so far, all threads together (proc(5), `/proc/PID/stat`).
pub(crate) fn time(pid: u32) -> anyhow::Result<Duration> {
    let path = format!("/proc/{pid}/stat");
    let stat = std::fs::read_to_string(&path).with_context(|| format!("{path} cannot be read"))?;
    let ticks = ticks(&stat).with_context(|| format!("{path} has another form than proc(5) says"))?;
    Ok(TICK * ticks)
}

/// Fields 14 and 15. The name of the program, field 2, may hold anything, so counting starts behind it.
fn ticks(stat: &str) -> Option<u32> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let user: u32 = fields.next()?.parse().ok()?;
    let system: u32 = fields.next()?.parse().ok()?;
    Some(user + system)
}

/// The CPU time of this process's threads with this name so far, in nanoseconds (`/proc/PID/task/TID/schedstat`). `None`
/// without such a thread.
pub(crate) fn thread_time(name: &str) -> anyhow::Result<Option<Duration>> {
    let times = each_thread(|thread| {
        if fs::read_to_string(thread.join("comm"))?.trim_end() != name {
            return Ok(None);
        }
        let stat = fs::read_to_string(thread.join("schedstat"))?;
        Ok(stat.split(' ').next().and_then(|time| time.parse().ok()).map(Duration::from_nanos))
    })?;
    Ok(times.into_iter().flatten().reduce(|sum, time| sum + time))
}

/// The number of context switches of this process's threads, voluntary or not. Ended threads are not included.
pub(crate) fn context_switches() -> anyhow::Result<u64> {
    Ok(each_thread(|thread| Ok(switches(&fs::read_to_string(thread.join("status"))?)))?.into_iter().sum())
}

/// Bytes that this process made the file systems write: dirty pages, and writes past the page cache.
pub(crate) fn disk_bytes() -> anyhow::Result<u64> {
    let io = fs::read_to_string("/proc/self/io").context("/proc/self/io cannot be read")?;
    field(&io, "write_bytes").context("/proc/self/io has no write_bytes")
}

/// Reads something of each thread of this process; of one that ends meanwhile nothing.
fn each_thread<T>(read: impl Fn(&Path) -> io::Result<T>) -> anyhow::Result<Vec<T>> {
    let mut readings = Vec::new();
    for thread in fs::read_dir("/proc/self/task").context("/proc/self/task cannot be read")? {
        readings.extend(read(&thread?.path()).ok());
    }
    Ok(readings)
}

fn switches(status: &str) -> u64 {
    ["voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"].iter().filter_map(|name| field(status, name)).sum()
}

/// The number behind `name:`.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    #[test]
    fn user_and_system_time_are_added() {
        let stat = "7 (a ) b) S 1 2 3 4 5 6 7 8 9 10 123 77 0 0 20 0 5 0 100";
        assert_eq!(super::ticks(stat), Some(200));
        assert_eq!(super::ticks("7 (a) S 1"), None);
        assert!(super::time(std::process::id()).is_ok());
    }

    #[test]
    fn both_kinds_of_switches_are_added() {
        let status = "Name:\tx\nvoluntary_ctxt_switches:\t3\nnonvoluntary_ctxt_switches:\t4\n";
        assert_eq!(super::switches(status), 7);
        assert!(super::context_switches().is_ok() && super::disk_bytes().is_ok());
    }

    #[test]
    fn a_thread_is_found_by_its_name() {
        let spin = || {
            let began = std::time::Instant::now();
            while began.elapsed() < std::time::Duration::from_millis(20) {}
            super::thread_time("bench-spin").unwrap()
        };
        let time = std::thread::Builder::new().name("bench-spin".to_owned()).spawn(spin).unwrap().join().unwrap();
        assert!(time.is_some_and(|time| !time.is_zero()), "{time:?}");
        assert_eq!(super::thread_time("no-such-thread").unwrap(), None);
    }
}
