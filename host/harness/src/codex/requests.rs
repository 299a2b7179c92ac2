//! Requests of Codex to its client: approvals.

use serde_json::{Value, json};

use super::{
    Client,
    schema::{CommandApproval, Elicitation, FileApproval, MorePermissions},
};
use crate::{
    acp_schema::{METHOD_NOT_FOUND, PermissionOption, ToolCall},
    client::MAX_JOBS,
    permissions::{self, Asked, Intent},
    projection::MCP_SERVER,
    rpc::{RpcError, read_params},
    shell::inner,
};

/// An option for people, and the result by which it is answered.
type Choice = (PermissionOption, Value);

fn choice(id: &str, name: impl Into<String>, kind: &str, result: Value) -> Choice {
    (PermissionOption { option_id: id.to_owned(), name: name.into(), kind: kind.to_owned() }, result)
}

fn decision(id: &str, name: impl Into<String>, kind: &str, decision: Value) -> Choice {
    choice(id, name, kind, json!({ "decision": decision }))
}

/// The options of an approval. Codex always takes `accept` and `decline`; more are those that it offers.
fn decisions(offered: Option<&[Value]>) -> Vec<Choice> {
    let mut choices = vec![decision("accept", "Allow", "allow_once", json!("accept"))];
    for (place, offer) in offered.unwrap_or_default().iter().enumerate().take(10) {
        if offer == "acceptForSession" {
            choices.push(decision("acceptForSession", "Allow for this session", "allow_always", offer.clone()));
        }
        if let Some(amendment) = offer.pointer("/acceptWithExecpolicyAmendment/execpolicy_amendment").and_then(Value::as_array) {
            let words = amendment.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" ");
            choices.push(decision(&format!("amend{place}"), format!("Allow `{words}` always"), "allow_always", offer.clone()));
        }
    }
    choices.push(decision("decline", "Decline", "reject_once", json!("decline")));
    choices
}

fn describe(intent: &mut Intent, reason: Option<String>) {
    if let Some(reason) = reason.filter(|reason| !reason.trim().is_empty()) {
        intent.description = format!("{}\n\n{reason}", intent.description).trim().to_owned();
    }
}

