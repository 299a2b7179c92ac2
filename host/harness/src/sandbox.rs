//! The sandbox of `bwrap` (bubblewrap): namespaces of the kernel with the paths of a [`Confinement`] and no network.
//!
//! The root of a sandbox is empty and read-only. Each path of the confinement is mounted at its own place, so that the agent has the
//! same names as the host; links on the way to a path are there too. `/proc` shows the processes of the
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
/// The folder of temporary files.
const TEMPORARY: &str = "/tmp";
/// Devices of every sandbox.
const OWN_DEVICES: [&str; 8] = ["null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts"];
/// Bytes of `/tmp` and of `/dev/shm`, each. Temporary files of programs that know `TMPDIR` are on disk.
const MEMORY_FILES: u64 = 256 << 20;
/// Links on the way to one path; the kernel follows 40.
const MAX_LINKS: usize = 40;
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
    let root = Some("/").filter(|root| !confinement.writable.contains(Path::new(root)));
    ["/proc", "/dev"].into_iter().chain(root).flat_map(|place| ["--remount-ro".into(), place.into()])
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
    /// A path of the host, at its own place.
    Path(Mode),
    /// A link, as the host has it at its own place.
    Link { to: PathBuf },
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
            Mount::Path(mode) => {
                // A device works only where its mount may have devices.
                let option = match mode {
                    _ if Path::new(&to).starts_with("/dev") => "--dev-bind-try",
                    Mode::Read => "--ro-bind-try",
                    Mode::Write => "--bind-try",
                };
                all.extend([option.into(), to.clone(), to]);
            }
            Mount::Link { to: end } => all.extend(["--symlink".into(), end.into_os_string(), to]),
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
    ]);
    // The operator may give the folder of the host, alone or with all that is around it.
    if !confinement.writable.iter().any(|root| Path::new(TEMPORARY).starts_with(root)) {
        all.insert(PathBuf::from(TEMPORARY), Mount::Memory);
    }
    let writable = confinement.writable.iter().map(|path| (path, Mode::Write));
    let readable = confinement.readable.iter().map(|path| (path, Mode::Read));
    let mut links = BTreeMap::new();
    for (path, mode) in readable.chain(writable) {
        let is_of_agent = |path: &Path| confinement.writable.iter().any(|root| root != path && path.starts_with(root));
        let on_the_way = links_of(path);
        // A link in a folder of the agent may be the agent's: it is not followed.
        if is_own(path) || is_of_agent(path) || on_the_way.iter().any(|(place, _)| is_of_agent(place)) {
            continue;
        }
        // A path that is not there, or that this user cannot see, is none for the agent either.
        let Ok(real) = path.canonicalize() else { continue };
        links.extend(on_the_way);
        // A path that may be written comes last.
        all.insert(real, Mount::Path(mode));
    }
    for (place, to) in links {
        // A link within a mounted folder is there as it is.
        if !matches!(nearest(&all, &place), Some(Mount::Path(_) | Mount::Proc)) {
            all.insert(place, Mount::Link { to });
        }
    }
    let is_shown = |place: &Path, mount: &Mount| match (mount, place.parent().and_then(|outer| nearest(&all, outer))) {
        (Mount::Path(mode), Some(Mount::Path(outer))) => outer >= mode,
        _ => false,
    };
    all.iter().filter(|(place, mount)| !is_shown(place, mount)).map(|(place, mount)| (place.clone(), mount.clone())).collect()
}

/// The links on the way to a file, each with its own text.
fn links_of(path: &Path) -> Vec<(PathBuf, PathBuf)> {
    let mut found = Vec::new();
    let parts = |path: &Path| path.components().rev().map(|part| part.as_os_str().to_owned()).collect::<Vec<_>>();
    let (mut at, mut ahead) = (PathBuf::from("/"), parts(path));
    while let Some(part) = ahead.pop() {
        if part == ".." {
            at.pop();
            continue;
        }
        // The root begins again.
        let next = at.join(part);
        match fs::read_link(&next) {
            Ok(to) if found.len() < MAX_LINKS => {
                ahead.extend(parts(&to));
                found.push((next, to));
            }
            _ => at = next,
        }
    }
    found
}

/// The innermost mount that has a path.
fn nearest<'a>(all: &'a BTreeMap<PathBuf, Mount>, path: &Path) -> Option<&'a Mount> {
    path.ancestors().find_map(|place| all.get(place))
}

/// True if a sandbox has something of its own under this name: processes, devices without hardware, shared memory.
fn is_own(path: &Path) -> bool {
    let device = path.strip_prefix("/dev").ok();
    path.starts_with("/proc")
        || [Path::new("/dev"), Path::new(SHARED_MEMORY)].contains(&path)
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

    /// The paths of the host and the links of a sandbox.
    fn shown(confinement: &Confinement) -> Vec<(PathBuf, Mount)> {
        mounts(confinement).into_iter().filter(|(_, mount)| matches!(mount, Mount::Path(_) | Mount::Link { .. })).collect()
    }

    #[test]
    fn a_path_is_mounted_once_and_as_freely_as_it_is_allowed() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        for dir in ["a/read", "a/write", "b/below"] {
            fs::create_dir_all(root.join(dir)).unwrap();
        }
        let (a, b) = (root.join("a"), root.join("b"));
        let found = shown(&confinement(
            &[&a, &a.join("read"), &a.join("write"), &b.join("below"), &root.join("missing")],
            &[&a.join("write"), &b],
        ));
        let (read, write) = (Mount::Path(Mode::Read), Mount::Path(Mode::Write));
        assert_eq!(found, [(a.clone(), read), (a.join("write"), write.clone()), (b, write)]);
    }

    #[test]
    fn links_lead_where_they_lead_outside() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let (store, folder, alone) = (root.join("store"), root.join("folder"), root.join("alone"));
        fs::create_dir_all(store.join("deep")).unwrap();
        fs::create_dir_all(&folder).unwrap();
        symlink(&store, folder.join("link")).unwrap();
        symlink("middle", &alone).unwrap();
        symlink(&store, root.join("middle")).unwrap();
        let read = Mount::Path(Mode::Read);
        // A link below a mount is there as it is; one that is not is made. Behind it is the end of it.
        let found = shown(&confinement(&[&folder, &folder.join("link")], &[]));
        assert_eq!(found, [(folder.clone(), read.clone()), (store.clone(), read.clone())]);
        let found = shown(&confinement(&[&alone, &alone.join("deep")], &[]));
        let link = |name: &str, to: &Path| (root.join(name), Mount::Link { to: to.to_path_buf() });
        assert_eq!(found, [link("alone", Path::new("middle")), link("middle", &store), (store.clone(), read)]);
        // One that the agent may have made leads nowhere.
        symlink(folder.join("link"), root.join("through")).unwrap();
        let found = shown(&confinement(&[&folder.join("link"), &root.join("through")], &[&folder]));
        assert_eq!(found, [(folder, Mount::Path(Mode::Write))]);
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
        let all_of_it = mounts(&confinement(&[Path::new("/dev"), Path::new("/usr")], &[Path::new("/")]));
        assert_eq!(all_of_it.keys().collect::<Vec<_>>(), ["/", "/dev", "/dev/shm", "/proc"].map(Path::new));
        let tmp = own.get(Path::new("/tmp"));
        assert_eq!(tmp, Some(&Mount::Path(Mode::Write)), "the operator may give the folder of the host");
    }
}
