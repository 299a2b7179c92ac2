//! A PostgreSQL of the tests' own, which they may kill: a new one in a temporary folder, with fsync on, at a free port. It ends with
//! the process of the tests, however that ends.

use std::{
    io::Write,
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::OnceLock,
    time::{Duration, Instant},
};

/// The password of the tests' user, which must not be found anywhere.
pub const PASSWORD: &str = "pass-w0rd-of-tests";
const USER: &str = "agent_host";

/// A server.
pub struct Postgres {
    dir: PathBuf,
    pub port: u16,
    /// A shell that ends the server and removes its folder when its standard input is closed.
    shell: Child,
}

/// The folder of the programs of the newest PostgreSQL.
fn programs() -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten().map(|entry| entry.path());
    let found = versions.map(|path| path.join("bin")).filter(|path| path.join("initdb").is_file()).max();
    // Elsewhere than on Debian the programs are where commands are.
    let on_path = || std::env::split_paths(&std::env::var_os("PATH")?).find(|path| path.join("initdb").is_file());
    found.or_else(on_path).expect("PostgreSQL is missing: `apt-get install postgresql`, or run the tests by `cargo xtask test`")
}

/// A program of PostgreSQL, as its user where the tests run as root, which PostgreSQL refuses.
fn program(name: &str) -> Command {
    let path = programs().join(name);
    let mut command = if rustix::process::geteuid().is_root() {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "--"]).arg(path);
        command
    } else {
        Command::new(path)
    };
    command.current_dir("/").env("PGPASSWORD", PASSWORD).env("LC_ALL", "C");
    command
}

