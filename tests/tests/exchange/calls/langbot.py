"""An executor that is made of the released classes of LangBot (langbot-plugin): it reads what it claimed, calls the host through the
proxy of the SDK, appends results that the SDK has made, and reads what the host gives out. Any fault ends it with a traceback.

    langbot.py SERVER CLAIM       # CLAIM: a file with the answer to a claim, in the dialect
"""

import asyncio
import json
import sys
import urllib.error
import urllib.request

from langbot_plugin.api.entities.builtin.provider.message import ContentElement, LLMTokenUsage, Message, MessageChunk
from langbot_plugin.api.entities.builtin.resource.tool import LLMTool
from langbot_plugin.api.entities.builtin.rag.context import RetrievalResultEntry
from langbot_plugin.api.entities.builtin.runner import (
    AgentAPIError,
    AgentRun,
    AgentRunEvent,
    RunnerContext,
    RunnerManifest,
    RunnerResult,
)
from langbot_plugin.api.entities.builtin.runner import page_results, run_ledger, runtime_registry
from langbot_plugin.api.entities.builtin.runner import result as results
from langbot_plugin.api.proxies.runner.api import RunnerAPIProxy
from langbot_plugin.entities.io.errors import ActionCallError

SERVER, CLAIM = sys.argv[1], json.load(open(sys.argv[2], encoding="utf-8"))
TOKEN = CLAIM["lease_token"]
# Runs of the same conversation that have ended, newest first.
EARLIER = CLAIM["earlier"]
PATH = f"/api/v1/runs/{CLAIM['run']['run_id']}"


