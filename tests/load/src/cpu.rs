//! CPU time of a process.

use std::time::Duration;

use anyhow::Context;

/// Linux shows times to programs in hundredths of a second, whatever the kernel counts in (time(7), `USER_HZ`).
const TICK: Duration = Duration::from_millis(10);

/// What the process has taken so far in user and system mode, all threads together (proc(5), `/proc/PID/stat`).
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

#[cfg(test)]
mod tests {
    #[test]
    fn user_and_system_time_are_added() {
        let stat = "7 (a ) b) S 1 2 3 4 5 6 7 8 9 10 123 77 0 0 20 0 5 0 100";
        assert_eq!(super::ticks(stat), Some(200));
        assert_eq!(super::ticks("7 (a) S 1"), None);
        assert!(super::time(std::process::id()).is_ok());
    }
}
