# Captures of the OpenAI Agents SDK for Python, of a model that follows a script.
import asyncio, json, dataclasses

from openai.types.responses import *
from agents import Agent, Runner, function_tool, set_tracing_disabled, Model
from openai.types.responses.response_usage import ResponseUsage, InputTokensDetails, OutputTokensDetails
import inspect

set_tracing_disabled(True)


def native(event):
    def plain(v):
        if hasattr(v, "model_dump"):
            return v.model_dump(mode="json", exclude_unset=True)
        return v

    if event.type == "raw_response_event":
        return {"type": event.type, "data": plain(event.data)}
    if event.type == "agent_updated_stream_event":
        return {"type": event.type, "new_agent": {"name": event.new_agent.name}}
    item = event.item
    out = {"type": item.type, "agent": {"name": item.agent.name}, "raw_item": plain(item.raw_item)}
    if hasattr(item, "output"):
        out["output"] = plain(item.output)
    for side in ("source_agent", "target_agent"):
        if hasattr(item, side):
            out[side] = {"name": getattr(item, side).name}
    return {"type": event.type, "name": event.name, "item": out}


def msg(id, text):
    return ResponseOutputMessage(
        id=id,
        type="message",
        role="assistant",
        status="completed",
        content=[ResponseOutputText(type="output_text", text=text, annotations=[])],
    )


def call(id, name, args):
    return ResponseFunctionToolCall(
        id="fc_" + id, call_id=id, type="function_call", name=name, arguments=json.dumps(args)
    )


class Scripted(Model):
    def __init__(self, *turns):
        self.turns, self.n = list(turns), 0

    async def get_response(self, *a, **k):
        raise NotImplementedError

    async def stream_response(self, *a, **k):
        output = self.turns[self.n]
        self.n += 1
        s = 0

        def resp(status, out, usage=None):
            return Response(
                id=f"resp_{self.n}",
                created_at=0,
                model="scripted-1",
                object="response",
                output=out,
                tool_choice="none",
                tools=[],
                parallel_tool_calls=True,
                status=status,
                usage=usage,
            )

        yield ResponseCreatedEvent(type="response.created", sequence_number=s, response=resp("in_progress", []))
        for i, item in enumerate(output):
            s += 1
            yield ResponseOutputItemAddedEvent(
                type="response.output_item.added", output_index=i, item=item, sequence_number=s
            )
            if item.type == "message":
                t = item.content[0].text
                for k in range(0, len(t), 6):
                    s += 1
                    yield ResponseTextDeltaEvent(
                        type="response.output_text.delta",
                        item_id=item.id,
                        output_index=i,
                        content_index=0,
                        delta=t[k : k + 6],
                        logprobs=[],
                        sequence_number=s,
                    )
                s += 1
                yield ResponseTextDoneEvent(
                    type="response.output_text.done",
                    item_id=item.id,
                    output_index=i,
                    content_index=0,
                    text=t,
                    logprobs=[],
                    sequence_number=s,
                )
            s += 1
            yield ResponseOutputItemDoneEvent(
                type="response.output_item.done", output_index=i, item=item, sequence_number=s
            )
        usage = ResponseUsage(
            input_tokens=11,
            output_tokens=7,
            total_tokens=18,
            input_tokens_details=InputTokensDetails(cached_tokens=0, cache_write_tokens=0),
            output_tokens_details=OutputTokensDetails(reasoning_tokens=2),
        )
        yield ResponseCompletedEvent(
            type="response.completed", sequence_number=s + 1, response=resp("completed", output, usage)
        )


@function_tool
async def weather(city: str) -> str:
    if city == "Atlantis":
        raise ValueError("no such city")
    await asyncio.sleep(0.03 if city == "Oslo" else 0.001)
    return json.dumps({"city": city, "sky": "clear"})


@function_tool
def book(pages: int) -> str:
    return "page " * pages


@function_tool(needs_approval=True)
def pay(amount: int) -> str:
    return f"paid {amount}"


def save(name, events):
    open(f"{name}.jsonl", "w").write("".join(json.dumps(native(e)) + "\n" for e in events))


async def main():
    clerk = Agent(name="Clerk", model=Scripted([msg("m2", "Clear in both.")]))
    desk = Agent(
        name="Desk",
        model=Scripted(
            [
                msg("m1", "Let me look."),
                call("c1", "weather", {"city": "Oslo"}),
                call("c2", "weather", {"city": "Rome"}),
                call("c3", "weather", {"city": "Atlantis"}),
                call("c5", "book", {"pages": 20000}),
            ],
            [call("h1", "transfer_to_clerk", {})],
        ),
        tools=[weather, book],
        handoffs=[clerk],
    )
    r = Runner.run_streamed(desk, "go")
    ev = [e async for e in r.stream_events()]
    save("oa-py", ev)
    desk = Agent(
        name="Desk",
        model=Scripted([call("p1", "pay", {"amount": 5}), call("p2", "pay", {"amount": 6})], [msg("m3", "Done.")]),
        tools=[pay],
    )
    r = Runner.run_streamed(desk, "go")
    ev = [e async for e in r.stream_events()]
    state = r.to_state()
    a, b = r.interruptions
    state.approve(a)
    state.reject(b)
    r = Runner.run_streamed(desk, state)
    ev += [e async for e in r.stream_events()]
    save("oa-py-approval", ev)


asyncio.run(main())
