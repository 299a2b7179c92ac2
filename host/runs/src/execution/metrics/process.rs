//! Resource use of the process, under the usual names of Prometheus. A value that the system does not provide has no row.

use std::{fmt, fs, sync::LazyLock, time::SystemTime};

use prometheus_client::registry::Unit;

use super::sheet::{Labels, Sheet};

/// Ticks of a second in `/proc`: `USER_HZ`, which is 100 on every machine that Linux shows it to programs of.
const TICKS: f64 = 100.0;

/// Time of the first reading of the process metrics, which is the start of the host.
static STARTED: LazyLock<f64> =
    LazyLock::new(|| SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64()));

/// Notes when the process has started.
pub(super) fn note_start() {
    LazyLock::force(&STARTED);
}

/// Writes what the process takes.
pub(super) fn write(sheet: &mut Sheet<'_>) -> fmt::Result {
    let row = |value: Option<f64>| value.map(|value| (Labels::new(), value));
    sheet.gauges_of("resident_memory", "Memory of the process", Some(&Unit::Bytes), row(resident()))?;
    sheet.gauges("open_fds", "Open files and sockets of the process", row(open_files()))?;
    sheet.gauges_of("start_time", "When the host started, since 1970", Some(&Unit::Seconds), row(Some(*STARTED)))?;
    sheet.counts_seconds("cpu", "Time that the processors have worked for the process", cpu().unwrap_or_default())
}

fn resident() -> Option<f64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok().map(|kilobytes| kilobytes * 1024.0)
}

fn open_files() -> Option<f64> {
    // The directory that is read is open as well.
    let count = u32::try_from(fs::read_dir("/proc/self/fd").ok()?.count()).ok()?;
    Some(f64::from(count.saturating_sub(1)))
}

fn cpu() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The name of the process is in parentheses and may contain any character.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11).map(str::parse::<f64>);
    let (user, system) = (fields.next()?.ok()?, fields.next()?.ok()?);
    Some((user + system) / TICKS)
}
