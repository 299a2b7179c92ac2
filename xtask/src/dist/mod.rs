//! `cargo xtask dist`: what people install.

mod deb;
mod sbom;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::Context;
use clap::Args;

use crate::{guests, process, workspace::Workspace};

/// The package of the binary, and its name.
const PACKAGE: &str = "agent-host";
/// The profile of the binary: small.
const PROFILE: &str = "packaged";
/// Files of the installation, in the workspace.
pub(crate) const FILES: &str = "host/cli/dist";
/// Packages of the example runners that `agent-host init` copies, and the place where it looks for their components.
const RUNNERS: ([&str; 2], &str) = (["local-agent-runner", "echo-runner"], "share/agent-host/runners");
/// Shells, each with the place of its completions.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/agent-host"),
    ("fish", "share/fish/vendor_completions.d/agent-host.fish"),
    ("zsh", "share/zsh/site-functions/_agent-host"),
];
/// Documents that come along, each with its place in the workspace.
const DOCUMENTS: [(&str, &str); 4] =
    [("README.md", "README.md"), ("LICENSE", "LICENSE"), ("CHANGELOG.md", "CHANGELOG.md"), ("SECURITY.md", "SECURITY.md")];

/// Make what people install: a tarball and a Debian package, with a list of their parts (SBOM) and checksums
///
/// The tarball has the binary, completions for shells, manual pages, the example runners that `agent-host init` copies, an example of the configuration and a unit for systemd. The Debian
/// package needs dpkg-deb, and is left out where there is none. A Dockerfile and a compose file are in host/cli/dist.
#[derive(Debug, Args)]
pub(crate) struct Dist {
    /// Build for this target of Rust, which must be installed; without it, for this machine
    #[arg(long, value_name = "TRIPLE", conflicts_with = "binary")]
    target: Option<String>,
    /// Package this binary, and build none
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Take the components of the example runners from this folder, and build none
    #[arg(long, value_name = "DIR")]
    runners: Option<PathBuf>,
    /// Make the tarball and its checksum alone
    #[arg(long)]
    tarball: bool,
    /// Folder of the result [default: dist in the target folder]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// The parts of a distribution.
#[derive(Debug)]
struct Distribution<'a> {
    workspace: &'a Workspace,
    /// The binary, without debug information where `strip` is there.
    binary: PathBuf,
    /// A binary of the same version that runs on this machine, for completions and manual pages.
    runs_here: PathBuf,
    /// The components of the example runners.
    runners: Vec<PathBuf>,
    version: String,
    target: String,
    /// Time of the last commit, in seconds since 1970: the time of all files.
    time: String,
}

