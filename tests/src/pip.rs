//! Programs that others wrote, from PyPI: installed once, with everything they need in the versions that a list names.

use std::{
    fs::{self, File, OpenOptions},
    hash::{DefaultHasher, Hash, Hasher},
    io::ErrorKind,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::components::target_dir;

/// The remedy on a machine without Python.
const NO_PYTHON: &str = "these tests run programs from PyPI: install Python 3.11 or newer with `venv` and `pip` (https://python.org; \
     on Debian python3 and python3-venv)";

/// The program folder of an environment with these packages, a requirements file of pip. A missing environment is made
/// below the target directory, by one test at a time; afterwards it needs no network.
///
/// # Panics
/// Without Python, or where a package cannot be installed: these tests are not skipped silently.
#[must_use]
pub fn programs(requirements: &str) -> PathBuf {
    let cache = target_dir().join("pip");
    fs::create_dir_all(&cache).unwrap();
    let mut hash = DefaultHasher::new();
    requirements.hash(&mut hash);
    // Programs of an environment name the place where it was made, so it is made where it stays.
    let dir = cache.join(format!("{:016x}", hash.finish()));
    let lock = OpenOptions::new().create(true).append(true).open(dir.with_extension("lock")).unwrap();
    // Released when the file is closed, also by a crash.
    lock.lock().unwrap();
    // Written last: what was not installed to its end is not there.
    let installed = dir.join("installed.txt");
    if !installed.is_file() {
        let _ = fs::remove_dir_all(&dir);
        install(&dir, requirements);
        fs::write(&installed, requirements).unwrap();
    }
    dir.join("bin")
}

fn install(dir: &Path, requirements: &str) {
    run(Command::new("python3").args(["-m", "venv"]).arg(dir), dir, NO_PYTHON);
    let list = dir.join("requirements.txt");
    fs::write(&list, requirements).unwrap();
    let mut pip = Command::new(dir.join("bin").join("python"));
    // The list is complete, so nothing else is looked for.
    pip.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-input",
        "--disable-pip-version-check",
        "--no-deps",
        "--only-binary=:all:",
    ]);
    run(pip.arg("--requirement").arg(list), dir, "is this machine offline?");
}

fn run(command: &mut Command, dir: &Path, hint: &str) {
    let log = dir.with_extension("log");
    let out = File::create(&log).unwrap();
    command.stdin(Stdio::null()).stderr(out.try_clone().unwrap()).stdout(out);
    let status = match command.status() {
        Ok(status) => status,
        Err(error) if error.kind() == ErrorKind::NotFound => panic!("{NO_PYTHON}"),
        Err(error) => panic!("{} cannot be started: {error}", command.get_program().display()),
    };
    assert!(status.success(), "{command:?} ended with {status}; {hint}\n{}", fs::read_to_string(&log).unwrap_or_default());
}
