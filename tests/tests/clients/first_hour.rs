//! The first hour: an installation unpacked in an empty home, a first configuration, an answer on the chat page, and a runner of
//! one's own that is made as guest-sdk/README.md says.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Instant,
};

use agent_host_tests::{
    component,
    components::target_dir,
    process::{self, Served},
    world::PATIENCE,
};
use serde_json::json;
use tempfile::TempDir;

use crate::chat::browser::Browser;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// A machine with the tarball of `cargo xtask dist`, and nothing else of the project.
struct Home {
    dir: TempDir,
    /// The folder of the program.
    bin: PathBuf,
}

impl Home {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (dist, components) = (dir.path().join("dist"), component("echo").parent().unwrap().to_owned());
        let mut xtask = Command::new(env!("CARGO"));
        xtask.current_dir(ROOT).args(["xtask", "dist", "--tarball", "--binary"]).arg(process::binary());
        let made = xtask.arg("--runners").arg(components).arg("--out").arg(&dist).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        let tarball = fs::read_dir(&dist)
            .unwrap()
            .map(|file| file.unwrap().path())
            .find(|file| file.extension().is_some_and(|end| end == "gz"));
        let home = dir.path().join("home");
        fs::create_dir(&home).unwrap();
        let tar = Command::new("tar").current_dir(&home).arg("-xf").arg(tarball.unwrap()).status().unwrap();
        assert!(tar.success());
        let prefix = fs::read_dir(&home).unwrap().next().unwrap().unwrap().path();
        Self { bin: prefix.join("bin"), dir }
    }

    /// `agent-host` in the home, with its environment alone.
    fn agent_host(&self) -> Command {
        let home = self.dir.path().join("home");
        let mut command = Command::new(self.bin.join("agent-host"));
        command.current_dir(&home).env_clear().env("HOME", home).env("PATH", format!("{}:/usr/bin:/bin", self.bin.display()));
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.agent_host().args(arguments).output().unwrap()
    }
}

/// The first block of this language after a heading of guest-sdk/README.md.
fn block<'a>(page: &'a str, heading: &str, language: &str) -> &'a str {
    let begin = format!("```{language}\n");
    let text = page.split_once(heading).and_then(|(_, text)| text.split_once(&begin)).map(|(_, text)| text);
    text.and_then(|text| text.split_once("```")).unwrap_or_else(|| panic!("no {language} after {heading}")).0
}

/// The component of the page, built with the SDK of this checkout.
fn greeter(dir: &Path) -> PathBuf {
    let page = fs::read_to_string(format!("{ROOT}/guest-sdk/README.md")).unwrap();
    let path = "path = \"../agent-host/guest-sdk/rust\"";
    let manifest = block(&page, "## 1. A crate", "toml");
    assert!(manifest.contains(path), "{manifest}");
    fs::create_dir_all(dir.join("src")).unwrap();
    fs::write(dir.join("Cargo.toml"), manifest.replace(path, &format!("path = {}", json!(format!("{ROOT}/guest-sdk/rust")))))
        .unwrap();
    fs::write(dir.join("src/lib.rs"), block(&page, "## 2. A page of code", "rust")).unwrap();
    // The versions that are on this machine already.
    fs::copy(format!("{ROOT}/Cargo.lock"), dir.join("Cargo.lock")).unwrap();
    // As the page says; its output is kept for the next time.
    let target = target_dir().join("first-hour");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(dir).args(["build", "--target", "wasm32-wasip2", "--release"]).env("CARGO_TARGET_DIR", &target);
    // `cargo test` sets what is of its own package.
    for (name, _) in env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("CARGO_PKG_")) {
        cargo.env_remove(name);
    }
    let built = cargo.output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    target.join("wasm32-wasip2/release/greeter.wasm")
}

#[test]
fn an_installation_in_an_empty_home_answers_and_takes_a_runner_of_ones_own() {
    let home = Home::new();
    let made = home.run(&["init", "--yes"]);
    assert!(made.status.success(), "{made:?}");
    let host = Served::start(home.agent_host().args(["serve", "--listen", "0", "--json"]));
    Browser::open("begins", &host.url(""), &json!({ "answer": "hello there" })).done();

    let greeter = greeter(&home.dir.path().join("greeter"));
    let inspected = home.run(&["inspect", greeter.to_str().unwrap()]);
    assert!(inspected.status.success() && String::from_utf8_lossy(&inspected.stdout).contains("acme/greeter"), "{inspected:?}");
    // By one rename, as a file is dropped into a folder that is read.
    let plugins = home.dir.path().join("home/plugins");
    fs::copy(&greeter, plugins.join(".greeter")).unwrap();
    fs::rename(plugins.join(".greeter"), plugins.join("greeter.wasm")).unwrap();
    let (id, began) = ("plugin:acme/greeter/default", Instant::now());
    while !String::from_utf8_lossy(&home.run(&["runners", "--json", "--server", &host.url("")]).stdout).contains(id) {
        assert!(began.elapsed() < PATIENCE, "the running host does not take the file up");
    }
    // The host has the ledger of this folder: a runner without a binding is tried apart from it.
    let refused = home.run(&["run", id, "Ada"]);
    let told = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && told.contains("--binding ID") && told.contains("--data-dir DIR"), "{refused:?}");
    let refused = home.run(&["run", "local-agent", "Ada"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("`agent-host run --binding agent TEXT`"), "{refused:?}");
    for times in 1..=2 {
        let said = home.run(&["run", id, "Ada", "--actor", "ada", "--data-dir", "trial"]);
        let text = String::from_utf8_lossy(&said.stdout);
        assert!(said.status.success() && text.contains(&format!("Hello, Ada! We have met {times} times.")), "{said:?}");
    }
}
