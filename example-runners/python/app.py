"""A runner in Python: repeats what it is told, word by word, and counts the turns of the conversation."""

import json

from componentize_py_types import Err
from wit_world import exports
from wit_world.exports.runner import RunCompletion, RunFailure
from wit_world.imports import log, results, state
from wit_world.imports.manifest import (
    BootstrapMode, Capabilities, ContextOwnership, ContextPolicy, Permissions, RunnerManifest, StateScope,
)
from wit_world.imports.results import CompletedMessage, MessageChunk, RunResult_MessageCompleted, RunResult_MessageDelta
from wit_world.imports.types import ContentPart_Text, Message, Role

MESSAGE = "m0"


class Runner(exports.Runner):
    def list_runners(self):
        return [
            RunnerManifest(
                name="default",
                author="acme",
                plugin="python",
                version="1.0.0",
                label=[("en", "Python")],
                description=[("en", "Repeats what it is told, and counts.")],
                # What the runner can do, and what it may be granted: each import of the world is declared here.
                capabilities=Capabilities(
                    streaming=True, tool_calling=False, knowledge_retrieval=False, multimodal_input=False, event_context=False,
                    platform_api=False, interrupt=False, steering=False, stateful_session=False, self_managed_context=True,
                ),
                permissions=Permissions(
                    models=[], tools=[], knowledge_bases=[], history=[], events=[], artifacts=[], state=[StateScope.CONVERSATION],
                    storage=[], runs=[], platform_actions=[], interactions=False, http_hosts=[],
                ),
                context=ContextPolicy(
                    ownership=ContextOwnership.SELF_MANAGED, bootstrap=BootstrapMode.NONE, max_inline_events=0, max_inline_bytes=0,
                    supports_history_pull=False, supports_history_search=False, supports_artifact_pull=False,
                    owns_compaction=False, wants_static_context_refs=False,
                ),
                config_schema=[],
                metadata="{}",
            )
        ]

    def run(self, runner_name, context):
        if not context.input.text:
            raise Err(RunFailure(code="acme.no_text", message="say something", retryable=False, details=None))
        turn = json.loads(state.get(StateScope.CONVERSATION, "turns") or "0") + 1
        state.set(StateScope.CONVERSATION, "turns", json.dumps(turn))
        text = f"{turn}: {context.input.text}"
        for word in text.split(" "):
            results.emit([RunResult_MessageDelta(MessageChunk(MESSAGE, Role.ASSISTANT, word + " "))])
        said = Message(role=Role.ASSISTANT, content=[ContentPart_Text(text)], name=None, tool_calls=[], tool_call_id=None)
        results.emit([RunResult_MessageCompleted(CompletedMessage(MESSAGE, said))])
        log.write(log.Level.INFO, f"turn {turn}")
        return RunCompletion(finish_reason="stop", message=None, usage=None, metadata=None)
