//! Control requests of Claude Code to its client: permissions.

use serde_json::{Map, Value, json};

use super::{Client, calls, schema::CanUseTool};
use crate::{
    acp_schema::PermissionOption,
    client::MAX_JOBS,
    permissions::{self, Asked},
};

/// Rules that Claude Code suggests, of which so many count.
const MAX_SUGGESTIONS: usize = 20;

fn option(id: &str, name: &str) -> PermissionOption {
    PermissionOption { option_id: id.to_owned(), name: name.to_owned(), kind: id.to_owned() }
}

/// Suggestions of Claude Code that hold for this run only: nothing is written into the settings of the workspace.
fn for_this_session(suggestions: Vec<Value>) -> Vec<Value> {
    let rules = suggestions.into_iter().filter(|suggestion| {
        let kind = suggestion.get("type").and_then(Value::as_str);
        matches!(kind, Some("addRules" | "addDirectories"))
    });
    let mut rules: Vec<Value> = rules.take(MAX_SUGGESTIONS).collect();
    for rule in rules.iter_mut().filter_map(Value::as_object_mut) {
        rule.insert("destination".to_owned(), json!("session"));
    }
    rules
}

impl Client<'_> {
    /// Answers a request, at once or in a task of its own where it may take time.
    pub(super) async fn answer_request(&mut self, request_id: String, request: Value) {
        let subtype = request.get("subtype").and_then(Value::as_str).unwrap_or_default().to_owned();
        let problem = if self.jobs.len() >= MAX_JOBS {
            format!("{MAX_JOBS} requests are being answered: wait for one of them")
        } else if subtype == "can_use_tool" {
            match serde_json::from_value(request) {
                Ok(request) => return self.permission(request_id, request).await,
                Err(error) => format!("the request cannot be read: {error}"),
            }
        } else {
            format!("the client has no request `{subtype}`")
        };
        let response = json!({ "subtype": "error", "request_id": request_id, "error": problem });
        self.writer.send(json!({ "type": "control_response", "response": response })).await;
    }

    async fn permission(&mut self, request_id: String, request: CanUseTool) {
        let CanUseTool { tool_name, input, tool_use_id, permission_suggestions, blocked_path } = request;
        let call = calls::begun(tool_use_id.clone(), &tool_name, input.clone());
        let mut intent = self.turn.intent(&call, self.results).await;
        intent.paths.extend(blocked_path.map(Into::into));
        let suggestions = for_this_session(permission_suggestions);
        let mut options = vec![option("allow_once", "Allow")];
        if !suggestions.is_empty() {
            options.push(option("allow_always", "Allow from now on"));
        }
        options.push(option("reject_once", "Decline"));
        let asked = Asked { call_id: tool_use_id, intent, options };
        let writer = self.writer.clone();
        permissions::decide(self.frame, self.results, &mut self.jobs, asked, async move |chosen| {
            let answer = match chosen.as_ref().map(|option| option.option_id.as_str()) {
                Some(id @ ("allow_once" | "allow_always")) => {
                    let mut answer =
                        Map::from_iter([("behavior".to_owned(), json!("allow")), ("updatedInput".to_owned(), input)]);
                    if id == "allow_always" {
                        answer.insert("updatedPermissions".to_owned(), Value::Array(suggestions));
                    }
                    Value::Object(answer)
                }
                _ => json!({ "behavior": "deny", "message": "The permission was refused." }),
            };
            let response = json!({ "subtype": "success", "request_id": request_id, "response": answer });
            writer.send(json!({ "type": "control_response", "response": response })).await;
        })
        .await;
    }
}
