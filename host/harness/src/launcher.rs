//! The launcher: a small process between the host and an agent.
//!
//! The launcher starts a copy of itself, in a process group of its own, and waits. The copy bounds and confines itself and becomes the
//! program, so that bounds and confinement hold for whatever the program starts, and not for the launcher: a confined program can
//! neither signal nor trace it. As the subreaper of all of them, the launcher also gets the processes that leave the group, and ends
//! when none is left:
//!
//! - SIGTERM to the launcher: SIGINT to the group, SIGTERM after 2 s, SIGKILL to every process after 5 s. A second SIGTERM: SIGKILL
//!   at once.
//! - The program ended: SIGTERM to what it left behind, SIGKILL after 1 s. Some agents write their session in a process of their own,
//!   which ends after the program.
//! - The host is gone (nobody reads standard error any more): SIGKILL to every process.
//! - The launcher is killed: SIGKILL to the program, by the kernel.
//!
//! In a sandbox ([`Sandbox`]) there is a launcher of its own, as the first process: it has the network of the sandbox forwarded to the
//! proxy, and starts, watches and ends the program in the same way. The launcher outside starts `bwrap`, hands SIGTERM on to the one
//! inside, and kills all of it where that does not help.
//!
//! No shell is involved, and nothing that the host has open is inherited but the three standard streams.

use std::{
    ffi::OsString,
    io,
    os::unix::process::{CommandExt as _, ExitStatusExt},
    path::PathBuf,
    process::{Command, ExitCode, ExitStatus},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    process::{
        Pid, Resource, Rlimit, Signal, WaitOptions, kill_process, kill_process_group, set_child_subreaper,
        set_parent_process_death_signal, setrlimit, wait,
    },
};
use serde::{Deserialize, Serialize};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::oneshot,
    time::{Instant, sleep, sleep_until},
};

use crate::{
    confinement::Confinement,
    forwarder,
    sandbox::{Sandbox, launcher_file},
};

/// Time between SIGINT and SIGTERM.
const TERMINATE_AFTER: Duration = Duration::from_secs(2);
/// Time between SIGINT and SIGKILL.
pub(crate) const KILL_AFTER: Duration = Duration::from_secs(5);
/// Exit code where the program was not started: that of a shell for a command that cannot be executed.
pub(crate) const NOT_STARTED: u8 = 126;
/// Time for what a program left behind to end by itself after SIGTERM.
const LEFT_BEHIND: Duration = Duration::from_secs(1);
/// Pause between two looks for processes that are left.
const PAUSE: Duration = Duration::from_millis(5);
/// Looks for processes that are left in which none has ended: a process in an uninterruptible wait is given up after a second.
const LOOKS: u32 = 200;
/// Time beyond [`KILL_AFTER`] for a launcher in a sandbox, which ends its program by itself.
const SANDBOX_GRACE: Duration = Duration::from_secs(1);
/// The last argument of the copy that becomes the program.
const COPY: &str = "program";
/// The last argument of the copy that becomes `bwrap`.
const SANDBOX: &str = "sandbox";
/// The last argument of the launcher in a sandbox.
const INSIDE: &str = "inside";

/// The order to the launcher, as its one argument in JSON. It has no secrets: those are in the environment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Launch {
    /// The program, found before.
    pub(crate) program: PathBuf,
    /// Arguments of the program.
    pub(crate) args: Vec<String>,
    /// Memory that one process may write to, in bytes.
    pub(crate) max_memory_bytes: u64,
    /// Files that one process may have open.
    pub(crate) max_open_files: u64,
    /// CPU time of one process, in seconds.
    pub(crate) cpu_seconds: u64,
    /// The confinement.
    pub(crate) isolation: Isolation,
}

/// The confinement of a program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Isolation {
    /// None.
    None,
    /// Landlock, which the program has taken on before it begins.
    Landlock(Confinement),
    /// A sandbox.
    Bwrap(Sandbox),
}

/// The process that a launcher waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Watched {
    /// The program.
    Program,
    /// `bwrap`, with another launcher in the sandbox.
    Sandbox,
}

/// Does what the launcher is for, and returns the exit code of the process: that of the program, 128 and the signal that ended it, or
/// 126 where it was not started (the reason is on standard error).
///
/// `args` are the arguments of the process after the name of the command.
#[must_use]
pub fn launch(args: Vec<OsString>) -> ExitCode {
    let role = args.get(1).and_then(|word| word.to_str());
    let outcome = read_order(&args).and_then(|order| match (role, &order.isolation) {
        (Some(COPY), _) => Err(become_program(&order)),
        (Some(SANDBOX), Isolation::Bwrap(sandbox)) => Err(become_sandbox(sandbox)),
        (Some(INSIDE), Isolation::Bwrap(sandbox)) => watch(Watched::Program, Some(sandbox)),
        (None, Isolation::Bwrap(_)) => watch(Watched::Sandbox, None),
        (None, _) => watch(Watched::Program, None),
        (Some(word), _) => Err(format!("the order has no {word}: the host starts this command")),
    });
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(problem) => {
            // The host reads standard error; nobody is there to be told otherwise.
            use io::Write as _;
            let _ = writeln!(io::stderr(), "launcher: {problem}");
            ExitCode::from(NOT_STARTED)
        }
    }
}

