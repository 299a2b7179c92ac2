//! The sandbox of `bwrap` (bubblewrap): namespaces of the kernel with the paths of a [`Confinement`] and no network.
//!
//! The root of a sandbox is empty and read-only. Each path of the confinement is mounted at its own place, so that the agent has the
//! same names as the host; links lead where they lead outside, as far as their ends are mounted. `/proc` shows the processes of the
//! sandbox alone and is read-only, `/tmp` and `/dev/shm` are in memory and bounded. In [`OWN`] are the launcher and the socket of the proxy.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::confinement::Confinement;

/// The folder of the host's own files in a sandbox, where nothing of the machine is.
const OWN: &str = "/dev/agent-host";
/// The folder of shared memory.
const SHARED_MEMORY: &str = "/dev/shm";
/// Devices of every sandbox.
const OWN_DEVICES: [&str; 8] = ["null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts"];
/// Bytes of `/tmp` and of `/dev/shm`, each. Temporary files of programs that know `TMPDIR` are on disk.
const MEMORY_FILES: u64 = 256 << 20;
/// Namespaces and rights: processes, users, network and hosts of a sandbox are its own; it has no capabilities, no terminal of the
/// host, and ends with the process that has started it.
const NAMESPACES: [&str; 11] = [
    "--unshare-user",
    "--unshare-net",
    "--unshare-pid",
    "--unshare-ipc",
    "--unshare-uts",
    "--unshare-cgroup-try",
    "--cap-drop",
    "ALL",
    "--new-session",
    "--die-with-parent",
    "--as-pid-1",
];
/// The beginning of what `bwrap` writes when it cannot make a sandbox.
pub(crate) const COMPLAINT: &str = "bwrap: ";

/// The sandbox of a process, as a part of the order to the launcher.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Sandbox {
    /// The program `bwrap`, found before.
    pub(crate) bwrap: PathBuf,
    /// Files that may be read and written. The ports are those of this machine.
    pub(crate) confinement: Confinement,
    /// The socket of the proxy, outside.
    pub(crate) proxy: PathBuf,
    /// The port of the proxy, inside.
    pub(crate) proxy_port: u16,
}

impl Sandbox {
    /// The arguments of `bwrap` by which `launcher` becomes the first process of the sandbox, in the folder `dir`.
    pub(crate) fn arguments(&self, launcher: &Path, dir: &Path, arguments: &[OsString]) -> Vec<OsString> {
        let mut all = frame(&self.confinement);
        for (from, to) in [(launcher, own("launcher")), (&*self.proxy, self.proxy_inside())] {
            all.extend(["--ro-bind".into(), from.into(), to.into()]);
        }
        all.extend(closed(&self.confinement));
        all.extend(["--chdir".into(), dir.into(), "--".into(), own("launcher").into()]);
        all.extend_from_slice(arguments);
        all
    }

    /// The socket of the proxy, inside.
    pub(crate) fn proxy_inside(&self) -> PathBuf {
        own("proxy")
    }
}

fn own(name: &str) -> PathBuf {
    Path::new(OWN).join(name)
}

/// The arguments that close the folders in which mounts were made; the mounts stay as they are. `/proc` has settings of the whole
/// machine, which a user 0 without any capability could write.
fn closed(confinement: &Confinement) -> impl Iterator<Item = OsString> {
    let places = ["/proc", "/dev", "/"].into_iter().filter(|place| !confinement.writable.contains(Path::new(place)));
    places.flat_map(|place| ["--remount-ro".into(), place.into()])
}

/// The arguments of `bwrap` by which a program is executed in a sandbox of its own, to see whether one can be made.
pub(crate) fn trial(program: &Path, arguments: &[&str]) -> Vec<OsString> {
    let confinement = Confinement::of_program(program);
    let mut all = frame(&confinement);
    all.extend(closed(&confinement));
    all.extend(["--chdir".into(), "/".into(), "--".into(), program.into()]);
    all.extend(arguments.iter().map(OsString::from));
    all
}

