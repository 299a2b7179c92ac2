//! Confinement of processes by the kernel (Landlock): the paths that a process may read and write, and the ports it may connect to.

use std::{
    collections::BTreeSet,
    env,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

/// Folders of the system that programs read and execute.
const SYSTEM: [&str; 9] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix"];
/// Files and folders of the system that programs read: configuration without secrets, and what the kernel says.
const SETTINGS: [&str; 38] = [
    "/etc/alternatives",
    "/etc/bash.bashrc",
    "/etc/ca-certificates",
    "/etc/ca-certificates.conf",
    "/etc/crypto-policies",
    "/etc/debian_version",
    "/etc/default/locale",
    "/etc/environment",
    "/etc/gai.conf",
    "/etc/gitconfig",
    "/etc/group",
    "/etc/host.conf",
    "/etc/hostname",
    "/etc/hosts",
    "/etc/inputrc",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/ld.so.preload",
    "/etc/locale.conf",
    "/etc/localtime",
    "/etc/lsb-release",
    "/etc/machine-id",
    "/etc/magic",
    "/etc/mime.types",
    "/etc/nsswitch.conf",
    "/etc/os-release",
    "/etc/passwd",
    "/etc/pki/tls",
    "/etc/profile",
    "/etc/protocols",
    "/etc/resolv.conf",
    "/etc/services",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/terminfo",
    "/etc/timezone",
    "/proc",
];
/// Devices that programs read and write.
const DEVICES: [&str; 9] =
    ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/ptmx", "/dev/pts", "/dev/shm"];

/// The paths and ports that a process and what it starts may use.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Confinement {
    /// Paths that may be read and executed.
    pub(crate) readable: BTreeSet<PathBuf>,
    /// Paths that may be read, written and executed.
    pub(crate) writable: BTreeSet<PathBuf>,
    /// Ports that TCP connections may go to.
    pub(crate) ports: BTreeSet<u16>,
}

impl Confinement {
    /// The confinement of a program: the system, the program and the folders of `PATH` may be read.
    pub(crate) fn of_program(program: &Path) -> Self {
        let mut readable: BTreeSet<PathBuf> = SYSTEM.iter().chain(&SETTINGS).map(PathBuf::from).collect();
        let search = env::var_os("PATH").unwrap_or_default();
        for dir in env::split_paths(&search).filter(|dir| dir.is_absolute()) {
            // The versions that pyenv, rbenv, asdf and mise choose from are beside their shims.
            readable.extend(dir.parent().filter(|_| dir.ends_with("shims")).map(Path::to_owned));
            readable.insert(dir);
        }
        readable.extend(program_dirs(program));
        Self { readable, writable: DEVICES.iter().map(PathBuf::from).collect(), ports: BTreeSet::new() }
    }

    /// Confines this thread, and what it starts from now on, for ever.
    pub(crate) fn take_on(&self) -> Result<(), String> {
        use landlock::{
            ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, NetPort, Ruleset, RulesetAttr, RulesetCreatedAttr,
            RulesetStatus, Scope, path_beneath_rules,
        };
        // Rights of newer kernels are taken away where the kernel has them.
        let abi = ABI::V6;
        let failed = |error: landlock::RulesetError| format!("the confinement cannot be taken on: {error}");
        let ruleset = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(abi))
            .and_then(|ruleset| ruleset.handle_access(AccessNet::ConnectTcp))
            .and_then(|ruleset| ruleset.scope(Scope::from_all(abi)))
            .and_then(Ruleset::create)
            .map_err(failed)?;
        let ports = self.ports.iter().map(|port| Ok::<_, landlock::RulesetError>(NetPort::new(*port, AccessNet::ConnectTcp)));
        // Paths that do not exist are left out by `path_beneath_rules`.
        let status = ruleset
            .add_rules(path_beneath_rules(&self.readable, AccessFs::from_read(abi)))
            .and_then(|ruleset| ruleset.add_rules(path_beneath_rules(&self.writable, AccessFs::from_all(abi))))
            .and_then(|ruleset| ruleset.add_rules(ports))
            .and_then(landlock::RulesetCreated::restrict_self)
            .map_err(failed)?;
        if status.ruleset == RulesetStatus::NotEnforced {
            return Err("the kernel has no Landlock: set `isolation = \"none\"` to run the agent without confinement".to_owned());
        }
        Ok(())
    }
}

/// True if the kernel can confine processes.
#[must_use]
pub(crate) fn is_available() -> bool {
    std::fs::read_to_string("/sys/kernel/security/lsm").map_or_else(
        // Not every machine shows the list; a thread of its own tries.
        |_| std::thread::spawn(|| Confinement::of_program(Path::new("/")).take_on().is_ok()).join().unwrap_or(false),
        |modules| modules.contains("landlock"),
    )
}

/// The folders that belong to a program: that of its file, and where it is a part of a Node.js or Python package, the whole
/// installation, with the program that its first line names.
fn program_dirs(program: &Path) -> Vec<PathBuf> {
    let mut dirs = Vec::new();
    let Ok(file) = program.canonicalize() else { return dirs };
    dirs.extend(file.parent().map(Path::to_owned));
    // The outermost: packages refer to packages beside them.
    let installation = file.ancestors().filter(|dir| dir.ends_with("node_modules") || dir.ends_with("site-packages")).last();
    dirs.extend(installation.map(Path::to_owned));
    if let Some(environment) = file.parent().and_then(Path::parent).filter(|dir| dir.join("pyvenv.cfg").exists()) {
        dirs.push(environment.to_owned());
    }
    dirs
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_whole_installation_of_a_package_is_readable() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().canonicalize().unwrap();
        let package = dir.join("node_modules/@vendor/agent/dist");
        fs::create_dir_all(&package).unwrap();
        fs::create_dir_all(dir.join("node_modules/.bin")).unwrap();
        fs::write(package.join("index.js"), "#!/usr/bin/env node\n").unwrap();
        std::os::unix::fs::symlink("../@vendor/agent/dist/index.js", dir.join("node_modules/.bin/agent")).unwrap();
        let confinement = Confinement::of_program(&dir.join("node_modules/.bin/agent"));
        assert!(confinement.readable.contains(&dir.join("node_modules")), "{confinement:?}");
        assert!(!confinement.readable.contains(&dir));
    }
}