fn read_order(args: &[OsString]) -> Result<Launch, String> {
    let order = args.first().and_then(|order| order.to_str()).ok_or("the order is missing: the host starts this command")?;
    serde_json::from_str(order).map_err(|error| format!("the order cannot be read: {error}"))
}

/// Bounds and confines this process, and executes the program in its place. Returns the reason if that fails.
fn become_program(launch: &Launch) -> String {
    let prepared = || {
        set_parent_process_death_signal(Some(Signal::KILL))
            .map_err(|error| format!("the end of the launcher cannot be watched: {error}"))?;
        bound(launch).map_err(|error| format!("the limits cannot be set: {error}"))?;
        match &launch.isolation {
            Isolation::Landlock(confinement) => confinement.take_on(),
            // The sandbox is around this process already.
            Isolation::None | Isolation::Bwrap(_) => Ok(()),
        }
    };
    match prepared() {
        Ok(()) => {
            let error = Command::new(&launch.program).args(&launch.args).exec();
            format!("{} cannot be started: {error}", launch.program.display())
        }
        Err(problem) => problem,
    }
}

/// Executes `bwrap` in the place of this process. Returns the reason if that fails.
fn become_sandbox(sandbox: &Sandbox) -> String {
    let prepared = || {
        set_parent_process_death_signal(Some(Signal::KILL))
            .map_err(|error| format!("the end of the launcher cannot be watched: {error}"))?;
        let dir = std::env::current_dir().map_err(|error| format!("there is no working directory: {error}"))?;
        Ok::<_, String>(sandbox.arguments(&launcher_file()?, &dir, &own_arguments(INSIDE, 1)))
    };
    match prepared() {
        Ok(arguments) => {
            let error = Command::new(&sandbox.bwrap).args(arguments).exec();
            format!("{} cannot be started: {error}", sandbox.bwrap.display())
        }
        Err(problem) => problem,
    }
}

/// The arguments of this process without the last `less`, and `role` as the last.
fn own_arguments(role: &str, less: usize) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    arguments.truncate(arguments.len().saturating_sub(less));
    arguments.push(role.into());
    arguments
}

/// Starts the copy, and waits for its end. `network` is the sandbox that this process is in.
fn watch(watched: Watched, network: Option<&Sandbox>) -> Result<u8, String> {
    set_child_subreaper(Some(rustix::process::getpid())).map_err(|error| format!("children cannot be kept: {error}"))?;
    // The copy is a child of this very thread, whose end is that of the program.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("no runtime can be made: {error}"))?;
    let code = runtime.block_on(supervise(watched, network));
    // The thread that watches standard error may wait for ever.
    runtime.shutdown_background();
    code
}

/// Sets the limits of this process, which its children inherit.
fn bound(launch: &Launch) -> io::Result<()> {
    for (resource, limit) in [
        (Resource::Data, launch.max_memory_bytes),
        (Resource::Nofile, launch.max_open_files),
        (Resource::Cpu, launch.cpu_seconds),
        (Resource::Core, 0),
    ] {
        let maximum = rustix::process::getrlimit(resource).maximum;
        let limit = maximum.map_or(limit, |maximum| limit.min(maximum));
        setrlimit(resource, Rlimit { current: Some(limit), maximum: Some(limit) })?;
    }
    Ok(())
}

