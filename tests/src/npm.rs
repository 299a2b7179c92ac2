//! Programs from npm: installed once, servers started on free ports, ended with the test.

use std::{
    fs::{self, File, OpenOptions},
    hash::{DefaultHasher, Hash, Hasher},
    io::ErrorKind,
    net::{Ipv4Addr, TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use tempfile::TempDir;

use crate::{components::target_dir, world::PATIENCE};

/// A slow network has so long.
const INSTALLING: Duration = Duration::from_secs(300);

/// The remedy on a machine without Node.js.
const NO_NODE: &str = "these tests run programs from npm: install Node.js 20 or newer (https://nodejs.org), with npm on the PATH";

/// The program `bin` of a package in this version. A missing one is installed below the target directory, by one test at a
/// time; an incomplete installation does not count.
///
/// # Panics
/// Without Node.js, or where the package cannot be installed: these tests are not skipped silently.
#[must_use]
pub fn program(package: &str, version: &str, bin: &str) -> PathBuf {
    let name = format!("{}-{version}", package.trim_start_matches('@').replace('/', "-"));
    let program = installed(&name, &[&format!("{package}@{version}")]).join(".bin").join(bin);
    assert!(program.exists(), "{package} {version} has no program {bin}: {}", program.display());
    program
}

/// The `node_modules` of an installation with these packages, each with its version, such as `rxjs@7.8.1`. Packages in other
/// versions have an installation of their own under another `name`.
///
/// # Panics
/// As [`program`].
#[must_use]
pub fn packages(name: &str, packages: &[&str]) -> PathBuf {
    let mut hash = DefaultHasher::new();
    packages.hash(&mut hash);
    installed(&format!("{name}-{:016x}", hash.finish()), packages)
}

fn installed(name: &str, packages: &[&str]) -> PathBuf {
    let cache = target_dir().join("npm");
    fs::create_dir_all(&cache).unwrap();
    let lock = OpenOptions::new().create(true).append(true).open(cache.join(format!("{name}.lock"))).unwrap();
    // Released when the file is closed, also by a crash.
    lock.lock().unwrap();
    let installed = cache.join(name);
    if !installed.is_dir() {
        let fresh = tempfile::Builder::new().prefix("installing-").tempdir_in(&cache).unwrap();
        install(&fresh, packages);
        fs::rename(fresh.keep(), &installed).unwrap();
    }
    installed.join("node_modules")
}

fn install(dir: &TempDir, packages: &[&str]) {
    let what = packages.join(" ");
    let log = dir.path().join("install.log");
    let out = File::create(&log).unwrap();
    let mut npm = Command::new("npm");
    npm.args(["install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix"]).arg(dir.path()).args(packages);
    npm.stdin(Stdio::null()).stderr(out.try_clone().unwrap()).stdout(out);
    let mut npm = Running(spawn(&mut npm));
    let began = Instant::now();
    let log_text = || fs::read_to_string(&log).unwrap_or_default();
    loop {
        match npm.0.try_wait().unwrap() {
            Some(status) if status.success() => return,
            Some(status) => panic!("npm could not install {what} ({status}): is this machine offline?\n{}", log_text()),
            None => assert!(began.elapsed() < INSTALLING, "npm does not come to an end with {what}:\n{}", log_text()),
        }
        sleep(Duration::from_millis(50));
    }
}

fn spawn(command: &mut Command) -> Child {
    match command.spawn() {
        Ok(child) => child,
        Err(error) if error.kind() == ErrorKind::NotFound => panic!("{NO_NODE}"),
        Err(error) => panic!("{} cannot be started: {error}", command.get_program().display()),
    }
}

/// A process that ends with its owner.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server of Node.js on a port of 127.0.0.1, killed when dropped.
pub struct NodeServer {
    running: Running,
    /// Port of the server.
    pub port: u16,
    dir: TempDir,
}

impl NodeServer {
    /// Starts what `tell` makes of a command that runs `node`, and waits until it listens on the port that `tell` was
    /// given. `files` are put into its working directory first.
    ///
    /// # Panics
    /// When it does not listen in time, with what it said.
    #[must_use]
    pub fn start(files: &[(&str, String)], tell: impl FnOnce(&mut Command, u16)) -> Self {
        Self::start_on(free_port(), files, tell)
    }

    /// Likewise, on a port that was chosen before.
    ///
    /// # Panics
    /// As [`NodeServer::start`].
    #[must_use]
    pub fn start_on(port: u16, files: &[(&str, String)], tell: impl FnOnce(&mut Command, u16)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(dir.path().join(name), text).unwrap();
        }
        let out = File::create(dir.path().join("server.log")).unwrap();
        let mut node = Command::new("node");
        tell(&mut node, port);
        node.current_dir(dir.path()).stdin(Stdio::null()).stderr(out.try_clone().unwrap()).stdout(out);
        let mut server = Self { running: Running(spawn(&mut node)), port, dir };
        let began = Instant::now();
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            if let Some(status) = server.running.0.try_wait().unwrap() {
                panic!("the server ended with {status}:\n{}", server.log());
            }
            assert!(began.elapsed() < PATIENCE, "the server does not listen:\n{}", server.log());
            sleep(Duration::from_millis(20));
        }
        server
    }

    /// An address on it.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// The log of the server.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("server.log")).unwrap_or_default()
    }
}

/// A port that nobody listens on now.
fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}
