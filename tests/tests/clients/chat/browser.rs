//! Headless Chromium, driven by a script of Node.js that plays one scenario.

use std::{
    env,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Mutex, MutexGuard, PoisonError,
        mpsc::{Receiver, channel},
    },
    thread,
    time::Duration,
};

use agent_host_tests::npm;
use serde_json::{Value, json};

const PLAYWRIGHT: &str = "playwright-core@1.65.1";

/// A scenario takes seconds; on a machine that is busy, some times as long.
const PATIENCE: Duration = Duration::from_secs(150);

/// One browser at a time: each needs a few hundred megabytes and a processor.
static ONE: Mutex<()> = Mutex::new(());

/// A page in a browser, and the script that uses it.
pub struct Browser {
    node: Child,
    lines: Receiver<String>,
    output_lines: Vec<String>,
    _one: MutexGuard<'static, ()>,
}

impl Browser {
    /// Begins a scenario on the host at this address.
    pub fn open(scenario: &str, url: &str, more: &Value) -> Self {
        Self::play("chat/chat.mjs", json!({ "scenario": scenario, "url": url, "more": more }))
    }

    /// Begins a script of this folder's parent. It gets `input`, and where Playwright and the browser are.
    pub fn play(script: &str, mut input: Value) -> Self {
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        input["playwright"] = json!(npm::packages("playwright", &[PLAYWRIGHT]));
        input["chromium"] = json!(chromium());
        let mut node = Command::new("node")
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(script))
            .arg(input.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("install Node.js 20 or newer (https://nodejs.org)");
        let (sender, lines) = channel();
        let out = BufReader::new(node.stdout.take().unwrap());
        thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Self { node, lines, output_lines: Vec::new(), _one: one }
    }

    /// Waits until the scenario says so.
    pub fn says(&mut self, word: &str) {
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) if line == word => return,
                Ok(line) => self.output_lines.push(line),
                Err(error) => panic!("the scenario does not come to `{word}` ({error}):\n{}", self.output_lines.join("\n")),
            }
        }
    }

    /// Lets the scenario go on.
    pub fn tell(&mut self, word: &str) {
        writeln!(self.node.stdin.as_mut().unwrap(), "{word}").unwrap();
    }

    /// Waits until the scenario has come to a good end.
    pub fn done(mut self) {
        self.says("done");
        assert!(self.node.wait().unwrap().success(), "{}", self.output_lines.join("\n"));
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The browser ends with the script that started it.
        let _ = self.node.kill();
        let _ = self.node.wait();
    }
}

/// The browser of this machine.
fn chromium() -> PathBuf {
    let path = env::var_os("PATH").unwrap_or_default();
    let names = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
    let mut programs = env::split_paths(&path).flat_map(|dir| names.map(|name| dir.join(name)));
    programs.find(|program| program.is_file()).expect("these tests need a browser: install Chromium, such as Debian's `chromium`")
}
