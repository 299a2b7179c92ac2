//! Requests of an agent to its client: permissions, files and commands.

use std::{path::PathBuf, sync::Arc};

use agent_host_config::HarnessPolicy;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{
    Client,
    connection::{RpcError, Writer},
};
use crate::{
    acp_schema::{
        CreateTerminal, INVALID_PARAMS, METHOD_NOT_FOUND, PermissionOption, PermissionRequest, ReadFile, TerminalName, WriteFile,
    },
    permissions::{self, Intent, Verdict},
};

/// Requests that are answered at one time; more are refused.
const MAX_JOBS: usize = 64;

fn read<T: DeserializeOwned>(params: Value) -> Result<T, RpcError> {
    serde_json::from_value(params).map_err(|error| RpcError::new(INVALID_PARAMS, error.to_string()))
}

fn outcome(option: Option<&PermissionOption>) -> Value {
    match option {
        Some(option) => json!({ "outcome": { "outcome": "selected", "optionId": option.option_id } }),
        None => json!({ "outcome": { "outcome": "cancelled" } }),
    }
}

impl Client<'_> {
    /// Answers a request, at once or in a task of its own where it may take time.
    pub(super) async fn answer_request(&mut self, id: Value, method: &str, params: Value) {
        if self.jobs.len() >= MAX_JOBS {
            let problem = RpcError::internal(format!("{MAX_JOBS} requests are being answered: wait for one of them"));
            return self.connection.writer.respond(id, Err(problem)).await;
        }
        let answer = match method {
            "session/request_permission" => match read(params) {
                Ok(request) => return self.permission(id, request).await,
                Err(error) => Err(error),
            },
            "fs/read_text_file" => read(params).and_then(|request| self.read_file(request)),
            "fs/write_text_file" => read(params).and_then(|request| self.write_file(request)),
            "terminal/create" => match read(params) {
                Ok(request) => self.create_terminal(request).await,
                Err(error) => Err(error),
            },
            "terminal/output" => match read::<TerminalName>(params) {
                Ok(name) => self.terminals.report(&name.terminal_id).await,
                Err(error) => Err(error),
            },
            "terminal/kill" => match read::<TerminalName>(params) {
                Ok(name) => self.terminals.kill(&name.terminal_id).await,
                Err(error) => Err(error),
            },
            "terminal/release" => match read::<TerminalName>(params) {
                Ok(name) => self.terminals.release(&name.terminal_id).await,
                Err(error) => Err(error),
            },
            "terminal/wait_for_exit" => match read::<TerminalName>(params) {
                Ok(name) => return self.wait_for_exit(id, name.terminal_id),
                Err(error) => Err(error),
            },
            _ => Err(RpcError::new(METHOD_NOT_FOUND, format!("the client has no method `{method}`"))),
        };
        self.connection.writer.respond(id, answer).await;
    }

    async fn permission(&mut self, id: Value, request: PermissionRequest) {
        let intent = self.turn.intent(&request, self.results).await;
        let writer = self.connection.writer.clone();
        let policy = permissions::judge(&self.frame.config.rules, &intent, &self.frame.workspace.dir);
        let verdict = match policy {
            HarnessPolicy::Allow => Verdict::Granted,
            HarnessPolicy::Deny => Verdict::Refused,
            HarnessPolicy::Ask => return self.ask(id, request.options, intent, writer).await,
        };
        let data = json!({
            "tool_call_id": request.tool_call.tool_call_id,
            "policy": policy,
            "granted": verdict == Verdict::Granted,
        });
        self.results.add("harness.permission", data, None).await;
        writer.respond(id, Ok(outcome(permissions::option(&request.options, verdict)))).await;
    }

    async fn ask(&mut self, id: Value, options: Vec<PermissionOption>, intent: Intent, writer: Writer) {
        // The question comes after the call that it is about.
        self.results.flush().await;
        let run = Arc::clone(&self.frame.run);
        let timeout_ms = self.frame.config.limits.ask_timeout_ms;
        let stop = self.frame.stop.clone();
        self.jobs.spawn(async move {
            let answer = match permissions::ask(&run, &intent, &options, timeout_ms).await {
                Ok(Some(option)) => outcome(Some(option)),
                Ok(None) => outcome(permissions::option(&options, Verdict::Refused)),
                // The turn is cancelled.
                Err(error) => {
                    stop.hear(&error);
                    outcome(None)
                }
            };
            writer.respond(id, Ok(answer)).await;
        });
    }

    /// Refuses what a rule denies, whether the agent has asked for permission or not.
    fn check(&self, kind: &str, paths: Vec<PathBuf>, command: Option<String>) -> Result<(), RpcError> {
        let intent = Intent { kind: kind.to_owned(), paths, command, ..Intent::default() };
        match permissions::judge(&self.frame.config.rules, &intent, &self.frame.workspace.dir) {
            HarnessPolicy::Deny => Err(RpcError::internal("a rule of the operator denies it")),
            HarnessPolicy::Allow | HarnessPolicy::Ask => Ok(()),
        }
    }

    fn read_file(&self, request: ReadFile) -> Result<Value, RpcError> {
        let ReadFile { path, line, limit } = request;
        self.check("read", vec![path.clone()], None)?;
        let text = self.frame.workspace.read_text(&path).map_err(RpcError::internal)?;
        if line.is_none() && limit.is_none() {
            return Ok(json!({ "content": text }));
        }
        let lines = text.split_inclusive('\n').skip(line.unwrap_or(1).saturating_sub(1));
        Ok(json!({ "content": lines.take(limit.unwrap_or(usize::MAX)).collect::<String>() }))
    }

    fn write_file(&self, request: WriteFile) -> Result<Value, RpcError> {
        let WriteFile { path, content } = request;
        self.check("edit", vec![path.clone()], None)?;
        self.frame.workspace.write_text(&path, &content).map_err(RpcError::internal)?;
        Ok(json!({}))
    }

    async fn create_terminal(&self, request: CreateTerminal) -> Result<Value, RpcError> {
        let words = std::iter::once(&request.command).chain(&request.args).map(String::as_str);
        self.check("execute", Vec::new(), Some(words.collect::<Vec<_>>().join(" ")))?;
        let dir = match &request.cwd {
            Some(dir) => self.frame.workspace.folder(dir).map_err(RpcError::internal)?,
            None => self.frame.workspace.dir.clone(),
        };
        self.terminals.create(self.frame.plan.clone(), dir, request).await
    }

    fn wait_for_exit(&mut self, id: Value, terminal: String) {
        let (terminals, writer) = (self.terminals.clone(), self.connection.writer.clone());
        self.jobs.spawn(async move {
            let answer = terminals.wait(&terminal).await;
            writer.respond(id, answer).await;
        });
    }
}