fn done(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A port that nobody listens at.
pub fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

impl Postgres {
    /// A new server.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// A folder for a server.
    fn folder() -> PathBuf {
        let dir = std::env::temp_dir().join(format!("agent-host-postgres-{}-{}", std::process::id(), free_port()));
        std::fs::create_dir(&dir).unwrap();
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o777)).unwrap();
        dir
    }

    /// A new server with these settings, each as `name=value`.
    pub fn start_with(settings: &[&str]) -> Self {
        let dir = Self::folder();
        let password = dir.join("password");
        std::fs::write(&password, PASSWORD).unwrap();
        done(
            program("initdb")
                .args(["--no-sync", "-E", "UTF8", "--locale=C", "-A", "scram-sha-256", "-U", USER])
                .arg(format!("--pwfile={}", password.display()))
                .arg("-D")
                .arg(dir.join("data")),
        );
        Self::serve(dir, settings)
    }

    /// An asynchronous standby of this server, which has what is there now.
    pub fn standby(&self) -> Self {
        let dir = Self::folder();
        let place = ["-h", "127.0.0.1", "-p", &self.port.to_string(), "-U", USER];
        done(program("pg_basebackup").args(place).args(["--no-sync", "-c", "fast", "-R", "-D"]).arg(dir.join("data")));
        Self::serve(dir, &[])
    }

    /// Waits until the standby has what this server has now, and cuts it off from it.
    pub fn cut_off(&self, standby: &Self) {
        let end = self.sql("postgres", "select pg_current_wal_lsn()");
        let began = Instant::now();
        while standby.sql("postgres", &format!("select pg_last_wal_replay_lsn() >= '{end}'")) != "t" {
            assert!(began.elapsed() < Duration::from_secs(60), "the standby does not follow");
            std::thread::sleep(Duration::from_millis(20));
        }
        standby.sql("postgres", "alter system set primary_conninfo = ''");
        standby.sql("postgres", "select pg_reload_conf()");
        while self.sql("postgres", "select count(*) from pg_stat_replication") != "0" {
            assert!(began.elapsed() < Duration::from_secs(60), "the standby is not cut off");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Lets each commit wait for the standby from now on.
    pub fn wait_for(&self, standby: &Self) {
        self.sql("postgres", "alter system set synchronous_standby_names = '*'");
        self.sql("postgres", "select pg_reload_conf()");
        let began = Instant::now();
        while self.sql("postgres", "select count(*) from pg_stat_replication where sync_state = 'sync'") != "1" {
            let log = std::fs::read_to_string(standby.dir.join("log")).unwrap_or_default();
            assert!(began.elapsed() < Duration::from_secs(60), "the standby does not follow: {log}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Makes a standby a server of its own.
    pub fn promote(&self) {
        self.sql("postgres", "select pg_promote(true, 60)");
        // It has the settings of the server before.
        self.sql("postgres", "alter system reset all");
        self.sql("postgres", "select pg_reload_conf()");
    }

    fn serve(dir: PathBuf, settings: &[&str]) -> Self {
        let port = free_port();
        let mut server = program("postgres");
        server.arg("-D").arg(dir.join("data")).args(["-p", &port.to_string(), "-c", "listen_addresses=127.0.0.1"]);
        server.arg("-k").arg(&dir).args(["-c", "fsync=on", "-c", "max_connections=300", "-c", "shared_buffers=32MB"]);
        for setting in settings {
            server.args(["-c", &setting.replace("DIR", &dir.display().to_string())]);
        }
        let shell = Self::shell(&server, &dir);
        let postgres = Self { dir, port, shell };
        postgres.is_ready();
        postgres
    }

    /// Starts the server beside a shell that outlives nobody: its end of input is the end of the tests.
    fn shell(server: &Command, dir: &Path) -> Child {
        let quoted = |text: &std::ffi::OsStr| format!("'{}'", text.to_str().unwrap());
        let words: Vec<_> = std::iter::once(server.get_program()).chain(server.get_args()).map(quoted).collect();
        let (command, dir) = (words.join(" "), dir.display());
        // A killed server leaves processes that end by themselves: the next one waits for them.
        let script = format!(
            "start() {{ {command} >>'{dir}/log' 2>&1 & pid=$!; }}; start; while read what; do wait $pid; n=0; start; sleep 0.2; \
             while ! kill -0 $pid 2>/dev/null && [ $n -lt 50 ]; do n=$((n+1)); sleep 0.2; start; sleep 0.2; done; done; \
             kill -INT $pid; wait $pid; rm -rf '{dir}'"
        );
        let mut shell = Command::new("sh");
        // A group of its own: what ends the tests by a signal to their group leaves the end of the server to the shell.
        shell
            .process_group(0)
            .arg("-c")
            .arg(script)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        shell.spawn().unwrap()
    }

    fn is_ready(&self) {
        let began = Instant::now();
        let ready = || {
            let mut probe = program("pg_isready");
            probe
                .args(["-q", "-U", USER, "-d", "postgres", "-h", "127.0.0.1", "-p", &self.port.to_string()])
                .stdout(Stdio::null());
            TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_ok() && probe.status().is_ok_and(|status| status.success())
        };
        while !ready() {
            let log = std::fs::read_to_string(self.dir.join("log")).unwrap_or_default();
            assert!(began.elapsed() < Duration::from_secs(60), "PostgreSQL does not start: {log}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The process of the server.
    pub fn pid(&self) -> i32 {
        let file = std::fs::read_to_string(self.dir.join("data/postmaster.pid")).unwrap();
        file.lines().next().unwrap().parse().unwrap()
    }

    /// `kill -9`, without a chance to write anything.
    pub fn kill(&self) {
        signal(self.pid(), rustix::process::Signal::KILL);
        while TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_ok() {
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Starts the server again after [`Self::kill`].
    pub fn restart(&mut self) {
        self.shell.stdin.as_mut().unwrap().write_all(b"again\n").unwrap();
        self.is_ready();
    }

    /// A new database of this name.
    pub fn create(&self, database: &str) {
        done(program("createdb").args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-U", USER, database]));
    }

    /// A new database with the present content of another one.
    pub fn clone_database(&self, from: &str, to: &str) {
        self.create(to);
        let place = ["-h", "127.0.0.1", "-p", &self.port.to_string(), "-U", USER];
        let mut dump = program("pg_dump").args(place).arg(from).stdout(Stdio::piped()).spawn().unwrap();
        done(program("psql").args(place).args(["-q", "-v", "ON_ERROR_STOP=1", "-d", to]).stdin(dump.stdout.take().unwrap()));
        assert!(dump.wait().unwrap().success());
    }

    /// The URL of a database, with the password.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://{USER}:{PASSWORD}@127.0.0.1:{}/{database}?sslmode=disable", self.port)
    }

    /// Executes SQL as the superuser; gives what it prints, a line for each row.
    pub fn sql(&self, database: &str, sql: &str) -> String {
        let mut psql = program("psql");
        psql.args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-U", USER, "-d", database, "-Atqc", sql]);
        let output = psql.args(["-v", "ON_ERROR_STOP=1"]).output().unwrap();
        assert!(output.status.success(), "{sql}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }

    /// The folder of the server.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

/// Sends a signal to one process.
pub fn signal(pid: i32, signal: rustix::process::Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// A server that the tests of this process share, each with databases of its own. Nobody kills it.
pub fn shared() -> &'static Postgres {
    static SHARED: OnceLock<Postgres> = OnceLock::new();
    SHARED.get_or_init(Postgres::start)
}
