//! The machine that is measured.

use std::{fs, path::Path};

/// The properties of a machine that figures depend on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Machine {
    /// Processor, cores and memory.
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
    fn fields_are_found_by_their_whole_name() {
        assert_eq!(field("model name2: a\nmodel name\t: Some CPU @ 2:1\n", "model name"), Some("Some CPU @ 2:1"));
        assert!(Machine::here(Path::new(".")).unwrap().hardware.contains("cores"));
    }
}
