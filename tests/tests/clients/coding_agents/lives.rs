//! Lives of real programs: steering, cancel, deadline, crash, garbage, flood, and the death of the host, each in the middle of a command.

use std::{
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

use agent_host_tests::{
    support::{Host, in_order, lines_of},
    world::PATIENCE,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::{
    answers::{allow_all, answers, asks_for_commands, ended, goes_on, last_text},
    order,
    programs::{self, Program},
    until, workspace,
};

/// The program behind a line that is no message, and messages that nobody knows. While it works, a file `garbage` in the workspace has another
/// line follow that is none, and a file `flood` messages without an end. The pipe is opened again for them: programs of Node.js have their own
/// writes not wait.
const FRONT: &str = r#"
echo 'warning: this line is no message'
yes '{"method":"front","type":"front"}' | head -n 5000
while sleep 0.2; do
    if [ -e garbage ]; then
        echo 'warning: neither is this one'
        rm garbage
    elif [ -e flood ]; then
        line=$(head -c 60000 /dev/zero | tr '\0' x)
        exec yes "{\"method\":\"front\",\"type\":\"front\",\"text\":\"$line\"}"
    fi
done >/proc/self/fd/1 &
exec "$@"
"#;
/// Output for more than a turn, and less than a flood.
const BOUNDED: &str = "limits = { output_bytes = 16777216 }";

/// The command that waits: it says that it has begun, and ends when it is told to.
const WAIT: &str = "touch began\nfor look in $(seq 600); do\n  if [ -e go ]; then rm go; exit; fi\n  sleep 0.1\ndone\nexit 1\n";
/// Times of the run that has too little of it, without the time for answers of people: the first is enough for a program to begin its command
/// on a machine that is not busy.
const DEADLINES_MS: [u64; 2] = [10_000, 50_000];

/// A host, a program and a conversation.
struct Place<'a> {
    host: &'a Host,
    program: &'a Program,
    conversation: &'a str,
}

impl Place<'_> {
    /// Begins a run whose agent executes a command that waits.
    async fn begin_to_wait(&self, more: Value) -> String {
        let dir = workspace(self.host, self.conversation);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("wait.sh"), WAIT).unwrap();
        // Of a run that ended meanwhile.
        let _ = fs::remove_file(dir.join("began"));
        order(self.host, self.conversation, &format!("wait by {};", self.program.shell), more).await
    }

    /// Waits until the command waits, and gives the processes of the run.
    async fn waits(&self, run: &str) -> Vec<Found> {
        let has_begun = self.has_begun(run).await;
        assert!(has_begun, "no command waits: {}", lines_of(&self.host.events(run).await));
        let found = self.processes(run);
        assert!(found.iter().any(|process| process.command.contains("wait.sh")), "{found:?}");
        found
    }

    /// Waits until the command waits, or the run has ended: false.
    async fn has_begun(&self, run: &str) -> bool {
        let file = workspace(self.host, self.conversation).join("began");
        let began = Instant::now();
        while fs::remove_file(&file).is_err() {
            if began.elapsed() > PATIENCE || self.host.run(run).await["finished_at"].is_u64() {
                return false;
            }
            allow_all(self.host, self.program, run).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        true
    }

    /// Makes an empty file in the workspace.
    fn put(&self, name: &str) -> PathBuf {
        let file = workspace(self.host, self.conversation).join(name);
        fs::write(&file, "").unwrap();
        file
    }

    /// Has the command end.
    fn go(&self) {
        self.put("go");
    }

    /// The processes of a run: those with its variables, and those in its workspace.
    fn processes(&self, run: &str) -> Vec<Found> {
        let dir = workspace(self.host, self.conversation);
        let entries = fs::read_dir("/proc").unwrap().flatten();
        let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let read = |id: i32, file: &str| {
            let bytes = fs::read(format!("/proc/{id}/{file}")).unwrap_or_default();
            String::from_utf8_lossy(&bytes).replace('\0', " ")
        };
        let is_of_run = |id: &i32| {
            read(*id, "environ").contains(run) || fs::read_link(format!("/proc/{id}/cwd")).is_ok_and(|cwd| cwd.starts_with(&dir))
        };
        let found = |id: i32| {
            let stat = read(id, "stat");
            let parent = stat.rsplit_once(')').and_then(|(_, fields)| fields.split_whitespace().nth(1)?.parse().ok());
            Found { id, parent: parent.unwrap_or_default(), command: read(id, "cmdline") }
        };
        // A process that has ended and is not reaped has no command.
        ids.filter(is_of_run).map(found).filter(|process| !process.command.is_empty()).collect()
    }

    /// Waits until no process of a run is left.
    async fn no_process_is_left(&self, run: &str) {
        until("the end of all processes", async || self.processes(run).is_empty().then_some(())).await;
    }

    /// A message that arrives while the agent works is answered by the same run, behind a line that is no message.
    async fn is_steered(&self, session: &Value) {
        let run = self.begin_to_wait(json!({})).await;
        self.waits(&run).await;
        let message = self.host.send_in(self.conversation, "and again").await;
        self.host.until(&run, |event| event["type"] == "steering.received").await;
        let garbage = self.put("garbage");
        until("the line that is no message", async || (!garbage.exists()).then_some(())).await;
        self.go();
        let active = ended(self.host, self.program, &run).await.completed();
        assert_eq!(last_text(&active), "Again, in the same session.", "{active}");
        assert!(active.of("harness.garbage")[0]["lines"].as_u64().is_some_and(|lines| lines >= 2), "{active}");
        goes_on(&active, session);
        let steered = self.host.ended(&message).await.completed();
        let end = steered.of("run.completed")[0];
        assert_eq!((&end["finish_reason"], &end["metadata"]["steered_into"]), (&json!("steered"), &json!(run)), "{steered}");
    }

    async fn is_cancelled(&self) {
        let run = self.begin_to_wait(json!({})).await;
        self.waits(&run).await;
        self.host.cancel(&run).await;
        self.host.ended(&run).await.cancelled();
        self.no_process_is_left(&run).await;
    }

    async fn runs_out_of_time(&self, session: &Value) {
        for deadline_ms in DEADLINES_MS {
            let run = self.begin_to_wait(json!({ "deadline_ms": deadline_ms })).await;
            let has_begun = self.has_begun(&run).await;
            let late = self.host.ended(&run).await;
            assert_eq!(
                (&late.run["status"], &late.run["failure"]["code"]),
                (&json!("timeout"), &json!("deadline_exceeded")),
                "{late}"
            );
            self.no_process_is_left(&run).await;
            if has_begun {
                goes_on(&late, session);
                return;
            }
        }
        panic!("no command began in {DEADLINES_MS:?} ms");
    }

    async fn floods(&self, session: &Value) {
        let run = self.begin_to_wait(json!({})).await;
        self.waits(&run).await;
        self.put("flood");
        let flooded = self.host.ended(&run).await.failed("harness_output_limit");
        self.no_process_is_left(&run).await;
        goes_on(&flooded, session);
    }
}

