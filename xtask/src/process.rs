//! Running other programs.

use std::process::{Command, Stdio};

use anyhow::Context;

/// A command as it would be typed.
fn display(command: &Command) -> String {
    let program = std::path::Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    std::iter::once(program).chain(command.get_args()).map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Says on standard error what is being done.
pub(crate) fn announce(command: &Command) {
    eprintln!("$ {}", display(command));
}

/// Runs a command to its end, its output where ours goes.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<()> {
    anyhow::ensure!(succeeds(command)?, "`{}` failed", display(command));
    Ok(())
}

/// Runs a command to its end and gives whether it succeeded.
pub(crate) fn succeeds(command: &mut Command) -> anyhow::Result<bool> {
    announce(command);
    // Output of other programs must not mix with the lines that a caller reads from our standard output.
    let status = command.stdout(std::io::stderr()).status();
    Ok(status.with_context(|| format!("`{}` cannot be started", display(command)))?.success())
}

/// True if a command succeeds. The output is discarded.
pub(crate) fn quietly_succeeds(command: &mut Command) -> bool {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// The standard output of a command.
pub(crate) fn output(command: &mut Command) -> anyhow::Result<String> {
    let output =
        command.stderr(Stdio::inherit()).output().with_context(|| format!("`{}` cannot be started", display(command)))?;
    anyhow::ensure!(output.status.success(), "`{}` failed", display(command));
    String::from_utf8(output.stdout).with_context(|| format!("the output of `{}` is not text", display(command)))
}

/// The processes that a process has started and that have not ended, where the system lists them.
pub(crate) fn children(parent: u32) -> Vec<u32> {
    // A process is the child of the thread that started it.
    let threads = std::fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
    threads
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok())
        .flat_map(|ids| ids.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<_>>())
        .collect()
}
