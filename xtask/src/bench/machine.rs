//! The machine that is measured.

use std::{fs, path::Path, thread, time::Duration};

/// What figures depend on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Machine {
    /// Processor, cores and memory. Figures of two of these do not belong into one table.
    pub(crate) hardware: String,
    /// Kernel, and the file system of the ledgers.
    pub(crate) system: String,
}

impl Machine {
    /// This machine, with the file system that `dir` is on.
    pub(crate) fn here(dir: &Path) -> anyhow::Result<Self> {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let cores = std::thread::available_parallelism()?;
        let cpu_info = read("/proc/cpuinfo");
        let processor = field(&cpu_info, "model name").unwrap_or(std::env::consts::ARCH);
        let memory_info = read("/proc/meminfo");
        let memory_kib = field(&memory_info, "MemTotal").and_then(|size| size.strip_suffix(" kB")?.parse::<f64>().ok());
        let gib = memory_kib.unwrap_or_default() / 1024.0 / 1024.0;
        let dir = dir.canonicalize()?;
        let mounts = read("/proc/self/mountinfo");
        let file_system = file_system(&mounts, &dir).unwrap_or("an unknown file system");
        let kernel = read("/proc/sys/kernel/osrelease");
        Ok(Self {
            hardware: format!("{processor}, {cores} cores, {gib:.0} GiB memory"),
            system: format!("Linux {}, {file_system}", kernel.trim()),
        })
    }
}

/// How much of the processors others take at this moment, from 0 to 1.
pub(crate) fn busy() -> anyhow::Result<f64> {
    let before = fs::read_to_string("/proc/stat")?;
    thread::sleep(Duration::from_secs(1));
    Ok(share(&before, &fs::read_to_string("/proc/stat")?).unwrap_or_default())
}

/// The share of time between two looks at `/proc/stat` that was neither idle nor spent on a disk (proc(5)).
fn share(before: &str, after: &str) -> Option<f64> {
    let times = |stat: &str| -> Option<(u64, u64)> {
        let times: Vec<u64> = stat.lines().next()?.split_whitespace().skip(1).map_while(|time| time.parse().ok()).collect();
        Some((times.iter().sum(), times.get(3)? + times.get(4)?))
    };
    let ((all_before, idle_before), (all, idle)) = (times(before)?, times(after)?);
    let (all, idle) = (all.checked_sub(all_before)?, idle.saturating_sub(idle_before));
    (all > 0).then(|| all.saturating_sub(idle) as f64 / all as f64)
}

/// The value of the first `name : value`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().filter_map(|line| line.split_once(':')).find(|(field, _)| field.trim() == name).map(|(_, value)| value.trim())
}

/// The type of the file system that a path is on (proc(5), `/proc/PID/mountinfo`).
fn file_system<'a>(mounts: &'a str, path: &Path) -> Option<&'a str> {
    let mount = |line: &'a str| {
        let (left, right) = line.split_once(" - ")?;
        let point = Path::new(left.split(' ').nth(4)?);
        // The last of two mounts at one place covers the first.
        path.starts_with(point).then(|| (point.components().count(), right.split(' ').next().unwrap_or_default()))
    };
    mounts.lines().filter_map(mount).max_by_key(|(depth, _)| *depth).map(|(_, kind)| kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_system_is_that_of_the_nearest_mount() {
        let mounts = "1 0 254:0 / / rw - ext4 /dev/vda rw\n2 1 0:5 / /srv rw shared:1 - xfs /dev/vdb rw\n3 1 0:6 / /srvother rw - tmpfs x rw\n";
        assert_eq!(file_system(mounts, Path::new("/srv/project")), Some("xfs"));
        assert_eq!(file_system(mounts, Path::new("/home")), Some("ext4"));
        assert_eq!(file_system("", Path::new("/")), None);
    }

    #[test]
    fn what_is_not_idle_is_busy() {
        let before = "cpu  10 0 10 100 0 0 0 0 0 0\ncpu0 1\n";
        assert_eq!(share(before, "cpu  30 0 20 160 10 0 0 0 0 0\n"), Some(0.3));
        assert_eq!(share(before, before), None);
        assert_eq!(share(before, "x"), None);
    }

    #[test]
    fn fields_are_found_by_their_whole_name() {
        assert_eq!(field("model name2: a\nmodel name\t: Some CPU @ 2:1\n", "model name"), Some("Some CPU @ 2:1"));
        assert!(Machine::here(Path::new(".")).unwrap().hardware.contains("cores"));
    }
}