/// A mount of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Mount {
    /// A path of the host.
    Path { from: PathBuf, mode: Mode },
    /// Processes of the sandbox.
    Proc,
    /// Devices without hardware.
    Dev,
    /// An empty folder in memory.
    Memory,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Mode {
    Read,
    Write,
}

/// The arguments of namespaces and mounts, before the root becomes read-only.
fn frame(confinement: &Confinement) -> Vec<OsString> {
    let mut all: Vec<OsString> = NAMESPACES.map(OsString::from).to_vec();
    for (to, mount) in mounts(confinement) {
        let to = to.into_os_string();
        match mount {
            Mount::Path { from, mode } => {
                // A device works only where its mount may have devices.
                let option = match mode {
                    _ if Path::new(&to).starts_with("/dev") => "--dev-bind-try",
                    Mode::Read => "--ro-bind-try",
                    Mode::Write => "--bind-try",
                };
                all.extend([option.into(), from.into_os_string(), to]);
            }
            Mount::Proc => all.extend(["--proc".into(), to]),
            Mount::Dev => all.extend(["--dev".into(), to]),
            Mount::Memory => all.extend(["--size".into(), MEMORY_FILES.to_string().into(), "--tmpfs".into(), to]),
        }
    }
    all
}

/// The mounts of a sandbox by their place, outer ones first. A path that an outer mount shows in the same way has none of its own.
fn mounts(confinement: &Confinement) -> BTreeMap<PathBuf, Mount> {
    let mut all = BTreeMap::from([
        (PathBuf::from("/dev"), Mount::Dev),
        (PathBuf::from(SHARED_MEMORY), Mount::Memory),
        (PathBuf::from("/proc"), Mount::Proc),
        (PathBuf::from("/tmp"), Mount::Memory),
    ]);
    let writable = confinement.writable.iter().map(|path| (path, Mode::Write));
    let readable = confinement.readable.iter().map(|path| (path, Mode::Read));
    let mut links = Vec::new();
    for (path, mode) in readable.chain(writable) {
        // A link in a folder of the agent may be the agent's: it is not followed.
        let is_below = |root: &PathBuf| root != path && path.starts_with(root);
        if is_own(path) || confinement.writable.iter().any(is_below) {
            continue;
        }
        // A path that is not there, or that this user cannot see, is none for the agent either.
        let Ok(real) = path.canonicalize() else { continue };
        // What may be written comes last.
        all.insert(real.clone(), Mount::Path { from: real.clone(), mode });
        if real != *path {
            links.push((path.clone(), real, mode));
        }
    }
    for (path, from, mode) in links {
        // A link within a mounted folder is there as it is, and its end is mounted.
        if !matches!(path.ancestors().find_map(|place| all.get(place)), Some(Mount::Path { .. } | Mount::Proc)) {
            all.insert(path, Mount::Path { from, mode });
        }
    }
    let is_shown = |place: &Path, mount: &Mount| {
        let outer = place.ancestors().skip(1).find_map(|outer| Some((outer, all.get(outer)?)));
        match (mount, outer) {
            (Mount::Path { from, mode }, Some((at, Mount::Path { from: outer, mode: of_outer }))) => {
                from == place && outer == at && of_outer >= mode
            }
            _ => false,
        }
    };
    all.iter().filter(|(place, mount)| !is_shown(place, mount)).map(|(place, mount)| (place.clone(), mount.clone())).collect()
}

/// True if a sandbox has something of its own under this name: processes, devices without hardware, shared memory.
fn is_own(path: &Path) -> bool {
    let device = path.strip_prefix("/dev").ok();
    path.starts_with("/proc")
        || path == Path::new(SHARED_MEMORY)
        || device.is_some_and(|device| OWN_DEVICES.iter().any(|name| device == Path::new(name)))
}