impl Dist {
    pub(crate) fn execute(self, workspace: &Workspace) -> anyhow::Result<ExitCode> {
        let host = host_target()?;
        let target = self.target.clone().unwrap_or_else(|| host.clone());
        let built = match &self.binary {
            Some(binary) => binary.canonicalize().with_context(|| format!("{} cannot be found", binary.display()))?,
            None => build(workspace, self.target.as_deref())?,
        };
        let (packages, _) = RUNNERS;
        let runners = match &self.runners {
            Some(dir) => packages.map(|package| dir.join(format!("{}.wasm", package.replace('-', "_")))).to_vec(),
            None => guests::runners_of(workspace, &packages)?,
        };
        let out = self.out.clone().unwrap_or_else(|| workspace.target().join("dist"));
        if out.exists() {
            fs::remove_dir_all(&out).with_context(|| format!("{} cannot be removed", out.display()))?;
        }
        make_dir(&out)?;
        let out = out.canonicalize()?;
        // Another machine's binary does not run here.
        let runs_here = if target == host { built.clone() } else { build(workspace, None)? };
        let binary = out.join(PACKAGE);
        copy(&built, &binary)?;
        if !process::quietly_succeeds(Command::new("strip").arg("--strip-all").arg(&binary)) {
            eprintln!("note: `strip` cannot read the binary, so it keeps its debug information");
        }
        let distribution = Distribution {
            workspace,
            binary: binary.clone(),
            runs_here,
            runners,
            version: workspace.package(PACKAGE)?.version.clone(),
            target,
            time: commit_time(workspace),
        };
        let mut made = vec![distribution.tarball(&out)?];
        if !self.tarball {
            made.push(distribution.sbom(&out)?);
            match deb::package(&distribution, &out)? {
                Some(package) => made.push(package),
                None => eprintln!("note: there is no Debian package: dpkg-deb is missing (package dpkg)"),
            }
        }
        fs::remove_file(&binary)?;
        made.push(checksums(&out, &made)?);
        for file in made {
            println!("{}", workspace.relative(&file).display());
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Distribution<'_> {
    fn name(&self) -> String {
        format!("{PACKAGE}-{}-{}", self.version, self.target)
    }

    /// Puts the files of an installation below `prefix`, such as `/usr`.
    fn install(&self, prefix: &Path) -> anyhow::Result<()> {
        copy(&self.binary, &prefix.join("bin").join(PACKAGE))?;
        for (shell, path) in COMPLETIONS {
            let completions = process::output(Command::new(&self.runs_here).args(["completions", shell]))?;
            write(&prefix.join(path), &completions)?;
        }
        let man = prefix.join("share/man/man1");
        make_dir(&man)?;
        process::run(Command::new(&self.runs_here).arg("man").arg(&man))?;
        let (_, place) = RUNNERS;
        for runner in &self.runners {
            copy(runner, &prefix.join(place).join(runner.file_name().context("a component has a name")?))?;
        }
        let documents = prefix.join("share/doc").join(PACKAGE);
        for (name, path) in DOCUMENTS {
            copy(&self.workspace.root().join(path), &documents.join(name))?;
        }
        copy(&self.file("agent-host.toml"), &documents.join("agent-host.toml"))?;
        copy(&self.file("agent-host.service"), &prefix.join("lib/systemd/system/agent-host.service"))
    }

    /// A file of the installation.
    fn file(&self, name: &str) -> PathBuf {
        self.workspace.root().join(FILES).join(name)
    }

    fn tarball(&self, out: &Path) -> anyhow::Result<PathBuf> {
        let name = self.name();
        let staged = out.join(&name);
        self.install(&staged)?;
        let file = out.join(format!("{name}.tar.gz"));
        // The same bytes for the same files: names in order, one owner, one time.
        let mut tar = Command::new("tar");
        tar.current_dir(out).args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner"]);
        tar.arg(format!("--mtime=@{}", self.time)).arg("--mode=u+rw,go+r-w,a+X").arg("-czf").arg(&file).arg(&name);
        process::run(&mut tar)?;
        fs::remove_dir_all(&staged)?;
        Ok(file)
    }

    fn sbom(&self, out: &Path) -> anyhow::Result<PathBuf> {
        let file = out.join(format!("{}.cdx.json", self.name()));
        write(&file, &sbom::of(self.workspace, PACKAGE, &self.target)?)?;
        Ok(file)
    }
}

/// Builds the binary.
fn build(workspace: &Workspace, target: Option<&str>) -> anyhow::Result<PathBuf> {
    let mut cargo = workspace.cargo(&["build", "--profile", PROFILE, "--locked", "--package", PACKAGE]);
    let mut folder = workspace.target().to_owned();
    if let Some(target) = target {
        cargo.args(["--target", target]);
        folder.push(target);
    }
    process::run(&mut cargo)?;
    Ok(folder.join(PROFILE).join(PACKAGE))
}

/// The target of this machine.
fn host_target() -> anyhow::Result<String> {
    let version = process::output(Command::new("rustc").arg("-vV"))?;
    version.lines().find_map(|line| line.strip_prefix("host: ")).map(str::to_owned).context("rustc does not say its host")
}

/// The time of the last commit, or 0 where there is no repository.
fn commit_time(workspace: &Workspace) -> String {
    let output = Command::new("git").current_dir(workspace.root()).args(["log", "-1", "--format=%ct"]).output();
    let time = output.ok().filter(|output| output.status.success()).and_then(|output| String::from_utf8(output.stdout).ok());
    time.map(|time| time.trim().to_owned()).filter(|time| !time.is_empty()).unwrap_or_else(|| "0".to_owned())
}

/// A file with the checksum of each, as `sha256sum --check` reads it.
fn checksums(out: &Path, files: &[PathBuf]) -> anyhow::Result<PathBuf> {
    let names: Vec<_> = files.iter().filter_map(|file| file.file_name()).collect();
    let sums = process::output(Command::new("sha256sum").current_dir(out).arg("--").args(names))?;
    let file = out.join("SHA256SUMS");
    write(&file, &sums)?;
    Ok(file)
}

fn make_dir(dir: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("{} cannot be made", dir.display()))
}

/// Copies a file with its permissions.
fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    make_dir(to.parent().unwrap_or(to))?;
    fs::copy(from, to).with_context(|| format!("{} cannot be copied to {}", from.display(), to.display()))?;
    Ok(())
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    make_dir(path.parent().unwrap_or(path))?;
    fs::write(path, text).with_context(|| format!("{} cannot be written", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use serde_json::Value;

    use super::*;

    /// A program that answers as the binary does.
    const BINARY: &str = "#!/bin/sh\ncase \"$1\" in\ncompletions) echo \"# for $2\" ;;\nman) echo .TH > \"$2/agent-host.1\" ;;\n\
        *) exit 2 ;;\nesac\n";

    fn packaged(out: &Path) -> PathBuf {
        let binary = out.join("fake");
        fs::write(&binary, BINARY).unwrap();
        fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)).unwrap();
        for runner in ["local_agent_runner.wasm", "echo_runner.wasm"] {
            fs::write(out.join(runner), b"a component").unwrap();
        }
        let dist = Dist {
            target: None,
            binary: Some(binary),
            runners: Some(out.to_owned()),
            tarball: false,
            out: Some(out.join("dist")),
        };
        dist.execute(&Workspace::find().unwrap()).unwrap();
        out.join("dist")
    }