def request(method, path, body=None, token=None, header=False):
    """The status and the answer of a request in the dialect, which is named in the query or in the header."""
    headers = {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    if header:
        headers["Agent-Dialect"] = "langbot-4.11"
    else:
        path += ("&" if "?" in path else "?") + "dialect=langbot-4.11"
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(SERVER + path, data=data, headers=headers, method=method)
    try:
        with urllib.request.urlopen(asked, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


class Handler:
    """The connection of the SDK's proxy to the host: an action is a call of its name."""

    async def call_action(self, action, data, timeout=15.0):
        status, text = await asyncio.to_thread(request, "POST", f"{PATH}/calls/{action.value}", data, TOKEN)
        answer = json.loads(text)
        if status != 200:
            AgentAPIError.model_validate(answer)
            raise ActionCallError(answer["message"], answer)
        return answer

    async def call_action_generator(self, action, data, timeout=15.0):
        status, text = await asyncio.to_thread(request, "POST", f"{PATH}/calls/{action.value}", data, TOKEN, True)
        assert status == 200, text
        for line in text.splitlines():
            if line.startswith("data:"):
                yield json.loads(line[5:])


async def refused(call, code):
    try:
        await call
    except Exception as error:
        assert error.error.code == code, (error.error, code)
        return
    raise AssertionError(f"not refused with {code}")


async def run_pages(api, ctx):
    """The runs of the conversation and the events of a run, page by page in both directions."""
    whole = await api.run_list(limit=500)
    assert [run.run_id for run in whole.items] == EARLIER and whole.total_count == len(EARLIER), whole
    for limit in (1, 3):
        runs, cursor = [], None
        while True:
            page = await api.run_list(before_cursor=cursor, limit=limit)
            assert len(page.items) <= limit, page
            runs += [run.run_id for run in page.items]
            cursor = page.next_cursor
            if not page.has_more:
                break
        assert runs == EARLIER, (limit, runs, EARLIER)
    failed = await api.run_list(conversation_id=ctx.conversation.conversation_id, statuses=["failed", "claimed"])
    assert [(run.run_id, run.status) for run in failed.items] == [(EARLIER[1], "failed")], failed
    first = await api.run_list(statuses=["completed"], limit=1)
    assert ([run.run_id for run in first.items], first.has_more) == (EARLIER[:1], True), first
    assert (await api.run_list(statuses=["running"])).items == []
    await refused(api.run_list(statuses=["sleeping"]), "invalid_argument")
    await refused(api.run_list(before_cursor="7"), "invalid_argument")
    await refused(api.run_list(conversation_id="another"), "unauthorized")

    for run in (None, EARLIER[0]):
        forward = (await api.run_events_page(run, limit=3)).items
        assert [event.sequence for event in forward] == [1, 2, 3][: len(forward)] and forward, forward
        last = (await api.run_events_page(run, direction="backward", limit=1)).items[0].sequence
        numbers, cursor = [], None
        while True:
            page = await api.run_events_page(run, before_cursor=cursor, direction="backward", limit=2)
            numbers += [event.sequence for event in page.items]
            cursor = page.next_cursor
            if not page.has_more:
                break
        # Calls of a run that goes on are events of it.
        assert numbers == list(range(numbers[0], 0, -1)) and numbers[0] >= last, (numbers, last)
    # Numbers of events are the cursors of LangBot's host.
    page = await api.run_events_page(before_cursor="3", after_cursor="1", direction="backward")
    assert [event.sequence for event in page.items] == [2], page
    page = await api.run_events_page(after_cursor="1", limit=1)
    assert [event.sequence for event in page.items] == [2] and page.prev_cursor, page
    again = await api.run_events_page(before_cursor=page.prev_cursor)
    assert [event.sequence for event in again.items] == [1], again
    await refused(api.run_events_page(direction="sideways"), "invalid_argument")
    await refused(api.run_events_page("01890000-0000-7000-8000-000000000000"), "not_found")


async def calls(ctx):
    api = RunnerAPIProxy(ctx, Handler())
    said = [Message(role="user", content=[ContentElement.from_text("hello"), ContentElement.from_image_url("https://a.example/b.png")])]
    answered = await api.invoke_llm_with_usage("a-chat", [Message(role="user", content="hello")])
    assert answered.message.role == "assistant" and "scripted" in answered.message.content, answered
    assert answered.usage is None or answered.usage.prompt_tokens >= 0
    counted = [Message(role="user", content="hello you")]
    plain = await api.count_tokens("a-chat", counted)
    schema = {"type": "object", "properties": {"city": {"type": "string", "description": "Name of the city."}}}
    weather = LLMTool(name="weather", human_desc="Weather", description="The weather of a city.", parameters=schema, func=print)
    one, two = [await api.count_tokens("a-chat", counted, funcs=[weather] * number) for number in (1, 2)]
    assert 0 < plain and 10 < one - plain and 10 < two - one <= one - plain, (plain, one, two)
    events = [event async for event in api.invoke_llm_stream_events("a-chat", [Message(role="user", content="hello")])]
    text = "".join(event.chunk.content for event in events if event.chunk and event.chunk.content)
    assert "scripted" in text and events[-1].chunk.is_final and events[-1].chunk.all_content == text, (text, events[-1])
    assert len((await api.invoke_embedding("a-embed", ["x", "y"]))) == 2
    ranked = await api.invoke_rerank("a-rerank", "q", ["one", "two"], top_k=1)
    assert len(ranked) == 1 and {"index", "relevance_score"} <= ranked[0].keys(), ranked
    tool = await api.get_tool_detail("a__add")
    assert tool["name"] == "a__add" and tool["parameters"]["type"] == "object", tool
    outcome = await api.call_tool("a__add", {"a": 1, "b": 2})
    assert outcome["is_error"] is False and outcome["content"][0]["text"] == "3", outcome
    for entry in await api.retrieve_knowledge("a-base", "hello", top_k=3):
        RetrievalResultEntry.model_validate(entry)
    assert await api.get_prompt() == [{"role": "system", "content": "Be brief."}]
    assert (await api.get_langbot_version()).startswith("4.11")
    page = await api.history_page(limit=10)
    assert "hello from LangBot" in [item.content for item in page.items if item.item_type == "message"], page
    assert {"tool-call", "tool-result"} <= {item.item_type for item in page.items}, page
    assert (await api.history_search("hello", top_k=3)).query == "hello"
    event = await api.event_get(ctx.event.event_id)
    assert (event.event_id, event.source) == (ctx.event.event_id, "host_adapter"), event
    assert len((await api.event_page(limit=5)).items) >= 1
    assert (await api.steering_pull(mode="one-at-a-time")).items == []
    assert (await api.state_set("conversation", "external.session_id", {"a": 1}))["success"]
    assert (await api.state_get("conversation", "external.session_id"))["value"] == {"a": 1}
    assert "external.session_id" in (await api.state_list("conversation", "external."))["keys"]
    await api.state_delete("conversation", "external.session_id")
    assert (await api.state_get("conversation", "external.session_id"))["value"] is None
    await api.set_plugin_storage("k", b"bytes")
    assert await api.get_plugin_storage("k") == b"bytes" and await api.get_plugin_storage_keys() == ["k"]
    await api.delete_plugin_storage("k")
    await refused(api.get_plugin_storage("k"), "not_found")
    await api.set_workspace_storage("k", b"w")
    assert await api.get_workspace_storage_keys() == ["k"]
    own = await api.run_get()
    assert (own.run_id, own.status) == (ctx.run_id, "running"), own
    await run_pages(api, ctx)
    assert isinstance(await api.call_platform_api("bot", "message.edit", {"text": "x"}), (dict, type(None)))
    # The host refuses what the client side lets pass.
    handler = Handler()
    for name, arguments, code in [
        ("invoke_llm", {"llm_model_uuid": "b-chat", "messages": [m.model_dump() for m in said]}, "unauthorized"),
        ("invoke_llm", {"llm_model_uuid": "a-chat"}, "invalid_argument"),
        ("event_page", {"conversation_id": "another"}, "unauthorized"),
        ("state_get", {"run_id": "another", "scope": "runner", "key": "k"}, "invalid_argument"),
        ("run_get", {"target_run_id": "01890000-0000-7000-8000-000000000000"}, "not_found"),
        ("box_of_chocolates", {}, "not_found"),
    ]:
        action = type("Action", (), {"value": name})
        try:
            await handler.call_action(action, arguments)
        except ActionCallError as error:
            assert error.data["code"] == code, (name, error.data)
        else:
            raise AssertionError(f"{name} was not refused")


def append(result, number):
    result.sequence = number
    body = {"target_run_id": result.run_id, "result": result.model_dump(mode="json"), "sequence": number}
    status, text = request("POST", PATH + "/append", body, TOKEN)
    assert status == 200, text
    event = AgentRunEvent.model_validate_json(text)
    assert (event.sequence, event.type) == (number, result.type), event


PAYLOADS = {
    "message.delta": results.MessageDeltaPayload,
    "message.completed": results.MessageCompletedPayload,
    "tool.call.started": results.ToolCallStartedPayload,
    "tool.call.completed": results.ToolCallCompletedPayload,
    "state.updated": results.StateUpdatedPayload,
    "action.requested": results.ActionRequestedPayload,
    "run.completed": results.RunCompletedPayload,
    "run.failed": results.RunFailedPayload,
    "processor.log": results.ProcessorLogPayload,
}


def main():
    AgentRun.model_validate(CLAIM["run"], strict=True)
    ctx = RunnerContext.model_validate(CLAIM["context"])
    assert ctx.trigger.source == "host_adapter" and ctx.input.text == "hello from LangBot", ctx
    assert ctx.conversation.session_id == "person_42" and ctx.conversation.sender_id == "42", ctx.conversation
    assert ctx.variables == {"city": "Berlin"} and ctx.adapter.extra["pipeline_uuid"] == "5f0c", ctx.adapter
    assert ctx.runtime.deadline_at > 1_700_000_000 and ctx.runtime.deadline_at < 10_000_000_000, ctx.runtime
    assert "invoke" in ctx.resources.models[0].operations and ctx.context.available_apis.history_page, ctx.resources
    asyncio.run(calls(ctx))

    run, usage = ctx.run_id, LLMTokenUsage(prompt_tokens=5, completion_tokens=2, total_tokens=7)
    said = Message(role="assistant", content=[ContentElement.from_text("here "), ContentElement.from_file_url("https://a.example/f", "f")])
    sent = [
        RunnerResult.message_delta(run, MessageChunk(role="assistant", content="he", resp_message_id="m1")),
        RunnerResult.message_delta(run, MessageChunk(role="assistant", content="re", resp_message_id="m1", is_final=True)),
        RunnerResult.message_completed(run, said),
        RunnerResult.tool_call_started(run, "c1", "own_tool", {"x": 1}),
        RunnerResult.tool_call_completed(run, "c1", "own_tool", {"answer": 42}),
        RunnerResult.state_updated(run, "external.count", 3, scope="conversation"),
        RunnerResult(run_id=run, type="processor.log", data={"text": "a line", "level": "warning"}),
        RunnerResult(run_id=run, type="acme.progress", data={"part": 0.5}),
    ]
    for number, result in enumerate(sent, 1):
        append(result, number)
    last = RunnerResult.run_completed(run, message=Message(role="assistant", content="done"), usage=usage)
    append(last, len(sent) + 1)

    status, text = request("GET", PATH + "/events?limit=100")
    page = run_ledger.RunEventPage.model_validate_json(text)
    kept = [event for event in page.items if event.type in PAYLOADS]
    for event in kept:
        PAYLOADS[event.type].model_validate(event.data)
        RunnerResult.model_validate(event.model_dump())
    types = [event.type for event in kept]
    assert set(PAYLOADS) - set(types) <= {"run.failed", "action.requested"}, types
    by_type = {event.type: event for event in kept}
    assert by_type["message.completed"].data["message"]["content"][1]["file_url"] == "https://a.example/f", by_type
    assert by_type["tool.call.completed"].data["result"] == {"content": '{"answer":42}'}, by_type["tool.call.completed"]
    assert by_type["run.completed"].usage["prompt_tokens"] == 5, by_type["run.completed"]
    assert all(1_700_000_000 < event.created_at < 10_000_000_000 for event in page.items)

    asked = urllib.request.Request(SERVER + PATH + "/events?dialect=langbot-4.11", headers={"Accept": "text/event-stream"})
    with urllib.request.urlopen(asked, timeout=30) as stream:
        streamed = [json.loads(line[5:]) for line in stream.read().decode().splitlines() if line.startswith("data:")]
    assert [RunnerResult.model_validate(event).type for event in streamed] == [event.type for event in page.items]

    for path, model in [
        (PATH, AgentRun),
        (PATH + "/context", RunnerContext),
        ("/api/v1/runs", run_ledger.RunPage),
        ("/api/v1/events", page_results.EventPage),
        (f"/api/v1/events/{ctx.event.event_id}", page_results.AgentEventRecord),
        ("/api/v1/executors", runtime_registry.RuntimePage),
    ]:
        status, text = request("GET", path, header=True)
        assert status == 200, (path, text)
        model.model_validate_json(text)
    status, text = request("GET", PATH)
    ended = AgentRun.model_validate_json(text)
    assert ended.status == "completed" and ended.queue_name and ended.finished_at >= ended.created_at, ended
    status, text = request("GET", "/api/v1/runners")
    manifests = [RunnerManifest.model_validate(item) for item in json.loads(text)["items"]]
    assert {manifest.id for manifest in manifests} >= {"plugin:test/outside/default"}, manifests
    for path, body, says in [
        ("/api/v1/statistics", None, "dialect"),
        ("/api/v1/runs?dialect=langbot-5", None, "langbot-4.11"),
    ]:
        status, text = request("GET", path, body, header="dialect=" in path)
        assert status == 400 and says in text, (path, text)
    print(f"{len(page.items)} events")


main()
