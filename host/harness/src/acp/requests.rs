//! Requests of an agent to its client: permissions, files and commands.

use std::path::PathBuf;

use agent_host_config::HarnessPolicy;
use serde_json::{Value, json};

use super::Client;
use crate::{
    acp_schema::{CreateTerminal, METHOD_NOT_FOUND, PermissionOption, PermissionRequest, ReadFile, TerminalName, WriteFile},
    client::MAX_JOBS,
    permissions::{self, Asked, Intent},
    rpc::{RpcError, read_params as read},
    shell,
};

fn outcome(option: Option<PermissionOption>) -> Value {
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
        let PermissionRequest { tool_call, options } = request;
        let intent = self.turn.intent(&tool_call, self.results).await;
        let asked = Asked { call_id: tool_call.tool_call_id, intent, options };
        let writer = self.connection.writer.clone();
        permissions::decide(self.frame, self.results, &mut self.jobs, asked, async move |option| {
            writer.respond(id, Ok(outcome(option))).await;
        })
        .await;
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
        self.check("execute", Vec::new(), Some(shell::line(words)))?;
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