    fn file(dir: &Path, end: &str) -> PathBuf {
        let mut files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        files.find(|path| path.to_str().unwrap().ends_with(end)).unwrap_or_else(|| panic!("there is no {end}"))
    }

    #[test]
    fn a_distribution_has_everything_and_the_same_bytes_each_time() {
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let dist = packaged(first.path());
        let tarball = file(&dist, ".tar.gz");
        let listed = process::output(Command::new("tar").arg("-tf").arg(&tarball)).unwrap();
        let listed: Vec<_> = listed.lines().filter_map(|line| line.split_once('/')).map(|(_, path)| path).collect();
        for path in [
            "bin/agent-host",
            "lib/systemd/system/agent-host.service",
            "share/agent-host/runners/echo_runner.wasm",
            "share/agent-host/runners/local_agent_runner.wasm",
            "share/bash-completion/completions/agent-host",
            "share/doc/agent-host/LICENSE",
            "share/doc/agent-host/agent-host.toml",
            "share/fish/vendor_completions.d/agent-host.fish",
            "share/man/man1/agent-host.1",
            "share/zsh/site-functions/_agent-host",
        ] {
            assert!(listed.contains(&path), "{path} is not in {listed:?}");
        }
        let sbom: Value = serde_json::from_str(&fs::read_to_string(file(&dist, ".cdx.json")).unwrap()).unwrap();
        assert_eq!(sbom["metadata"]["component"]["name"], "agent-host");
        // What is there is what the checksums are of, and nothing else.
        let check = Command::new("sha256sum").current_dir(&dist).args(["--check", "--quiet", "SHA256SUMS"]).status().unwrap();
        assert!(check.success());
        let sums = fs::read_to_string(dist.join("SHA256SUMS")).unwrap();
        assert_eq!(sums.lines().count() + 1, fs::read_dir(&dist).unwrap().count(), "{sums}");
        let again = packaged(second.path());
        assert!(fs::read(&tarball).unwrap() == fs::read(file(&again, ".tar.gz")).unwrap(), "two tarballs of one commit differ");
    }

    #[test]
    fn a_debian_package_keeps_the_configuration_and_starts_nothing() {
        if !process::quietly_succeeds(Command::new("dpkg-deb").arg("--version")) {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let package = file(&packaged(dir.path()), ".deb");
        let info = |what: &str| process::output(Command::new("dpkg-deb").arg(what).arg(&package)).unwrap();
        let listed = info("--contents");
        for path in [
            "./usr/bin/agent-host",
            "./etc/agent-host/agent-host.toml",
            "./usr/lib/systemd/system/agent-host.service",
            "./usr/share/agent-host/runners/echo_runner.wasm",
        ] {
            assert!(listed.lines().any(|line| line.ends_with(path) && line.contains("root/root")), "{path} is not in\n{listed}");
        }
        let control = process::output(Command::new("dpkg-deb").arg("--field").arg(&package)).unwrap();
        assert!(control.contains("Package: agent-host\n") && control.contains("Depends: "), "{control}");
        let conffiles = process::output(Command::new("dpkg-deb").arg("--info").arg(&package).arg("conffiles")).unwrap();
        assert_eq!(conffiles.trim(), "/etc/agent-host/agent-host.toml");
    }
}
