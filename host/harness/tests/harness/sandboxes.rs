//! Agents in the sandbox of `bwrap`: the files, the network and the processes that they reach.

use std::{fs, path::Path, time::Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::TcpListener,
};

use crate::{PUBLIC, World, content, host::RUNS};

const RUN: &str = RUNS[0];
/// Bytes of a large answer.
const LARGE: usize = 3 << 20;

async fn said_of(world: &World, run: &str, text: &str, more: Value) -> String {
    world.host.offer_with(run, text, "c1", json!({}), more);
    let (_, end) = world.host.end(run).await;
    assert_eq!(end["status"], "completed", "{end}");
    world.host.text(run)
}

async fn said(world: &World, text: &str) -> String {
    said_of(world, RUN, text, json!({})).await
}

/// A server of this machine that answers every request with its first line and its host; `/large` with many bytes.
async fn server(address: &str) -> u16 {
    let listener = TcpListener::bind((address, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut stream = BufReader::new(stream);
                let (mut first, mut host) = (String::new(), String::new());
                loop {
                    let mut line = String::new();
                    if stream.read_line(&mut line).await.unwrap_or(0) == 0 || line == "\r\n" {
                        break;
                    }
                    let line = line.trim_end().to_owned();
                    if first.is_empty() {
                        first = line;
                    } else if line.to_ascii_lowercase().starts_with("host:") {
                        host = line;
                    }
                }
                let body = if first.contains("/large") { "x".repeat(LARGE) } else { format!("{first}; {host}") };
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
                // The client may be gone.
                let _ = stream.write_all((head + &body).as_bytes()).await;
                let _ = stream.shutdown().await;
            });
        }
    });
    port
}

/// The processes whose command line has this text.
fn processes(text: &str) -> Vec<Pid> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let has = |id: &i32| {
        fs::read(format!("/proc/{id}/cmdline")).is_ok_and(|line| String::from_utf8_lossy(&line).contains(text))
            && crate::is_alive(&id.to_string())
    };
    ids.filter(has).filter_map(Pid::from_raw).collect()
}

