//! The capabilities of an agent, in the form of AG-UI 1.0.

use agent_host_protocol::manifest::{ModelOperation, StateScope, ToolOperation};
use agent_host_runs::Agent;
use serde_json::{Value, json};

/// The capabilities of an agent. AG-UI defines their shape, but no request for them.
pub(crate) fn of(agent: &Agent) -> Value {
    let Agent { capabilities, permissions, .. } = agent;
    let state = permissions.state.contains(&StateScope::Conversation);
    let keeps = !permissions.state.is_empty() || !permissions.storage.is_empty();
    let calls = permissions.tools.contains(&ToolOperation::Call);
    let thinks = [ModelOperation::Invoke, ModelOperation::Stream].iter().any(|operation| permissions.models.contains(operation));
    let asks = permissions.interactions || !permissions.platform_api.is_empty();
    let media = capabilities.multimodal_input;
    json!({
        "identity": {
            "name": agent.name,
            "description": agent.description.clone().unwrap_or_default(),
            "type": agent.runner_id.to_string(),
            "provider": "agent-host",
            "version": env!("CARGO_PKG_VERSION"),
        },
        "transport": {
            "streaming": true,
            "websocket": false,
            "httpBinary": true,
            "pushNotifications": false,
            "resumable": true,
        },
        "tools": { "supported": capabilities.tool_calling, "clientProvided": agent.client_tools, "parallelCalls": calls },
        "output": { "structuredOutput": false },
        "state": { "snapshots": state, "deltas": state, "memory": keeps, "persistentState": keeps },
        "multiAgent": { "supported": !permissions.runs.is_empty(), "delegation": !permissions.runs.is_empty(), "handoffs": false },
        "reasoning": { "supported": thinks, "streaming": thinks && capabilities.streaming, "encrypted": false },
        "multimodal": { "input": { "image": media, "audio": media, "video": media, "pdf": media, "file": media } },
        "execution": { "codeExecution": false, "sandboxed": true },
        "humanInTheLoop": {
            "supported": asks,
            "approvals": !permissions.platform_api.is_empty(),
            "interventions": false,
            "interrupts": asks,
            "approveWithEdits": false,
        },
        "custom": {
            "agentHost": {
                "connect": "connect",
                "threads": "threads/{threadId}",
                "events": "threads/{threadId}/runs/{runId}/events",
                "cancel": "threads/{threadId}/runs/{runId}/cancel",
                "cursor": "forwardedProps.agentHost.cursor",
            },
        },
    })
}
