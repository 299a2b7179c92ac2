//! The chat page in a browser, against the real binary: whatever happens in between, who reads it ends with what the agent
//! said, once.

pub mod browser;

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
};

use agent_host_tests::{
    Process,
    process::{self, Served},
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::chat::browser::Browser;

/// An agent with a scripted model and tools, and a guest with scripted steps.
fn config() -> String {
    format!(
        r#"
[[models]]
id = "chat"
provider = "scripted"
script = "script.toml"

[[mcp_servers]]
id = "t"
command = "{server}"

[[action_hooks]]
actions = ["message.*"]
url = "http://127.0.0.1:9/"
secret = {{ file = "hook" }}

[[bindings]]
id = "agent"
runner = "plugin:agent-host/local-agent/default"
max_attempts = 10
resources = {{ tool_names = ["t__*"], steering = false }}

[[bindings]]
id = "stage"
runner = "plugin:test/stage/default"
resources = {{ platform_api = ["message.edit"] }}
state = {{ scopes = ["conversation"] }}

[[bindings]]
id = "second-stage"
runner = "plugin:test/stage/default"
"#,
        server = env!("CARGO_BIN_EXE_mcp-server"),
    )
}

/// A long answer: about four seconds.
fn long() -> String {
    let words: Vec<_> = (0..80).map(|number| format!("word{number}")).collect();
    words.join(" ")
}

/// The entry of a script that gives the long answer.
pub fn long_reply() -> String {
    format!("[[reply]]\nwhen = '^long'\ntext = \"{}\"\nchunk_chars = 8\ndelay_ms = 50\n", long())
}

/// An answer with markup that a page must not execute.
const MARKUP: &str = r#"<img src=x onerror="document.title = 'owned'"><script>document.title = 'owned'</script><b>bold</b>"#;

/// Markdown with all that a page shows of it.
const MARKDOWN: &str = r"# The plan

Look at **two** places, [the manual](https://example.com/manual) and `agent-host.toml`.

1. First
2. Second
   - inner

| Name | Size |
|:-----|-----:|
| a    |   10 |

```rust
fn main() {
    let less = 1 < 2;
}
```

The end.";

/// Markdown of a runner that attacks its reader. Each attack that succeeds changes the title of the page.
const HOSTILE: &str = r#"<script>document.title='owned'</script>
<img src=x onerror="document.title='owned'"> <svg/onload=document.title='owned'> <style>body{display:none}</style>

<a href="javascript:document.title='owned'">html</a> <javascript:document.title='owned'>

[one](javascript:document.title='owned') [two](JaVaScRiPt:document.title='owned') [three](&#106;avascript:document.title='owned')
[four](data:text/html,<script>parent.document.title='owned'</script>) [five](vbscript:x) [six](/api/v1/keys) [seven][ref]
[fine](https://fine.example/?a=1&b="onclick=document.title='owned')

![pixel](https://evil.example/pixel.png) ![script](javascript:document.title='owned') ![quote](https://a.example/"onerror="document.title='owned')

```"><img/src=x/onerror=document.title='owned'>
</code></pre><script>document.title='owned'</script>
```

``` ask problem
A class of the page
```

| <img src=x onerror="document.title='owned'"> |
|---|
| [cell](javascript:document.title='owned') |

[ref]: javascript:document.title='owned'"#;

fn script() -> String {
    format!(
        r#"
{long}
[[reply]]
when = '^slow'
text = "{words}"
chunk_chars = 8
delay_ms = 400

[[reply]]
when = '^add'
after_tool = false
reasoning = "They want a sum, so I use the tool."
text = "Let me see."
tool_calls = [{{ name = "t__add", parameters = {{ a = 1, b = 2 }} }}]

[[reply]]
when = '^add'
after_tool = true
text = "It is {{{{tool_results}}}}."
usage = {{ input = 1200, output = 34 }}

[[reply]]
when = '^markup'
text = '''{MARKUP}'''
chunk_chars = 7

[[reply]]
when = '^markdown'
text = '''{MARKDOWN}'''
chunk_chars = 5

[[reply]]
when = '^attack'
text = '''{HOSTILE}'''
chunk_chars = 11

[[reply]]
when = '^fail'
text = "I begin, and"
error = {{ code = "runtime_error", message = "the model broke", retryable = false }}

[[reply]]
text = "You said: {{{{last_user}}}}"
"#,
        long = long_reply(),
        words = long(),
    )
}

/// The directories of a host with all of this.
fn lay_out() -> TempDir {
    let dir = Process::lay_out(&["local_agent", "stage"]);
    fs::write(dir.path().join("script.toml"), script()).unwrap();
    fs::write(dir.path().join("hook"), "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
    dir
}

fn host() -> Process {
    Process::start_in(lay_out(), &config())
}

/// Plays a scenario of the script beside this file to its end.
fn play(scenario: &str, more: &Value) {
    let host = host();
    Browser::open(scenario, &host.url, more).done();
}

#[test]
fn an_answer_streams_in_and_tools_are_shown_with_what_they_said() {
    play("streams", &json!({ "long": long() }));
}

#[test]
fn whatever_a_runner_shows_has_its_place() {
    play("shows", &json!({}));
}

#[test]
fn approvals_and_questions_are_answered_on_the_page() {
    play("asks", &json!({}));
}

#[test]
fn a_reload_in_the_middle_of_an_answer_loses_and_doubles_nothing() {
    play("reloads", &json!({ "long": long() }));
}

#[test]
fn markup_in_what_is_said_stays_text() {
    play("markup", &json!({ "markup": MARKUP }));
}

#[test]
fn markdown_is_shown_as_it_grows_and_code_is_copied() {
    play("markdown", &json!({ "markdown": MARKDOWN }));
}

#[test]
fn scripts_handlers_and_addresses_of_hostile_markdown_stay_dead() {
    play("attacks", &json!({}));
}

#[test]
fn a_message_is_copied_and_edited_and_its_answer_is_asked_for_again() {
    play("branches", &json!({}));
}

#[test]
fn earlier_messages_are_read_when_they_are_asked_for() {
    play("earlier", &json!({}));
}

#[test]
fn a_second_tab_follows_the_thread_and_escape_stops_the_answer() {
    play("follows", &json!({ "long": long() }));
}

#[test]
fn several_files_go_with_a_message() {
    play("files", &json!({}));
}

#[test]
fn an_answer_is_stopped_and_a_failure_says_what_to_do() {
    play("ends", &json!({ "long": long() }));
}

#[test]
fn threads_have_addresses_and_the_page_fits_a_phone() {
    play("threads", &json!({}));
}

#[test]
fn a_host_that_dies_in_the_middle_of_an_answer_is_waited_for() {
    let host = host();
    let mut browser = Browser::open("dies", &host.url, &json!({ "long": long() }));
    browser.says("kill");
    let port = host.url.rsplit(':').next().unwrap().to_owned();
    let dir = host.kill();
    browser.tell("dead");
    browser.says("start");
    let restarted = again(&port, &dir);
    browser.says("kill");
    drop(restarted);
    browser.tell("dead");
    browser.says("start");
    let _again = again(&port, &dir);
    browser.done();
}

#[test]
fn the_page_asks_for_a_key_where_the_host_wants_one() {
    let dir = lay_out();
    let made = process::command(dir.path()).args(["keys", "create", "--scope", "admin", "--json"]).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let made: Value = serde_json::from_slice(&made.stdout).unwrap();
    let host = Process::start_as(dir, "", &config());
    Browser::open("keys", &host.url, &json!({ "key": made["token"] })).done();
}

/// The task board of the examples. Dropping the value kills it.
struct Board(Child);

impl Board {
    /// Starts a board of this host, and gives its address.
    fn of(host: &Process) -> (Self, String) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../example-runners/task-board/board.py");
        let mut command = Command::new("python3");
        command.arg("-B").arg(script).env("AGENT_HOST_SERVER", &host.url).env("BOARD_LISTEN", "127.0.0.1:0");
        let mut child = command.stdout(Stdio::piped()).spawn().expect("python3 is there");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = line.split_whitespace().last().unwrap_or_default().trim_end_matches('/').to_owned();
        (Self(child), url)
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_page_of_the_description_shows_operations_under_its_policy() {
    play("docs", &json!({}));
}

#[test]
fn the_page_of_the_task_board_opens_shows_and_fits() {
    let agent = "[[bindings]]\nid = \"echoing-agent\"\nrunner = \"plugin:agent-host/echo/default\"\n\
                 match = { event_type = \"message\\\\..*\" }\n";
    let host = Process::start(&["echo"], agent);
    let (_board, url) = Board::of(&host);
    Browser::open("board", &url, &json!({})).done();
}

/// A host that was restarted in the same place.
fn again(port: &str, dir: &TempDir) -> Served {
    let served = Served::start(process::command(dir.path()).args(["serve", "--json", "--listen", port]));
    assert!(served.url("").ends_with(&format!(":{port}")), "it does not listen where it did: {}", served.line);
    served
}
