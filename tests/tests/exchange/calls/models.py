"""Reads lines of JSON, {"model": NAME, "value": ...}, and holds each value against the class of that name.

The classes are written after the documents of the protocol (v1, sections 3 to 8) and of the run ledger (sections 4.1 and 4.2). Where
this host documents more names of an operation or a status than they have, the list here has them too. Members that the documents do
not have are ignored, as pydantic does. A value that a class does not take is printed with its line, and the program ends with 1.
"""

import json
import sys
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """Numbers are numbers and texts are texts: nothing is converted."""

    model_config = ConfigDict(strict=True)


class Capabilities(Strict):
    streaming: bool = False
    tool_calling: bool = False
    knowledge_retrieval: bool = False
    multimodal_input: bool = False
    event_context: bool = True
    platform_api: bool = False
    interrupt: bool = False
    stateful_session: bool = False
    self_managed_context: bool = True


class Permissions(Strict):
    models: list[Literal["invoke", "stream", "rerank", "embed", "count_tokens"]] = []
    tools: list[Literal["detail", "call"]] = []
    knowledge_bases: list[Literal["list", "retrieve"]] = []
    history: list[Literal["page", "search"]] = []
    events: list[Literal["get", "page"]] = []
    artifacts: list[Literal["metadata", "read", "create"]] = []
    storage: list[Literal["plugin", "workspace", "binding"]] = []
    platform_api: list[str] = []


class ContextPolicy(Strict):
    ownership: Literal["self_managed", "host_bootstrap", "hybrid"] = "self_managed"
    bootstrap: Literal["none", "current_event", "recent_tail", "summary_tail"] = "current_event"
    max_inline_events: int = 0
    max_inline_bytes: int = 0
    supports_history_pull: bool = True
    supports_history_search: bool = False
    supports_artifact_pull: bool = True
    owns_compaction: bool = True
    wants_static_context_refs: bool = True


class AgentRunnerManifest(Strict):
    id: str
    name: str
    label: dict[str, str]
    description: dict[str, str] | None = None
    capabilities: Capabilities
    permissions: Permissions
    context: ContextPolicy
    config_schema: list[dict[str, Any]] = []
    metadata: dict[str, Any] = {}


class Trigger(Strict):
    type: str
    source: Literal["platform", "webui", "api", "scheduler", "system", "run", "pipeline_adapter"]
    timestamp: int | None = None


class AgentEventContext(Strict):
    event_id: str
    event_type: str
    event_time: int | None = None
    source: str
    source_event_type: str | None = None
    raw_ref: dict[str, Any] | None = None
    data: dict[str, Any] = {}


class Conversation(Strict):
    conversation_id: str | None = None
    thread_id: str | None = None
    launcher_type: str | None = None
    launcher_id: str | None = None
    bot_id: str | None = None
    workspace_id: str | None = None


class Actor(Strict):
    actor_type: str
    actor_id: str | None = None
    actor_name: str | None = None
    metadata: dict[str, Any] = {}


class Subject(Strict):
    subject_type: str
    subject_id: str | None = None
    data: dict[str, Any] = {}


class ArtifactRef(Strict):
    artifact_id: str
    media_type: str


class Input(Strict):
    text: str | None = None
    contents: list[dict[str, Any]] = []
    attachments: list[ArtifactRef] = []
    message_chain: dict[str, Any] | list[Any] | None = None


class Delivery(Strict):
    surface: str
    reply_target: dict[str, Any] | None = None
    supports_streaming: bool = False
    supports_edit: bool = False
    supports_reaction: bool = False
    max_message_size: int | None = None
    platform_capabilities: dict[str, Any] = {}


class InlinePolicy(Strict):
    mode: Literal["none", "current_event", "recent_tail", "summary_tail"]
    delivered_count: int = 0
    source_total_count: int | None = None
    messages_complete: bool = False
    reason: str | None = None


class AvailableApis(Strict):
    history_page: bool = False
    history_search: bool = False
    event_get: bool = False
    event_page: bool = False
    artifact_metadata: bool = False
    artifact_read: bool = False
    state: bool = False
    storage: bool = False


class ContextAccess(Strict):
    conversation_id: str | None = None
    thread_id: str | None = None
    latest_cursor: str | None = None
    event_seq: int | None = None
    transcript_seq: int | None = None
    has_history_before: bool = False
    inline_policy: InlinePolicy
    available_apis: AvailableApis


class StaticContextRef(Strict):
    version: str
    sha256: str


class Runtime(Strict):
    host: str = "langbot"
    langbot_version: str | None = None
    trace_id: str
    deadline_at: float | None = None
    locale: str | None = None
    timezone: str | None = None
    static_refs: dict[str, StaticContextRef] = {}
    metadata: dict[str, Any] = {}


class State(Strict):
    conversation: dict[str, Any] = {}
    actor: dict[str, Any] = {}
    subject: dict[str, Any] = {}
    runner: dict[str, Any] = {}
    binding: dict[str, Any] = {}


class Resources(Strict):
    models: list[dict[str, Any]] = []
    tools: list[dict[str, Any]] = []
    knowledge_bases: list[dict[str, Any]] = []
    artifacts: list[dict[str, Any]] = []
    storage: dict[str, Any] = {}
    history: dict[str, Any] = {}
    platform_capabilities: dict[str, Any] = {}


class Bootstrap(Strict):
    messages: list[dict[str, Any]] = []
    summary: str | None = None
    artifacts: list[ArtifactRef] = []
    metadata: dict[str, Any] = {}


class AgentRunContext(Strict):
    run_id: str
    trigger: Trigger
    event: AgentEventContext
    conversation: Conversation | None = None
    actor: Actor | None = None
    subject: Subject | None = None
    input: Input
    delivery: Delivery
    resources: Resources
    context: ContextAccess
    state: State
    runtime: Runtime
    config: dict[str, Any] = {}
    bootstrap: Bootstrap | None = None
    adapter: dict[str, Any] | None = None
    metadata: dict[str, Any] = {}


class AgentRunResult(Strict):
    run_id: str
    type: str
    data: dict[str, Any] = {}
    sequence: int | None = None
    timestamp: int | None = None


class AgentAPIError(Strict):
    code: str
    message: str
    retryable: bool = False
    details: dict[str, Any] = {}


class AgentRun(Strict):
    run_id: str
    event_id: str
    agent_id: str
    binding_id: str
    runner_id: str
    conversation_id: str | None = None
    thread_id: str | None = None
    workspace_id: str | None = None
    bot_id: str | None = None
    status: Literal[
        "created", "queued", "claimed", "dispatching", "running", "waiting", "completed", "failed", "cancelled", "timeout"
    ]
    status_reason: str | None = None
    created_at: int
    started_at: int | None = None
    finished_at: int | None = None
    updated_at: int
    deadline_at: int | None = None
    cancel_requested_at: int | None = None
    metadata: dict[str, Any] = {}


class AgentRunEvent(Strict):
    id: str
    run_id: str
    sequence: int
    type: str
    data: dict[str, Any]
    created_at: int
    source: Literal["runner", "host", "executor", "person", "client"]
    artifact_refs: list[ArtifactRef] = []
    metadata: dict[str, Any] = {}


def main():
    faults = 0
    for number, line in enumerate(open(sys.argv[1], encoding="utf-8"), 1):
        entry = json.loads(line)
        try:
            globals()[entry["model"]].model_validate(entry["value"])
        except Exception as error:
            faults += 1
            print(f"line {number}: {entry['model']}: {error}\n  {line[:2000]}")
    sys.exit(1 if faults else 0)


main()
