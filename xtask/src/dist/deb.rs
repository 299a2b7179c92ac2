//! The Debian package.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::{Distribution, PACKAGE, copy, write};
use crate::process;

/// The package, with the configuration in `/etc`; `None` where dpkg-deb is missing. Neither starts nor enables the service.
pub(super) fn package(distribution: &Distribution<'_>, out: &Path) -> anyhow::Result<Option<PathBuf>> {
    if !process::quietly_succeeds(Command::new("dpkg-deb").arg("--version")) {
        return Ok(None);
    }
    let architecture = architecture(&distribution.target)?;
    let root = out.join("deb");
    distribution.install(&root.join("usr"))?;
    copy(&distribution.file("agent-host.toml"), &root.join("etc/agent-host/agent-host.toml"))?;
    // Debian has the license as `copyright`.
    fs::rename(root.join("usr/share/doc/agent-host/LICENSE"), root.join("usr/share/doc/agent-host/copyright"))?;
    write(&root.join("DEBIAN/conffiles"), "/etc/agent-host/agent-host.toml\n")?;
    write(&root.join("DEBIAN/control"), &control(&distribution.version, architecture))?;
    let file = out.join(format!("{PACKAGE}_{}_{architecture}.deb", distribution.version));
    let mut build = Command::new("dpkg-deb");
    build.env("SOURCE_DATE_EPOCH", &distribution.time).args(["--root-owner-group", "-Zxz", "--build"]);
    process::run(build.arg(&root).arg(&file))?;
    fs::remove_dir_all(&root)?;
    Ok(Some(file))
}

fn architecture(target: &str) -> anyhow::Result<&'static str> {
    let cpu = target.split('-').next().unwrap_or_default();
    Ok(match cpu {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "riscv64gc" => "riscv64",
        _ => anyhow::bail!("no architecture of Debian is known for the target {target}"),
    })
}

/// The fields of the package. The binary needs the C library alone.
fn control(version: &str, architecture: &str) -> String {
    format!(
        "Package: {PACKAGE}\nVersion: {version}\nArchitecture: {architecture}\nMaintainer: The makers of Agent Host <agent-host@localhost>\n\
         Section: net\nPriority: optional\nDepends: libc6, libgcc-s1, ca-certificates\nRecommends: bubblewrap\n\
         Description: host for agent runners\n \
         Runs plugins (WebAssembly components) that answer events, such as chat messages and\n \
         webhooks, with a stream of results, each in a sandbox of its own.\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_have_architectures() {
        assert_eq!(architecture("x86_64-unknown-linux-gnu").unwrap(), "amd64");
        assert_eq!(architecture("aarch64-unknown-linux-musl").unwrap(), "arm64");
        assert!(architecture("wasm32-wasip2").is_err());
    }
}
