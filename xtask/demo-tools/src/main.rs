//! The tool server of `cargo xtask demo`. It speaks the Model Context Protocol over standard input and output, as any
//! program of `[[mcp_servers]]`.

mod files;

use std::{path::PathBuf, sync::Arc};

use anyhow::Context;
use clap::Parser;
use rmcp::{ServerHandler, ServiceExt, handler::server::wrapper::Parameters, tool, tool_handler, tool_router, transport::stdio};
use schemars::JsonSchema;
use serde::Deserialize;

use self::files::Files;

/// Serve tools that read the files of a folder, over MCP on standard input and output (the demo starts it)
#[derive(Debug, Parser)]
struct Arguments {
    /// Folder of the files; hidden files and files outside of it are not read
    #[arg(long, value_name = "DIR")]
    root: PathBuf,
}

/// Serves until the input ends.
fn main() -> anyhow::Result<()> {
    let Arguments { root } = Arguments::parse();
    let root = root.canonicalize().with_context(|| format!("{} cannot be read", root.display()))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let served = runtime.block_on(async {
        Tools::new(root).serve(stdio()).await?.waiting().await?;
        anyhow::Ok(())
    });
    // A thread may still wait for input, which is not waited for.
    runtime.shutdown_background();
    served
}

/// The tools. Each only reads.
#[derive(Debug, Clone)]
struct Tools {
    files: Arc<Files>,
}

#[derive(Deserialize, JsonSchema)]
struct ListFiles {
    /// A folder, such as `docs`; `.` is the root of the project.
    folder: String,
}

#[derive(Deserialize, JsonSchema)]
struct CountWords {
    /// A file, such as `docs/API.md`.
    file: String,
}

#[derive(Deserialize, JsonSchema)]
struct ReadLines {
    /// A file, such as `docs/API.md`.
    file: String,
    /// The first line to read; the first of a file is 1.
    from: usize,
    /// The last line to read. At most 200 come at once.
    to: usize,
}

#[tool_router]
impl Tools {
    fn new(root: PathBuf) -> Self {
        Self { files: Arc::new(Files::new(root)) }
    }

    /// The files and folders in a folder of the project.
    #[tool(annotations(read_only_hint = true, open_world_hint = false))]
    async fn list_files(&self, Parameters(ListFiles { folder }): Parameters<ListFiles>) -> Result<String, String> {
        self.files.list(&folder)
    }

    /// Counts words, lines and bytes of a text of the project.
    #[tool(annotations(read_only_hint = true, open_world_hint = false))]
    async fn count_words(&self, Parameters(CountWords { file }): Parameters<CountWords>) -> Result<String, String> {
        self.files.count(&file)
    }

    /// Some lines of a text of the project, with their numbers.
    #[tool(annotations(read_only_hint = true, open_world_hint = false))]
    async fn read_lines(&self, Parameters(ReadLines { file, from, to }): Parameters<ReadLines>) -> Result<String, String> {
        self.files.lines(&file, from, to)
    }
}

#[tool_handler(name = "agent-host-project", instructions = "Reads the files of the project Agent Host.")]
impl ServerHandler for Tools {}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

    use super::*;

    /// Asks a server on `root` one thing after the other, as a client would; gives the results.
    fn ask(root: PathBuf, requests: &[(&str, Value)]) -> Vec<Value> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (ours, theirs) = tokio::io::duplex(64 * 1024);
            let server = tokio::spawn(async move { Tools::new(root).serve(theirs).await.unwrap().waiting().await.unwrap() });
            let (reader, mut writer) = tokio::io::split(ours);
            let mut lines = BufReader::new(reader).lines();
            let hello = json!({
                "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "test", "version": "1" },
            });
            let mut results = Vec::new();
            for (id, (method, params)) in [("initialize", hello)].iter().chain(requests).enumerate() {
                let request = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
                writer.write_all(format!("{request}\n").as_bytes()).await.unwrap();
                let answer: Value = serde_json::from_str(&lines.next_line().await.unwrap().unwrap()).unwrap();
                assert_eq!(answer["id"], id, "{answer}");
                results.push(answer["result"].clone());
                if id == 0 {
                    writer.write_all(b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n").await.unwrap();
                }
            }
            drop((lines, writer));
            server.await.unwrap();
            results
        })
    }

    #[test]
    fn tools_are_listed_as_reading_and_answer_over_the_protocol() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a.txt"), "one two").unwrap();
        let call = |name: &str, arguments: Value| ("tools/call", json!({ "name": name, "arguments": arguments }));
        let results = ask(
            dir.path().to_owned(),
            &[
                ("tools/list", json!({})),
                call("count_words", json!({ "file": "a.txt" })),
                call("list_files", json!({ "folder": "." })),
                call("read_lines", json!({ "file": "a.txt", "from": 1, "to": 1 })),
                call("count_words", json!({ "file": "../a.txt" })),
            ],
        );
        let [hello, list, count, files, lines, refused] = results.as_slice() else { panic!("{results:?}") };
        assert_eq!(hello["serverInfo"]["name"], "agent-host-project");
        let tools = list["tools"].as_array().unwrap();
        let mut names: Vec<_> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
        names.sort_unstable();
        assert_eq!(names, ["count_words", "list_files", "read_lines"]);
        for tool in tools {
            assert_eq!(tool["annotations"]["readOnlyHint"], true, "{tool}");
            assert!(tool["description"].is_string() && tool["inputSchema"]["required"].is_array(), "{tool}");
        }
        for (result, text) in [(count, "a.txt has 2 words, 1 lines and 7 bytes"), (files, "a.txt"), (lines, "1 one two\n")] {
            assert_eq!(result["content"][0]["text"], text);
            assert_ne!(result["isError"], true);
        }
        assert_eq!(refused["isError"], true);
        assert!(refused["content"][0]["text"].as_str().unwrap().contains("refused"), "{refused}");
    }
}