impl Client<'_> {
    /// Answers a request, at once or in a task of its own where it may take time.
    pub(super) async fn answer_request(&mut self, id: Value, method: &str, params: Value) {
        if self.jobs.len() >= MAX_JOBS {
            let problem = RpcError::internal(format!("{MAX_JOBS} requests are being answered: wait for one of them"));
            return self.connection.writer.respond(id, Err(problem)).await;
        }
        let outcome = match method {
            "item/commandExecution/requestApproval" => match read_params(params) {
                Ok(request) => return self.approve_command(id, request).await,
                Err(error) => error,
            },
            "item/fileChange/requestApproval" => match read_params(params) {
                Ok(request) => return self.approve_change(id, request).await,
                Err(error) => error,
            },
            "item/permissions/requestApproval" => match read_params(params) {
                Ok(request) => return self.approve_permissions(id, request).await,
                Err(error) => error,
            },
            "mcpServer/elicitation/request" => match read_params(params) {
                Ok(request) => return self.approve_tool(id, request).await,
                Err(error) => error,
            },
            _ => RpcError::new(METHOD_NOT_FOUND, format!("the client has no method `{method}`")),
        };
        self.connection.writer.respond(id, Err(outcome)).await;
    }

    /// Decides about `intent`. Where no option says the answer, or the turn is cancelled, the result is `otherwise`.
    async fn decide(&mut self, id: Value, call_id: String, intent: Intent, choices: Vec<Choice>, otherwise: Value) {
        let writer = self.connection.writer.clone();
        let options = choices.iter().map(|(option, _)| option.clone()).collect();
        let asked = Asked { call_id, intent, options };
        permissions::decide(self.frame, self.results, &mut self.jobs, asked, async move |chosen| {
            let result = chosen.and_then(|chosen| {
                choices.into_iter().find(|(option, _)| option.option_id == chosen.option_id).map(|(_, result)| result)
            });
            writer.respond(id, Ok(result.unwrap_or(otherwise))).await;
        })
        .await;
    }

    async fn approve_command(&mut self, id: Value, request: CommandApproval) {
        let CommandApproval { item_id, kind, approval_id, reason, command, network_approval_context, available_decisions } =
            request;
        let shown = command.as_deref().map(inner).unwrap_or_default();
        let is_command = kind.as_deref().is_none_or(|kind| kind == "command") && command.is_some();
        let mut intent = if let Some(target) = network_approval_context {
            let title = format!("Connect to {}", target.host);
            Intent { kind: "fetch".to_owned(), description: format!("{title}\n{shown}"), title, ..Intent::default() }
        } else if is_command && approval_id.is_none() {
            let call = ToolCall {
                tool_call_id: item_id.clone(),
                title: Some(shown.clone()),
                name: Some("shell".to_owned()),
                kind: Some("execute".to_owned()),
                raw_input: Some(json!({ "command": shown })),
                ..ToolCall::default()
            };
            self.turn.intent(&call, self.results).await
        } else {
            // A part of a command, or input for one that is executed: no rule about beginnings of commands allows that.
            let command = is_command.then(|| shown.clone());
            let kind = if is_command { "execute" } else { "other" };
            Intent { kind: kind.to_owned(), title: shown.clone(), command, description: shown, ..Intent::default() }
        };
        describe(&mut intent, reason);
        let choices = decisions(available_decisions.as_deref());
        self.decide(id, item_id, intent, choices, json!({ "decision": "cancel" })).await;
    }

    async fn approve_change(&mut self, id: Value, request: FileApproval) {
        let FileApproval { item_id, reason, grant_root } = request;
        let call = ToolCall { tool_call_id: item_id.clone(), kind: Some("edit".to_owned()), ..ToolCall::default() };
        let mut intent = self.turn.intent(&call, self.results).await;
        // A change is allowed with all that is asked for together with it.
        intent.paths.extend(grant_root.map(Into::into));
        describe(&mut intent, reason);
        let choices = decisions(Some(&[json!("acceptForSession")]));
        self.decide(id, item_id, intent, choices, json!({ "decision": "cancel" })).await;
    }

    async fn approve_permissions(&mut self, id: Value, request: MorePermissions) {
        let MorePermissions { item_id, reason, permissions } = request;
        let mut intent = Intent {
            kind: "other".to_owned(),
            title: "More permissions".to_owned(),
            description: permissions.to_string(),
            ..Intent::default()
        };
        describe(&mut intent, reason);
        let granted = match permissions {
            Value::Object(all) => all.into_iter().filter(|(_, value)| !value.is_null()).collect(),
            _ => serde_json::Map::new(),
        };
        let refused = json!({ "permissions": {}, "scope": "turn" });
        let choices = vec![
            choice("accept", "Allow", "allow_once", json!({ "permissions": granted, "scope": "turn" })),
            choice("decline", "Decline", "reject_once", refused.clone()),
        ];
        self.decide(id, item_id, intent, choices, refused).await;
    }

    /// A tool of an MCP server that wants a word of the user. The host's own tools do not: the gate of the host judges them.
    async fn approve_tool(&mut self, id: Value, request: Elicitation) {
        let Elicitation { server_name, message, requested_schema } = request;
        let accepted = json!({ "action": "accept", "content": {}, "_meta": null });
        let declined = json!({ "action": "decline", "content": null, "_meta": null });
        let wants_more = requested_schema.get("properties").and_then(Value::as_object).is_some_and(|it| !it.is_empty());
        if wants_more || server_name == MCP_SERVER {
            let answer = if wants_more { declined } else { accepted };
            return self.connection.writer.respond(id, Ok(answer)).await;
        }
        let title = if message.is_empty() { format!("A tool of {server_name}") } else { message };
        let intent = Intent { kind: "other".to_owned(), description: title.clone(), title, ..Intent::default() };
        let choices = vec![
            choice("accept", "Allow", "allow_once", accepted),
            choice("decline", "Decline", "reject_once", declined.clone()),
        ];
        self.decide(id, server_name, intent, choices, declined).await;
    }
}