/// Waits until no process has this text in its command line.
async fn all_gone(text: &str) {
    for _ in 0..1000 {
        if processes(text).is_empty() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("{:?} are still there", processes(text));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_in_a_sandbox_reaches_its_workspace_and_nothing_else() {
    let mut world = World::new("isolation = \"bwrap\"");
    let dir = world.workspace("c1");
    let data = world.dir.path().canonicalize().unwrap();
    let key = data.join("id_ed25519");
    fs::write(&key, "a private key").unwrap();
    fs::create_dir_all(data.join("data/workspaces/c2")).unwrap();
    fs::write(data.join("data/workspaces/c2/theirs"), "of another conversation").unwrap();
    fs::create_dir_all(&dir).unwrap();
    std::os::unix::fs::symlink(&key, dir.join("link")).unwrap();
    let home = std::env::var("HOME").unwrap();
    let text = format!(
        "put {0}/own fine\ncat {0}/own\nsay /\ncat {1}\ncat {0}/link\ncat {2}/data/workspaces/c2/theirs\nsay /\nput {1} x\n\
         put {2}/data/new x\nput /usr/new x\nput /new x\nput /dev/new x\nput /proc/self/comm x\nsay /\nlist {home}/.ssh\nlist {2}/data/workspaces\nsay /\n\
         cat /proc/{3}/cmdline\nsignal {3}\nsay /\nterminal cat {1}",
        dir.display(),
        key.display(),
        data.display(),
        std::process::id()
    );
    let said = said(&world, &text).await;
    let parts: Vec<&str> = said.split('/').collect();
    assert_eq!(parts[0], "writtenfine", "{said}");
    assert_eq!(parts[1], "FileNotFoundError".repeat(3), "{said}");
    assert!(parts[2].ends_with(&"OSError".repeat(4)), "the system and the root are read-only: {said}");
    assert_eq!(parts[3], "FileNotFoundErrorc1", "{said}");
    assert_eq!(parts[4], "FileNotFoundErrorProcessLookupError", "{said}");
    assert!(said.contains("No such file or directory"), "a command by the client has the same files: {said}");
    assert!(!said.contains("private key"), "{said}");
    assert_eq!(fs::read_to_string(&key).unwrap(), "a private key");
    assert!(!data.join("data/new").exists() && !Path::new("/usr/new").exists() && !Path::new("/new").exists());
    assert_eq!(fs::read_to_string(dir.join("own")).unwrap(), "fine");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_network_of_a_sandbox_is_a_proxy_and_the_open_ports_of_this_machine() {
    let (open, closed) = (server("127.0.0.1").await, server("127.0.0.1").await);
    let (allowed, refused) = (server(PUBLIC).await, server(PUBLIC).await);
    let mut world = World::new(&format!(
        "isolation = \"bwrap\"\nconnect_ports = [80, 443, {open}]\nconnect_hosts = [\"{PUBLIC}:{allowed}\", \"127.0.0.3:{allowed}\"]"
    ));
    let text = format!(
        "fetch http://127.0.0.1:{open}/a\nsay |\nfetch http://localhost:{open}/large\nsay |\nfetch http://{PUBLIC}:{allowed}/b\nsay |\n\
         fetch http://{PUBLIC}:{allowed}/large\nsay |\ntunnel {PUBLIC}:{allowed}\nsay |\nconnect {closed}\ndial {PUBLIC} {allowed}\n\
         dial 8.8.8.8 53"
    );
    let said = said(&world, &text).await;
    let parts: Vec<&str> = said.split('|').collect();
    assert!(parts[0].starts_with("200 ") && parts[0].ends_with(&format!(" GET /a HTTP/1.1; Host: 127.0.0.1:{open}")), "{said}");
    assert!(parts[1].starts_with(&format!("200 {LARGE} xxx")), "{said}");
    assert!(parts[2].contains("GET /b HTTP/1.1; ") && parts[2].ends_with(&format!("{PUBLIC}:{allowed}")), "{said}");
    assert!(parts[3].starts_with(&format!("200 {LARGE} xxx")), "{said}");
    assert!(parts[4].starts_with("HTTP/1.1 200 OK") && parts[4].contains("GET /tunnel HTTP/1.1; Host: inner"), "{said}");
    assert_eq!(parts[5], "ConnectionRefusedErrorConnectionRefusedErrorOSError", "{said}");
    assert_eq!(world.host.data(RUN, "harness.network"), Vec::<Value>::new());

    let text = format!(
        "fetch http://{PUBLIC}:{refused}/c\nsay |\ntunnel 127.0.0.1:{closed}\nsay |\nfetch http://127.0.0.3:{allowed}/d\nsay |\n\
         tunnel sk-canary-of-the-test.example:443\nfetch http://{PUBLIC}:{refused}/again"
    );
    let said = said_of(&world, RUNS[1], &text, json!({})).await;
    let parts: Vec<&str> = said.split('|').collect();
    assert!(
        parts[0].starts_with("403 ") && parts[0].contains("`connect_hosts` of the harness `plugin:acme/coder/default`"),
        "{said}"
    );
    assert!(parts[1].starts_with("HTTP/1.1 403"), "{said}");
    assert!(parts[2].starts_with("403 ") && parts[2].contains("allow_addresses"), "{said}");
    let facts = world.host.data(RUNS[1], "harness.network");
    let fact = |host: &str, port: u16, reason: &str| json!({ "host": host, "port": port, "allowed": false, "reason": reason });
    let expected = [
        fact(PUBLIC, refused, "host_not_allowed"),
        fact("127.0.0.1", closed, "host_not_allowed"),
        fact("127.0.0.3", allowed, "address_not_allowed"),
        fact("[secret].example", 443, "host_not_allowed"),
    ];
    assert_eq!(facts, expected, "each destination once");

    let granted = json!({ "http_hosts": [format!("{PUBLIC}:{refused}")] });
    let said = said_of(&world, RUNS[2], &format!("fetch http://{PUBLIC}:{refused}/e"), granted).await;
    assert!(said.starts_with("200 ") && said.contains("GET /e"), "what the binding grants: {said}");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_in_a_sandbox_is_named_its_proxy_and_no_secret_of_others() {
    let mut world = World::new("isolation = \"bwrap\"");
    let names = said(&world, "names\nsay |\nenv HTTPS_PROXY\nsay |\nenv NO_PROXY\nsay |\nlist /dev\nsay |\nlist /").await;
    let parts: Vec<&str> = names.split('|').collect();
    for name in ["AGENT_HOST_CONTEXT", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "NO_PROXY", "NODE_USE_ENV_PROXY"] {
        assert!(parts[0].split(',').any(|other| other == name), "{name}: {names}");
    }
    assert_eq!((parts[1], parts[2]), ("http://127.0.0.1:3128", "127.0.0.1,localhost,::1"));
    assert!(parts[3].contains("null") && !parts[3].contains("sd") && !parts[3].contains("mem"), "{names}");
    assert!(!parts[4].split(',').any(|name| name == "home" || name == "boot" || name == "sys"), "{names}");
    let capabilities = &world.host.registrations()[0]["capabilities"];
    assert_eq!(capabilities["isolation"], "bwrap", "{capabilities}");
    assert!(capabilities["isolation_version"].as_str().unwrap().starts_with("bubblewrap "), "{capabilities}");
    assert_eq!(capabilities["state"], "ready", "{capabilities}");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_run_leaves_no_process_of_its_sandbox_however_deaf() {
    let mut world = World::new("isolation = \"bwrap\"");
    let dir = world.workspace("c1");
    let [own, forked] = ["own", "forked"].map(|name| dir.join(name).to_string_lossy().into_owned());
    world.host.offer(RUN, &format!("say working\ndeaf\nfork {forked}\nfile {own}\nhang"), "c1", json!({}));
    content(own.as_ref()).await;
    // The process that left its group, bwrap, and a launcher on each side.
    let space = dir.to_string_lossy().into_owned();
    assert!(!processes(&forked).is_empty() && processes(&space).len() >= 4, "{:?}", processes(&space));
    let asked = Instant::now();
    world.host.cancel(RUN);
    let (_, end) = world.host.end(RUN).await;
    assert_eq!(end["status"], "cancelled");
    assert!(asked.elapsed().as_millis() < 2_000, "within the grace of the host: {:?}", asked.elapsed());
    all_gone(&space).await;
    assert!(asked.elapsed().as_secs() < 8, "{:?}", asked.elapsed());
    world.end().await;
    let files = walk(&world.dir.path().join("data/harness"));
    assert!(!files.is_empty() && !files.iter().any(|path| path.contains("/proxies/")), "{files:?}");
}

/// The files below a folder.
fn walk(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap().flatten();
    entries
        .flat_map(|entry| {
            let path = entry.path();
            if path.is_dir() { walk(&path) } else { vec![path.to_string_lossy().into_owned()] }
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_polite_agent_in_a_sandbox_ends_at_once_and_one_may_save_its_work() {
    let mut world = World::new("isolation = \"bwrap\"");
    let dir = world.workspace("c1");
    let saved = dir.join("saved");
    said(&world, &format!("heir {}", saved.display())).await;
    assert_eq!(content(&saved).await, "saved");
    world.host.offer(RUNS[1], "say one\nsleep 60\nsay never", "c1", json!({}));
    world.host.until("the first piece", |host| host.data(RUNS[1], "message.delta").first().cloned()).await;
    let asked = Instant::now();
    world.host.cancel(RUNS[1]);
    let (_, end) = world.host.end(RUNS[1]).await;
    assert_eq!((end["status"].as_str(), world.host.text(RUNS[1]).as_str()), (Some("cancelled"), "one"));
    all_gone(&dir.to_string_lossy()).await;
    assert!(asked.elapsed().as_secs() < 2, "{:?}", asked.elapsed());
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_process_of_a_sandbox_is_out_of_reach_and_the_end_of_its_launcher_is_that_of_all() {
    let mut world = World::new("isolation = \"bwrap\"");
    let dir = world.workspace("c1");
    let space = dir.to_string_lossy().into_owned();
    let own = dir.join("own");
    // The kernel gives the first process no signal from within that ends it.
    world.host.offer(RUN, &format!("orphan\nsay still here\nfile {}\nhang", own.display()), "c1", json!({}));
    content(&own).await;
    let parent_of = |process: &Pid| -> Option<i32> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", process.as_raw_pid())).ok()?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
    };
    let own_id = i32::try_from(std::process::id()).unwrap();
    let launchers: Vec<Pid> = processes(&space).into_iter().filter(|process| parent_of(process) == Some(own_id)).collect();
    assert_eq!(launchers.len(), 1, "{:?}", processes(&space));
    kill_process(launchers[0], Signal::KILL).unwrap();
    all_gone(&space).await;
    let (_, end) = world.host.end(RUN).await;
    assert_eq!(end["code"], "harness_crashed", "{end}");
    assert_eq!(world.host.text(RUN), "killedstill here");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_is_started_by_its_name_and_within_its_limits() {
    let mut world = World::with_command("isolation = \"bwrap\"", &["/usr/bin/env", "no-such-interpreter"]);
    world.host.offer(RUN, "say hi", "c1", json!({}));
    let (_, end) = world.host.end(RUN).await;
    assert_eq!(end["status"], "failed", "{end}");
    assert!(end["message"].as_str().unwrap().contains("no-such-interpreter"), "{end}");
    world.end().await;
    // A program by a link in a folder that the agent does not see.
    let links = tempfile::tempdir().unwrap();
    let link = links.path().join("agent");
    std::os::unix::fs::symlink(crate::python().0, &link).unwrap();
    fs::write(links.path().join("other"), "not for agents").unwrap();
    let command = [&*link.to_string_lossy(), "-B", &crate::peer()];
    let mut world = World::with_command("isolation = \"bwrap\"", &command);
    assert_eq!(said(&world, &format!("cat {}", links.path().join("other").display())).await, "FileNotFoundError");
    world.end().await;
    let mut world = World::new("isolation = \"bwrap\"\nlimits = { max_memory_bytes = 200000000 }");
    assert_eq!(said(&world, "memory 1000000\nsay ,\nmemory 1000000000").await, "1000000,MemoryError");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_cannot_be_made_is_no_crash_of_the_agent() {
    let complain = ["/bin/sh", "-c", "echo \"bwrap: Can't mount proc on /newroot/proc\" >&2; exit 1"];
    for preset in ["", "preset = \"command\"\n"] {
        let mut world = World::with_launcher(&format!("{preset}isolation = \"bwrap\""), &complain);
        world.host.offer(RUN, "say hi", "c1", json!({}));
        let (_, end) = world.host.end(RUN).await;
        assert_eq!((&end["code"], &end["retryable"]), (&json!("harness_unavailable"), &json!(false)), "{end}");
        assert!(end["message"].as_str().unwrap().contains("has no sandbox: bwrap: Can't mount proc"), "{end}");
        world.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operator_may_show_more_of_the_machine() {
    let mut world = World::new("isolation = \"bwrap\"\nwritable = [\"/\"]");
    let own = world.workspace("c1").join("own");
    let said = said(&world, &format!("list /sys\nsay |\nput {0} x\ncat {0}\nlist /dev/agent-host", own.display())).await;
    assert!(said.contains("kernel") && said.ends_with("|writtenxlauncher,proxy"), "{said}");
    assert!(own.exists() && !Path::new("/dev/agent-host").exists());
    world.end().await;
}