/// The agent is killed in its first attempt and the host in the second; the third goes on, and then the message that has waited in line.
async fn dies_and_goes_on(host: &mut Host, program: &Program, session: &Value) {
    let place = Place { host, program, conversation: "c1" };
    let run = place.begin_to_wait(json!({ "max_attempts": 3, "resources": { "steering": false } })).await;
    let found = place.waits(&run).await;
    let waiting = host.send_in("c1", "and again").await;
    let agent = found.iter().find(|process| found.iter().any(|parent| parent.id == process.parent && parent.is_launcher()));
    let agent = agent.unwrap_or_else(|| panic!("{found:?}"));
    kill_process(Pid::from_raw(agent.id).unwrap(), Signal::KILL).unwrap();
    let again = place.waits(&run).await;
    assert!(again.iter().all(|process| found.iter().all(|before| before.id != process.id)), "{found:?}\n{again:?}");
    host.kill();
    let place = Place { host, program, conversation: "c1" };
    place.no_process_is_left(&run).await;
    place.go();
    host.revive();
    let last = ended(host, program, &run).await.completed();
    assert_eq!((&last.run["attempt"], last_text(&last)), (&json!(3), "It has waited."), "{last}");
    assert!(last.events.iter().any(|event| event.to_string().contains("harness_crashed")), "{last}");
    goes_on(&last, session);
    let next = host.ended(&waiting).await.completed();
    assert_eq!(last_text(&next), "Again, in the same session.", "{next}");
    goes_on(&next, session);
    in_order([&last, &next]);
}

/// A process.
#[derive(Debug)]
struct Found {
    id: i32,
    parent: i32,
    command: String,
}

impl Found {
    /// True if it is the launcher of the host, which has its order as an argument.
    fn is_launcher(&self) -> bool {
        self.command.contains("max_open_files")
    }
}

/// Everything that a harness is for, with one program on one host.
async fn lives(program: Program) {
    let mut host = program.host(Some(FRONT), BOUNDED);
    let works = async {
        let place = Place { host: &host, program: &program, conversation: "c1" };
        let session = answers(&host, &program).await;
        asks_for_commands(&host, &program).await;
        place.is_steered(&session).await;
        place.is_cancelled().await;
        session
    };
    let is_bounded = async {
        let place = Place { host: &host, program: &program, conversation: "c2" };
        let run = host.send_in("c2", "hello there").await;
        let session = host.ended(&run).await.completed().of("harness.session")[0]["session_id"].clone();
        place.runs_out_of_time(&session).await;
        place.floods(&session).await;
    };
    let (session, ()) = tokio::join!(works, is_bounded);
    dies_and_goes_on(&mut host, &program, &session).await;
    host.check();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn claude_code_lives_by_its_own_protocol() {
    lives(programs::claude_code()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn claude_code_lives_over_acp() {
    lives(programs::claude_code_acp()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn codex_lives_by_its_own_protocol() {
    lives(programs::codex()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn codex_lives_over_acp() {
    lives(programs::codex_acp()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn gemini_lives_over_acp() {
    lives(programs::gemini()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn opencode_lives_over_acp() {
    lives(programs::opencode()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn kimi_lives_over_acp() {
    lives(programs::kimi()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn pi_lives_over_acp() {
    lives(programs::pi()).await;
}