/// The file of this very program.
///
/// # Errors
/// Says so where the file was replaced since the start.
pub(crate) fn launcher_file() -> Result<PathBuf, String> {
    let file = std::env::current_exe().map_err(|error| format!("the file of the launcher cannot be found: {error}"))?;
    if fs::metadata(&file).is_ok() {
        return Ok(file);
    }
    Err(format!("the file of the launcher, {}, was replaced or removed: start the host again", file.display()))
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, os::unix::fs::symlink};

    use super::*;

    fn confinement(readable: &[&Path], writable: &[&Path]) -> Confinement {
        let set = |paths: &[&Path]| paths.iter().map(|path| path.to_path_buf()).collect();
        Confinement { readable: set(readable), writable: set(writable), ports: BTreeSet::new() }
    }

    /// The paths of the host that are mounted, with their places.
    fn paths(confinement: &Confinement) -> Vec<(PathBuf, PathBuf, Mode)> {
        let of_host = |(to, mount)| match mount {
            Mount::Path { from, mode } => Some((to, from, mode)),
            Mount::Proc | Mount::Dev | Mount::Memory => None,
        };
        mounts(confinement).into_iter().filter_map(of_host).collect()
    }

    #[test]
    fn a_path_is_mounted_once_and_as_freely_as_it_is_allowed() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        for dir in ["a/read", "a/write", "b/below"] {
            fs::create_dir_all(root.join(dir)).unwrap();
        }
        let (a, b) = (root.join("a"), root.join("b"));
        let found = paths(&confinement(
            &[&a, &a.join("read"), &a.join("write"), &b.join("below"), &root.join("missing")],
            &[&a.join("write"), &b],
        ));
        let same = |path: &Path, mode| (path.to_path_buf(), path.to_path_buf(), mode);
        assert_eq!(found, [same(&a, Mode::Read), same(&a.join("write"), Mode::Write), same(&b, Mode::Write)]);
    }

    #[test]
    fn links_lead_where_they_lead_outside() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let (store, shown) = (root.join("store"), root.join("shown"));
        fs::create_dir_all(&store).unwrap();
        fs::create_dir_all(&shown).unwrap();
        symlink(&store, shown.join("link")).unwrap();
        symlink(&store, root.join("alone")).unwrap();
        // A link below a mount is there already; one that is not has a mount with the files of its end.
        let found = paths(&confinement(&[&shown, &shown.join("link")], &[]));
        assert_eq!(found.iter().map(|(to, ..)| to).collect::<Vec<_>>(), [&shown, &store]);
        // One that the agent may have made leads nowhere.
        let found = paths(&confinement(&[&shown.join("link")], &[&shown]));
        assert_eq!(found.iter().map(|(to, ..)| to).collect::<Vec<_>>(), [&shown]);
        let found = paths(&confinement(&[&root.join("alone")], &[]));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found.iter().all(|(to, from, _)| *from == store && (*to == store || *to == root.join("alone"))));
    }

    #[test]
    fn devices_processes_and_memory_are_those_of_the_sandbox() {
        let all = mounts(&Confinement::of_program(Path::new("/bin/sh")));
        for (place, mount) in [("/dev", Mount::Dev), ("/dev/shm", Mount::Memory), ("/proc", Mount::Proc), ("/tmp", Mount::Memory)]
        {
            assert_eq!(all.get(Path::new(place)), Some(&mount), "{place}");
        }
        let devices: Vec<_> = all.keys().filter(|path| path.starts_with("/dev")).collect();
        assert_eq!(devices, [Path::new("/dev"), Path::new("/dev/shm")], "{all:?}");
        let own = mounts(&confinement(&[], &[Path::new("/tmp")]));
        let is_of_host = |mount: Option<&Mount>| matches!(mount, Some(Mount::Path { mode: Mode::Write, .. }));
        assert!(is_of_host(own.get(Path::new("/tmp"))), "the operator may give the folder of the host: {own:?}");
    }
}
