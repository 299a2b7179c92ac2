//! Compiling in a process of its own: a component can ask a compiler for any amount of time and memory, and a thread cannot be
//! stopped in the middle of it. The process has bounds on both, little priority, and ends at its deadline.

use std::{
    ffi::OsString,
    io::{self, Read, Write},
    path::Path,
    process::{ExitCode, ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use agent_host_protocol::{Limits, RefusalCode};
use rustix::process::{Resource, Rlimit, getrlimit, setpriority_process, setrlimit};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    process::Command,
};
use wasmtime::Engine;

use crate::{engine, imports::ImportRefusal};

/// The first argument of a process that compiles.
pub const COMPILER: &str = "compile-component";

/// Nice value of the process: who is served goes first.
const NICE: i32 = 5;
/// The process may wait so many times as long for a core as it may compute.
const PATIENCE: u64 = 10;
/// The reason of a failure that is read from the process. A message of the compiler is a line or two.
const MAX_REASON: u64 = 8 * 1024;
/// Exit code of a component that is not valid.
const INVALID: u8 = 3;
/// Exit code where memory that was asked for was refused.
const OUT_OF_MEMORY: u8 = 4;

/// Compiles the component on standard input to standard output. `args` are the arguments of the process after [`COMPILER`]: the
/// limits of the host, as JSON.
#[must_use]
pub fn compile(args: &[OsString]) -> ExitCode {
    let failed = |code: u8, reason: &dyn std::fmt::Display| {
        // The host reads standard error; nobody is there to be told otherwise.
        let _ = writeln!(io::stderr(), "{reason}");
        ExitCode::from(code)
    };
    let prepared = || {
        let limits = args.first().and_then(|limits| limits.to_str()).ok_or("the host starts this command")?;
        let limits: Limits = serde_json::from_str(limits).map_err(|error| format!("limits cannot be read: {error}"))?;
        bound(&limits).map_err(|error| format!("limits cannot be set: {error}"))?;
        Ok::<_, String>(limits)
    };
    let limits = match prepared() {
        Ok(limits) => limits,
        Err(reason) => return failed(1, &reason),
    };
    let mut bytes = Vec::new();
    if let Err(error) = io::stdin().take(limits.component_bytes).read_to_end(&mut bytes) {
        return failed(if error.kind() == io::ErrorKind::OutOfMemory { OUT_OF_MEMORY } else { 1 }, &error);
    }
    let code = Engine::new(&engine::without_pool(&limits)).and_then(|engine| engine.precompile_component(&bytes));
    match code {
        Ok(code) => match io::stdout().write_all(&code) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => failed(1, &error),
        },
        Err(error) => {
            let refused = error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::OutOfMemory);
            failed(if refused { OUT_OF_MEMORY } else { INVALID }, &format!("{error:#}"))
        }
    }
}

/// Sets the bounds of this process.
fn bound(limits: &Limits) -> io::Result<()> {
    setpriority_process(None, NICE)?;
    for (resource, limit) in
        [(Resource::As, limits.compile_memory_bytes), (Resource::Cpu, limits.compile_ms.div_ceil(1_000)), (Resource::Core, 0)]
    {
        let maximum = getrlimit(resource).maximum;
        let limit = maximum.map_or(limit, |maximum| limit.min(maximum));
        setrlimit(resource, Rlimit { current: Some(limit), maximum })?;
    }
    Ok(())
}

/// Compiles a component by a process of `program`, and gives the code.
pub(crate) async fn compile_apart(program: &Path, limits: &Limits, bytes: Arc<Vec<u8>>) -> Result<Vec<u8>, ImportRefusal> {
    let host_failed = |error: &dyn std::fmt::Display| {
        (
            RefusalCode::CompileFailed,
            format!("the compiler could not be started: {error}"),
            "check that the host may start processes, and copy the file again".to_owned(),
        )
    };
    let order = serde_json::to_string(limits).map_err(|error| host_failed(&error))?;
    let mut compiler = Command::new(program)
        .arg(COMPILER)
        .arg(order)
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| host_failed(&error))?;
    let (Some(mut stdin), Some(stdout), Some(stderr)) = (compiler.stdin.take(), compiler.stdout.take(), compiler.stderr.take())
    else {
        return Err(host_failed(&"it has no pipes"));
    };
    let (mut code, mut reason) = (Vec::new(), String::new());
    let compiling = async {
        let gives = async {
            // A compiler that has found a fault reads no further, and says why.
            let _ = stdin.write_all(&bytes).await;
            drop(stdin);
            Ok(())
        };
        let mut stderr = stderr.take(MAX_REASON);
        let mut stdout = stdout.take(limits.compile_memory_bytes);
        tokio::try_join!(gives, stdout.read_to_end(&mut code), stderr.read_to_string(&mut reason))?;
        compiler.wait().await
    };
    let wait = Duration::from_millis(limits.compile_ms.saturating_mul(PATIENCE)).max(Duration::from_secs(1));
    match tokio::time::timeout(wait, compiling).await {
        Ok(Ok(status)) if status.success() => Ok(code),
        Ok(Ok(status)) => Err(refusal(status, reason.trim(), limits)),
        Ok(Err(error)) => Err(host_failed(&error)),
        Err(_) => Err((
            RefusalCode::CompileFailed,
            format!("compiling has not ended within {wait:?}; the machine may be busy"),
            "copy the file again".to_owned(),
        )),
    }
}

/// The refusal of a component whose compiler has failed.
fn refusal(status: ExitStatus, reason: &str, limits: &Limits) -> ImportRefusal {
    use std::os::unix::process::ExitStatusExt;

    use rustix::process::Signal;
    if status.code() == Some(i32::from(INVALID)) {
        return invalid(reason);
    }
    match (status.signal().and_then(Signal::from_named_raw), status.code()) {
        (Some(Signal::XCPU), _) => too_long(limits),
        // An allocation that fails ends a process so, and a stack that cannot grow.
        (Some(Signal::ABORT | Signal::SEGV | Signal::BUS), _) => out_of_memory(limits),
        (None, Some(code)) if code == i32::from(OUT_OF_MEMORY) => out_of_memory(limits),
        _ => (
            RefusalCode::CompileFailed,
            format!("the compiler has ended with {status}: {reason}"),
            "copy the file again; if that does not help, report this file to the makers of the host".to_owned(),
        ),
    }
}

fn out_of_memory(limits: &Limits) -> ImportRefusal {
    (
        RefusalCode::CompileMemory,
        format!("compiling needs more than {} bytes of memory", limits.compile_memory_bytes),
        "make the component smaller, or raise `limits.compile_memory_bytes`".to_owned(),
    )
}

pub(crate) fn too_long(limits: &Limits) -> ImportRefusal {
    (
        RefusalCode::CompileTimeout,
        format!("compiling took longer than {} ms", limits.compile_ms),
        "make the component smaller, or raise `limits.compile_ms`".to_owned(),
    )
}

pub(crate) fn invalid(reason: &str) -> ImportRefusal {
    (
        RefusalCode::Invalid,
        format!("the component is not valid here: {reason}"),
        "build it without the WebAssembly features that the message names: the host has none of threads, GC, exceptions, \
         memory64 and component-model async"
            .to_owned(),
    )
}
