# A capture of a session of the Model Context Protocol, as both sides send it.
import anyio, json
from mcp.client.session import ClientSession
from mcp.server.mcpserver import MCPServer, Context
from mcp.shared.memory import create_client_server_memory_streams
from mcp.types import ElicitResult
from pydantic import BaseModel

lines = []


class Tap:
    def __init__(self, inner):
        self.inner = inner

    async def send(self, m):
        lines.append(
            m.message.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_unset=True)
            if hasattr(m, "message")
            else str(m)
        )
        await self.inner.send(m)

    def __getattr__(self, n):
        return getattr(self.inner, n)

    async def __aenter__(self):
        await self.inner.__aenter__()
        return self

    async def __aexit__(self, *a):
        return await self.inner.__aexit__(*a)


server = MCPServer("desk")


@server.tool()
async def weather(city: str, ctx: Context) -> str:
    if city == "Atlantis":
        raise ValueError("no such city")
    await ctx.report_progress(1, 2, "looking")
    await anyio.sleep(0.03 if city == "Oslo" else 0.001)
    return json.dumps({"city": city, "sky": "clear"})


@server.tool()
def book(pages: int) -> str:
    return "page " * pages


class Ok(BaseModel):
    ok: bool


@server.tool()
async def pay(amount: int, ctx: Context) -> str:
    a = await ctx.elicit(f"Pay {amount}?", Ok)
    return a.action


async def answer(ctx, params):
    return (
        ElicitResult(action="accept", content={"ok": True}) if "5" in params.message else ElicitResult(action="decline")
    )


async def main():
    low = server._lowlevel_server
    async with create_client_server_memory_streams() as (c, s), anyio.create_task_group() as tg:
        tg.start_soon(lambda: low.run(s[0], Tap(s[1]), low.create_initialization_options()))
        async with ClientSession(c[0], Tap(c[1]), elicitation_callback=answer) as client:
            await client.initialize()
            await client.list_tools()
            async with anyio.create_task_group() as g:

                async def one(n, a, **k):
                    try:
                        await client.call_tool(n, a, **k)
                    except Exception as e:
                        print(repr(e))

                async def prog(p, t, m):
                    pass

                g.start_soon(lambda: one("weather", {"city": "Oslo"}, progress_callback=prog))
                g.start_soon(one, "weather", {"city": "Rome"})
                g.start_soon(one, "weather", {"city": "Atlantis"})
                g.start_soon(one, "nosuch", {})
            await one("book", {"pages": 20000})
            await one("pay", {"amount": 5})
            await one("pay", {"amount": 6})
        tg.cancel_scope.cancel()


try:
    anyio.run(main)
finally:
    open("mcp-py.jsonl", "w").write("".join(json.dumps(l) + "\n" for l in lines))