async fn supervise(watched: Watched, network: Option<&Sandbox>) -> Result<u8, String> {
    let mut terminate = signal(SignalKind::terminate()).map_err(|error| error.to_string())?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(|error| error.to_string())?;
    if let Some(sandbox) = network {
        let started = forwarder::start(&sandbox.proxy_inside(), sandbox.proxy_port, &sandbox.confinement.ports).await;
        started.map_err(|error| format!("the network of the sandbox cannot be made: {error}"))?;
    }
    let role = match watched {
        Watched::Program => COPY,
        Watched::Sandbox => SANDBOX,
    };
    // The file of this process, even if it was replaced meanwhile. In a sandbox, the last argument says so.
    let mut command = Command::new("/proc/self/exe");
    command.args(own_arguments(role, usize::from(network.is_some()))).process_group(0);
    let mut child =
        tokio::process::Command::from(command).spawn().map_err(|error| format!("no process can be started: {error}"))?;
    let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
    let to_group = |signal: Signal| {
        if let Some(group) = group {
            // A group that is gone needs no signal.
            let _ = kill_process_group(group, signal);
        }
    };
    let mut host_gone = watch_host();
    let mut asked: Option<Instant> = None;
    let mut terminated = false;
    let (ended, is_killed) = loop {
        let next = match asked {
            Some(at) if watched == Watched::Sandbox => at + KILL_AFTER + SANDBOX_GRACE,
            Some(at) if terminated => at + KILL_AFTER,
            Some(at) => at + TERMINATE_AFTER,
            None => Instant::now() + Duration::from_secs(3600),
        };
        tokio::select! {
            ended = child.wait() => break (ended.map_err(|error| error.to_string())?, false),
            _ = &mut host_gone => break (kill(&mut child, group).await?, true),
            _ = async { tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} } } => {
                if asked.is_some() {
                    break (kill(&mut child, group).await?, true);
                }
                asked = Some(Instant::now());
                match watched {
                    Watched::Program => to_group(Signal::INT),
                    // Without a launcher inside there is no program so far.
                    Watched::Sandbox if end_inside(group) => {}
                    Watched::Sandbox => break (kill(&mut child, group).await?, true),
                }
            }
            () = sleep_until(next), if asked.is_some() => {
                if terminated || watched == Watched::Sandbox {
                    break (kill(&mut child, group).await?, true);
                }
                terminated = true;
                to_group(Signal::TERM);
            }
        }
    };
    if !is_killed {
        to_group(Signal::TERM);
        tokio::select! {
            () = sleep(LEFT_BEHIND) => {}
            _ = &mut host_gone => {}
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            () = leftovers_end() => {}
        }
    }
    to_group(Signal::KILL);
    kill_leftovers().await;
    Ok(code(ended))
}

async fn kill(child: &mut tokio::process::Child, group: Option<Pid>) -> Result<ExitStatus, String> {
    if let Some(group) = group {
        // The child is in the group unless it has left it.
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = child.start_kill();
    child.wait().await.map_err(|error| error.to_string())
}

/// Asks the launcher in the sandbox of this `bwrap` to end its program. False if there is none that listens.
fn end_inside(bwrap: Option<Pid>) -> bool {
    let inside = bwrap.map(children_of).unwrap_or_default();
    // The first process of a sandbox gets no signal that it does not listen to.
    inside.into_iter().filter(|process| listens(*process)).any(|process| kill_process(process, Signal::TERM).is_ok())
}

/// True if a process has a function for SIGTERM.
fn listens(process: Pid) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.as_raw_pid())).unwrap_or_default();
    let caught = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigCgt:")?.trim(), 16).ok());
    let bit = Signal::TERM.as_raw().unsigned_abs().saturating_sub(1);
    caught.is_some_and(|caught| caught >> bit & 1 == 1)
}

/// Resolves when nobody reads this process' standard error any more.
fn watch_host() -> oneshot::Receiver<()> {
    let (gone, host_gone) = oneshot::channel();
    std::thread::spawn(move || {
        let stderr = io::stderr();
        let mut watched = [PollFd::new(&stderr, PollFlags::empty())];
        // An error is reported whether it was asked for or not.
        while poll(&mut watched, None).is_err_and(|error| error == rustix::io::Errno::INTR) {}
        let _ = gone.send(());
    });
    host_gone
}

/// Asks the processes that are left to end, and returns when none is left.
async fn leftovers_end() {
    for child in children() {
        let _ = kill_process(child, Signal::TERM);
    }
    while reap().is_some() {
        sleep(PAUSE).await;
    }
}

/// Reaps the children that have ended, and gives their number; `None` if no child is left.
fn reap() -> Option<u32> {
    let mut ended = 0;
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) => ended += 1,
            Ok(None) => return Some(ended),
            Err(_) => return None,
        }
    }
}

/// Kills and reaps every process that is left below this one. As their subreaper, it becomes their parent as soon as their own parent
/// is gone.
async fn kill_leftovers() {
    let mut looks = 0;
    while looks < LOOKS {
        let Some(ended) = reap() else { return };
        // Processes that fork faster than they are found are not given up.
        looks = if ended > 0 { 0 } else { looks + 1 };
        for child in children() {
            let _ = kill_process(child, Signal::KILL);
        }
        sleep(PAUSE).await;
    }
}

/// The children of this process.
fn children() -> Vec<Pid> {
    children_of(rustix::process::getpid())
}

/// The children of a process.
fn children_of(process: Pid) -> Vec<Pid> {
    let own = process.as_raw_pid();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_child = |id: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        // The name of the process may have any characters; the fields after it have none of `)`.
        let parent = stat.rsplit_once(')').and_then(|(_, fields)| fields.split_whitespace().nth(1)?.parse::<i32>().ok());
        parent == Some(own)
    };
    ids.filter(is_child).filter_map(Pid::from_raw).collect()
}

fn code(ended: ExitStatus) -> u8 {
    let code = ended.code().or_else(|| ended.signal().map(|signal| 128 + signal)).unwrap_or(1);
    u8::try_from(code & 0xff).unwrap_or(1)
}
