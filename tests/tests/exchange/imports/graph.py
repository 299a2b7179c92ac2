# A capture of LangGraph for Python, of a model that follows a script.
import json
from langgraph.graph import StateGraph, START, END, MessagesState
from langgraph.prebuilt import ToolNode
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import interrupt, Command
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import tool


def plain(v):
    if hasattr(v, "model_dump"):
        return v.model_dump(mode="json")
    if hasattr(v, "_asdict"):
        return plain(v._asdict())
    if hasattr(v, "__dataclass_fields__"):
        return {k: plain(getattr(v, k)) for k in v.__dataclass_fields__}
    if isinstance(v, dict):
        return {k: plain(x) for k, x in v.items()}
    if isinstance(v, (list, tuple)):
        return [plain(x) for x in v]
    if isinstance(v, BaseException):
        return repr(v)
    return v


@tool
def weather(city: str) -> dict:
    "weather"
    if city == "Atlantis":
        raise ValueError("no such city")
    return {"city": city, "sky": "clear"}


@tool
def book(pages: int) -> str:
    "book"
    return "page " * pages


calls = lambda *cs: [{"id": i, "name": n, "args": a} for i, n, a in cs]
class Scripted(BaseChatModel):
    """Says its turns one after the other, in pieces."""

    turns: list

    @property
    def _llm_type(self):
        return "scripted"

    def _generate(self, messages, stop=None, run_manager=None, **more):
        return ChatResult(generations=[ChatGeneration(message=self.turns.pop(0))])

    def _stream(self, messages, stop=None, run_manager=None, **more):
        turn = self.turns.pop(0)
        for at in range(0, len(turn.content), 6):
            yield ChatGenerationChunk(message=AIMessageChunk(id=turn.id, content=turn.content[at : at + 6]))
        calls = [
            {"index": index, "id": call["id"], "name": call["name"], "args": json.dumps(call["args"])}
            for index, call in enumerate(turn.tool_calls)
        ]
        end = AIMessageChunk(id=turn.id, content="", usage_metadata=turn.usage_metadata, tool_call_chunks=calls)
        yield ChatGenerationChunk(message=end)


usage = {"input_tokens": 11, "output_tokens": 7, "total_tokens": 18}
model = Scripted(
    turns=[
        AIMessage(
            id="m1",
            content="Let me look.",
            tool_calls=calls(
                ("c1", "weather", {"city": "Oslo"}),
                ("c2", "weather", {"city": "Rome"}),
                ("c3", "weather", {"city": "Atlantis"}),
                ("c5", "book", {"pages": 20000}),
            ),
            usage_metadata=usage,
        ),
        AIMessage(id="m2", content="Clear in both.", usage_metadata=usage),
    ]
)


def agent(s):
    return {"messages": [model.invoke(s["messages"])]}


def approve(s):
    answer = interrupt({"question": "Send it?", "amount": 5})
    return {"messages": [AIMessage(id="m9", content=f"answered {answer}")]}


def route(s):
    return "tools" if getattr(s["messages"][-1], "tool_calls", None) else "approve"


g = StateGraph(MessagesState)
g.add_node("agent", agent)
g.add_node("tools", ToolNode([weather, book], handle_tool_errors=True))
g.add_node("approve", approve)
g.add_edge(START, "agent")
g.add_conditional_edges("agent", route, ["tools", "approve"])
g.add_edge("tools", "agent")
g.add_edge("approve", END)
app = g.compile(checkpointer=InMemorySaver())
cfg = {"configurable": {"thread_id": "t"}}
modes = ["tasks", "messages", "updates", "custom"]


def save(name, rows):
    open(f"{name}.jsonl", "w").write("".join(json.dumps(plain(r)) + "\n" for r in rows))


rows = list(app.stream({"messages": [HumanMessage("go", id="u1")]}, cfg, stream_mode=modes))
rows += list(app.stream(Command(resume="yes"), cfg, stream_mode=modes))
save("lg-py", rows)
