//! The program `bwrap` of this machine: where it is, in which version, and whether the kernel lets it make sandboxes.

use std::{path::PathBuf, process::Stdio, time::Duration};

use tokio::{process::Command, time::timeout};

use crate::{process::find_program, sandbox::trial};

/// Time for the trial of a sandbox.
const TRIAL: Duration = Duration::from_secs(10);
/// Longest error of a trial that is shown.
const MAX_ERROR: usize = 500;

/// The program `bwrap`, which makes sandboxes on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bubblewrap {
    pub(crate) program: PathBuf,
    /// Version, as the program says it.
    pub(crate) version: String,
}

impl Bubblewrap {
    /// Looks for the program, and has it make a sandbox in which it says its version.
    ///
    /// # Errors
    /// Says what is missing, and the fix.
    pub(crate) async fn find() -> Result<Self, String> {
        Self::named("bwrap").await
    }

    async fn named(name: &str) -> Result<Self, String> {
        let install = "install bubblewrap 0.8 or newer (`apt-get install bubblewrap`), or set another `isolation`";
        let Some(program) = find_program(name) else {
            return Err(format!("there is no program `{name}` for `isolation = \"bwrap\"`: {install}"));
        };
        Self::try_out(program).await
    }

    async fn try_out(program: PathBuf) -> Result<Self, String> {
        let mut command = Command::new(&program);
        command.args(trial(&program, &["--version"])).env_clear().current_dir("/");
        command.stdin(Stdio::null()).kill_on_drop(true);
        let fix = "it needs bubblewrap 0.8 or newer, and a kernel that lets this user make user namespaces \
                   (`sysctl user.max_user_namespaces kernel.unprivileged_userns_clone kernel.apparmor_restrict_unprivileged_userns`; \
                   in a container, its seccomp profile); or set another `isolation`";
        let output = match timeout(TRIAL, command.output()).await {
            Ok(Ok(output)) => output,
            Ok(Err(error)) => return Err(format!("{} cannot be started: {error}", program.display())),
            Err(_) => return Err(format!("{} makes no sandbox within {} s: {fix}", program.display(), TRIAL.as_secs())),
        };
        if !output.status.success() {
            let error = String::from_utf8_lossy(&output.stderr);
            let error = error.trim();
            let error = error.get(..error.floor_char_boundary(MAX_ERROR)).unwrap_or(error);
            return Err(format!("{} makes no sandbox on this machine ({error}): {fix}", program.display()));
        }
        let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        Ok(Self { program, version })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_program_that_makes_no_sandbox_is_named_with_its_reason() {
        let problem = Bubblewrap::try_out(find_program("false").unwrap()).await.unwrap_err();
        assert!(problem.contains("false makes no sandbox") && problem.contains("user namespaces"), "{problem}");
        let problem = Bubblewrap::named("no-such-program").await.unwrap_err();
        assert!(problem.contains("`no-such-program`") && problem.contains("apt-get install bubblewrap"), "{problem}");
        let found = Bubblewrap::find().await.unwrap();
        assert!(found.version.starts_with("bubblewrap "), "{found:?}");
    }
}
