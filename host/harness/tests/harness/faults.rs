//! Agents that fail, do too much, or reach for what is not theirs.

use std::{fs, net::TcpListener, time::Instant};

use serde_json::json;

use crate::{World, content, gone, host::RUNS, is_alive};

const RUN: &str = RUNS[0];

async fn said(world: &World, text: &str) -> String {
    world.host.offer(RUN, text, "c1", json!({}));
    let (_, end) = world.host.end(RUN).await;
    assert_eq!(end["status"], "completed", "{end}");
    world.host.text(RUN)
}

async fn failed(world: &World, text: &str) -> (String, String) {
    world.host.offer(RUN, text, "c1", json!({}));
    let (_, end) = world.host.end(RUN).await;
    assert_eq!(end["status"], "failed", "{end}");
    (end["code"].as_str().unwrap().to_owned(), end["message"].as_str().unwrap().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_is_reported_with_its_reason_and_without_secrets() {
    let mut world = World::new("");
    let (code, message) = failed(&world, "say before\ntool ls\ncrash out of cheese, key sk-canary-of-the-test").await;
    assert_eq!(code, "harness_crashed");
    assert!(message.contains("exit code 3") && message.contains("out of cheese, key [secret]"), "{message}");
    assert_eq!(world.host.text(RUN), "before", "what was said before is kept");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_is_not_there_is_named_with_the_fix() {
    let mut world = World::with_command("preset = \"claude-code\"", &["no-such-agent"]);
    let (code, message) = failed(&world, "say hi").await;
    assert_eq!(code, "harness_unavailable");
    assert!(message.contains("`no-such-agent`") && message.contains("npm install"), "{message}");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_is_passed_over_and_too_much_of_it_is_a_failure() {
    let mut world = World::new("limits = { line_bytes = 4096 }");
    assert_eq!(said(&world, "garbage\nlong 100000\nsay hello").await, "hello");
    assert_eq!(world.host.data(RUN, "harness.garbage")[0]["lines"], 4);
    world.host.offer(RUNS[1], "garbage 1000", "c1", json!({}));
    let (_, end) = world.host.end(RUNS[1]).await;
    assert_eq!(end["code"], "harness_protocol", "{end}");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_is_taken_as_far_as_it_may_come() {
    let mut world = World::new("");
    let text = said(&world, "flood 20000").await.replace('|', "");
    assert!(text.starts_with("0 1 2 ") && text.trim_end().ends_with("19999"));
    let deltas = world.host.data(RUN, "message.delta").len();
    assert!(deltas < 15_000, "pieces that wait together become one result: {deltas}");
    world.end().await;
    let mut world = World::new("limits = { output_bytes = 100000 }");
    let (code, _) = failed(&world, "flood 20000").await;
    assert_eq!(code, "harness_output_limit");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_do_not_reach_the_record() {
    let mut world = World::new("");
    let text = "env KEY\nspell sk-canary-of-the-test!\ntool echo sk-canary-of-the-test\nthink sk-canary-of-the-test\nenv PLAIN";
    let said = said(&world, text).await;
    assert_eq!(said, "[secret][secret]!|plain");
    let all = serde_json::to_string(&world.host.results(RUN)).unwrap();
    assert!(!all.contains("canary"), "{all}");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_has_the_environment_that_it_was_given_and_no_other() {
    let mut world = World::new("");
    let names = said(&world, "names").await;
    let names: Vec<&str> = names.split(',').filter(|name| *name != "LC_CTYPE" && *name != "PWD").collect();
    assert_eq!(names, ["AGENT_HOST_CONTEXT", "HOME", "KEY", "LANG", "PATH", "PLAIN", "TERM", "TMPDIR"]);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_run_leaves_no_process_however_deaf() {
    let mut world = World::new("");
    let dir = world.workspace("c1");
    let [own, forked] = ["own", "forked"].map(|name| dir.join(name).to_string_lossy().into_owned());
    world.host.offer(RUN, &format!("say working\ndeaf\nfork {forked}\nfile {own}\nhang"), "c1", json!({}));
    let pids = [content(own.as_ref()).await, content(forked.as_ref()).await];
    assert!(pids.iter().all(|pid| is_alive(pid)));
    let asked = Instant::now();
    world.host.cancel(RUN);
    let (_, end) = world.host.end(RUN).await;
    assert_eq!(end["status"], "cancelled");
    assert!(asked.elapsed().as_millis() < 2_000, "within the grace of the host: {:?}", asked.elapsed());
    assert_eq!(world.host.text(RUN), "working");
    for pid in pids {
        gone(&pid).await;
    }
    assert!(asked.elapsed().as_secs() < 8, "{:?}", asked.elapsed());
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_agent_leaves_behind_may_save_its_work_and_ends() {
    let mut world = World::new("");
    let dir = world.workspace("c1");
    let [saved, forked] = ["saved", "forked"].map(|name| dir.join(name));
    said(&world, &format!("heir {}\nfork {}", saved.display(), forked.display())).await;
    assert_eq!(content(&saved).await, "saved");
    gone(&content(&forked).await).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_polite_agent_says_its_last_words_when_it_is_cancelled() {
    let mut world = World::new("");
    world.host.offer(RUN, "say one\nsleep 60\nsay never", "c1", json!({}));
    world.host.until("the first piece", |host| host.data(RUN, "message.delta").first().cloned()).await;
    world.host.cancel(RUN);
    let (_, end) = world.host.end(RUN).await;
    assert_eq!((end["status"].as_str(), world.host.text(RUN).as_str()), (Some("cancelled"), "one"));
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_withdraws_the_question_of_an_agent() {
    let mut world = World::new("");
    world.host.offer(RUN, "permission execute make", "c1", json!({}));
    world.host.until("the question", |host| host.questions().first().cloned()).await;
    world.host.cancel(RUN);
    let (_, end) = world.host.end(RUN).await;
    assert_eq!(end["status"], "cancelled");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_deadline_passes_leaves_no_process() {
    // With a pull that learns of the deadline, and by renewals alone.
    for apis in [json!({ "steering": true, "state": true }), json!({})] {
        let mut world = World::new("");
        let dir = world.workspace("c1");
        let [own, forked] = ["own", "forked"].map(|name| dir.join(name).to_string_lossy().into_owned());
        let context = json!({ "conversation_id": "c1", "inline_policy": { "mode": "none" }, "available_apis": apis });
        let text = format!("say working\ndeaf\nfork {forked}\nfile {own}\nhang");
        world.host.offer_with(RUN, "", "c1", json!({}), json!({ "context": context, "input": { "text": text } }));
        let pids = [content(own.as_ref()).await, content(forked.as_ref()).await];
        let passed = Instant::now();
        world.host.pass_deadline(RUN);
        for pid in pids {
            gone(&pid).await;
        }
        assert!(passed.elapsed().as_secs() < 9, "{:?}", passed.elapsed());
        world.end().await;
        assert!(!world.host.has_end(RUN), "the host has ended it");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_does_not_read_is_cancelled_like_others() {
    let mut world = World::new("");
    let dir = world.workspace("c1");
    let own = dir.join("own");
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("large"), "x".repeat(1 << 20)).unwrap();
    let text = format!("file {}\nunread large\nsay asked\nhang", own.display());
    world.host.offer(RUN, &text, "c1", json!({}));
    let pid = content(&own).await;
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    let asked = Instant::now();
    world.host.cancel(RUN);
    let (_, end) = world.host.end(RUN).await;
    assert_eq!(end["status"], "cancelled");
    // The agent has 0.7 s; the rest is room for a machine that is busy. A wait for the agent to read would have no end.
    assert!(asked.elapsed().as_secs() < 10, "{:?}", asked.elapsed());
    gone(&pid).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_launcher_is_out_of_reach_and_its_end_is_that_of_the_agent() {
    let mut world = World::new("isolation = \"landlock\"");
    assert_eq!(said(&world, "orphan").await, "PermissionError");
    world.end().await;
    let mut world = World::new("isolation = \"none\"");
    let own = world.workspace("c1").join("own");
    let (code, _) = failed(&world, &format!("file {}\norphan\nhang", own.display())).await;
    assert_eq!(code, "harness_crashed");
    gone(&content(&own).await).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_left_by_an_answer_are_killed() {
    let mut world = World::new("");
    let forked = world.workspace("c1").join("forked");
    assert_eq!(said(&world, &format!("fork {}\nsay done", forked.display())).await, "done");
    gone(&content(&forked).await).await;
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_harness_gives_its_runs_back() {
    let mut world = World::new("");
    let own = world.workspace("c1").join("own");
    world.host.offer(RUN, &format!("file {}\nsleep 60", own.display()), "c1", json!({}));
    let pid = content(&own).await;
    world.end().await;
    assert!(!is_alive(&pid), "the harness ends after its processes");
    let (how, _) = world.host.end(RUN).await;
    assert_eq!(how, "release");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_second_run_of_a_workspace_waits_for_the_first() {
    let mut world = World::new("");
    let [first, second] = ["first", "second"].map(|name| world.workspace("c1").join(name));
    world.host.offer(RUN, &format!("file {}\nsleep 0.7", first.display()), "c1", json!({}));
    content(&first).await;
    world.host.offer(RUNS[1], &format!("file {}", second.display()), "c1", json!({}));
    world.host.offer(RUNS[2], "say other workspace", "c2", json!({}));
    world.host.end(RUNS[2]).await;
    assert!(!second.exists(), "the first is not over");
    world.host.end(RUNS[1]).await;
    assert!(second.exists());
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_and_commands_by_the_client_do_not_leave_the_workspace() {
    let mut world = World::new("rules = [{ policy = \"deny\", paths = [\"private\"] }]");
    let dir = world.workspace("c1");
    let outside = world.dir.path().join("outside");
    fs::write(&outside, "secret of another").unwrap();
    fs::create_dir_all(&dir).unwrap();
    std::os::unix::fs::symlink(&outside, dir.join("link")).unwrap();
    let text = format!(
        "write {0}/a.txt text\nread {0}/a.txt\nread {0}/link\nread {0}/../../../outside\nread {1}\nwrite {0}/link x\nwrite {0}/private/x y\nterminal echo out\nterminal sh\\ -c true",
        dir.display(),
        outside.display()
    );
    let said = said(&world, &text).await;
    assert!(said.contains(r#"{"content": "text"}"#) && said.contains("\"output\": \"out\\n\""), "{said}");
    assert_eq!(said.matches("leads out of /").count(), 2, "{said}");
    assert_eq!(said.matches("is not in the workspace").count(), 2, "{said}");
    assert!(said.contains("a rule of the operator denies it") && !said.contains("secret of another"), "{said}");
    assert!(said.contains("there is no program"), "{said}");
    assert_eq!(fs::read_to_string(&outside).unwrap(), "secret of another");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_confined_agent_reaches_its_workspace_and_nothing_else() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let open = TcpListener::bind("127.0.0.1:0").unwrap();
    let [closed_port, open_port] = [&listener, &open].map(|listener| listener.local_addr().unwrap().port());
    let mut world = World::new(&format!("isolation = \"landlock\"\nconnect_ports = [{open_port}]"));
    let dir = world.workspace("c1");
    let data = world.dir.path().canonicalize().unwrap();
    let key = data.join("id_ed25519");
    fs::write(&key, "a private key").unwrap();
    fs::create_dir_all(data.join("data/workspaces/c2")).unwrap();
    fs::write(data.join("data/workspaces/c2/theirs"), "of another conversation").unwrap();
    let text = format!(
        "put {0}/own fine\ncat {0}/own\nsay /\ncat {1}\nput {1} x\nsay /\ncat {2}/data/workspaces/c2/theirs\nput {2}/data/new x\nsay /\nlink {1} {0}/hard\nsay /\nconnect {open_port}\nconnect {closed_port}\nsay /\nsignal {3}",
        dir.display(),
        key.display(),
        data.display(),
        std::process::id()
    );
    let said = said(&world, &text).await;
    assert_eq!(
        said,
        "writtenfine/PermissionErrorPermissionError/PermissionErrorPermissionError/OSError/connectedPermissionError/PermissionError"
    );
    assert_eq!(fs::read_to_string(&key).unwrap(), "a private key");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_has_a_bound() {
    let mut world = World::new("limits = { max_memory_bytes = 200000000 }");
    assert_eq!(said(&world, "memory 1000000\nsay ,\nmemory 1000000000").await, "1000000,MemoryError");
    world.end().await;
}
