#!/usr/bin/env python3
"""A scripted agent of the Agent Client Protocol. The text of the prompt says what it does, one order a line.

Standard library only. It keeps its sessions below HOME, as coding agents do.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

HOME = os.environ["HOME"]
pending = {}
lock = threading.Lock()
cancelled = threading.Event()
unreading = threading.Event()
servers = []
numbers = iter(range(1, 1 << 30))


def send(message):
    with lock:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def ask(method, params):
    """A request to the client; gives its response."""
    number = next(numbers)
    done = threading.Event()
    pending[number] = [done, None]
    send({"id": number, "method": method, "params": params})
    done.wait()
    return pending.pop(number)[1]


def update(session, update_kind, **more):
    send({"method": "session/update", "params": {"sessionId": session, "update": {"sessionUpdate": update_kind, **more}}})


def say(session, text, kind="agent_message_chunk"):
    update(session, kind, content={"type": "text", "text": text})


def outcome(response):
    return json.dumps(response.get("result", response.get("error")), sort_keys=True)


def mcp(tool, arguments):
    """Calls a tool of the first MCP server that the client has given: streamable HTTP, without a library."""
    server = servers[0]
    headers = {header["name"]: header["value"] for header in server["headers"]}
    headers |= {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}

    def post(method, params, number=None):
        body = {"jsonrpc": "2.0", "method": method, "params": params, **({} if number is None else {"id": number})}
        request = urllib.request.Request(server["url"], json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            if session := answer.headers.get("Mcp-Session-Id"):
                headers["Mcp-Session-Id"] = session
            for line in answer:
                data = line.decode().removeprefix("data:").strip()
                message = json.loads(data) if data.startswith("{") else {}
                if number is not None and message.get("id") == number:
                    return message

    client = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "peer", "version": "1"}}
    begun = post("initialize", client, 1)
    headers["MCP-Protocol-Version"] = begun["result"]["protocolVersion"]
    post("notifications/initialized", {})
    names = sorted(tool["name"] for tool in post("tools/list", {}, 2)["result"]["tools"])
    return {"tools": names, "called": post("tools/call", {"name": tool, "arguments": arguments}, 3)}


def obey(session, order):
    word, _, rest = order.partition(" ")
    if word == "say":
        say(session, rest)
    elif word == "spell":
        for character in rest:
            say(session, character)
    elif word == "think":
        say(session, rest, "agent_thought_chunk")
    elif word == "plan":
        steps = [{"content": step, "priority": "low", "status": "pending"} for step in rest.split(",")]
        update(session, "plan", entries=steps)
    elif word == "tool":
        update(session, "tool_call", toolCallId="t1", title="List files", kind="execute", status="pending", rawInput={})
        update(session, "tool_call_update", toolCallId="t1", rawInput={"command": rest}, status="in_progress")
        content = [{"type": "content", "content": {"type": "text", "text": "out"}}]
        content.append({"type": "diff", "path": "/w/a", "oldText": "x", "newText": "y"})
        update(session, "tool_call_update", toolCallId="t1", status="completed", content=content)
    elif word == "big":
        update(session, "tool_call", toolCallId="b1", title="Big", kind="read", status="in_progress", rawInput={"path": "x"})
        content = [{"type": "content", "content": {"type": "text", "text": "x" * int(rest)}}]
        update(session, "tool_call_update", toolCallId="b1", status="completed", content=content)
    elif word == "permission":
        kind, _, command = rest.partition(" ")
        call = {"toolCallId": "p1", "title": command, "kind": kind, "rawInput": {"command": command}}
        options = [{"optionId": name, "name": name.title(), "kind": name} for name in ("allow_once", "allow_always", "reject_once")]
        response = ask("session/request_permission", {"sessionId": session, "toolCall": call, "options": options})
        say(session, outcome(response))
    elif word == "read":
        say(session, outcome(ask("fs/read_text_file", {"sessionId": session, "path": rest})))
    elif word == "write":
        path, _, text = rest.partition(" ")
        say(session, outcome(ask("fs/write_text_file", {"sessionId": session, "path": path, "content": text})))
    elif word == "terminal":
        command, *args = rest.split(" ")
        created = ask("terminal/create", {"sessionId": session, "command": command, "args": args})
        if "error" in created:
            return say(session, outcome(created))
        terminal = {"sessionId": session, "terminalId": created["result"]["terminalId"]}
        ask("terminal/wait_for_exit", terminal)
        say(session, outcome(ask("terminal/output", terminal)))
        ask("terminal/release", terminal)
    elif word == "cat":  # by itself, past the client
        try:
            with open(rest) as file:
                say(session, file.read())
        except OSError as error:
            say(session, f"{type(error).__name__}")
    elif word == "put":  # by itself, past the client
        path, _, text = rest.partition(" ")
        try:
            with open(path, "w") as file:
                file.write(text)
            say(session, "written")
        except OSError as error:
            say(session, f"{type(error).__name__}")
    elif word == "link":
        target, _, path = rest.partition(" ")
        try:
            os.link(target, path)
            say(session, "linked")
        except OSError as error:
            say(session, f"{type(error).__name__}")
    elif word == "connect":
        try:
            socket.create_connection(("127.0.0.1", int(rest)), timeout=5).close()
            say(session, "connected")
        except OSError as error:
            say(session, f"{type(error).__name__}")
    elif word == "dial":  # any address
        address, port = rest.split(" ")
        try:
            socket.create_connection((address, int(port)), timeout=5).close()
            say(session, "connected")
        except OSError as error:
            say(session, f"{type(error).__name__}")
    elif word in ("fetch", "door"):  # as programs do, by the proxy of the environment; or a path at the host of the endpoint
        url = urllib.parse.urljoin(servers[0]["url"], rest) if word == "door" else rest
        try:
            with urllib.request.urlopen(url, timeout=20) as answer:
                body = answer.read()
            say(session, f"{answer.status} {len(body)} {body[:200].decode()}")
        except urllib.error.HTTPError as error:
            say(session, f"{error.code} {error.read().decode()}")
        except OSError as error:
            say(session, f"{type(error).__name__}")
    elif word == "tunnel":  # a request to HOST:PORT by CONNECT of the proxy
        proxy = urllib.parse.urlsplit(os.environ["HTTPS_PROXY"])
        with socket.create_connection((proxy.hostname, proxy.port), timeout=20) as stream:
            stream.sendall(f"CONNECT {rest} HTTP/1.1\r\nHost: {rest}\r\n\r\n".encode())
            answer = stream.recv(4096).decode()
            if answer.startswith("HTTP/1.1 200"):
                stream.sendall(b"GET /tunnel HTTP/1.1\r\nHost: inner\r\nConnection: close\r\n\r\n")
                while piece := stream.recv(4096):
                    answer += piece.decode()
        say(session, answer)
    elif word == "list":
        try:
            say(session, ",".join(sorted(os.listdir(rest))))
        except OSError as error:
            say(session, f"{type(error).__name__}")
    elif word == "signal":  # to a process that is not its own
        try:
            os.kill(int(rest), 0)
            say(session, "reached")
        except OSError as error:
            say(session, f"{type(error).__name__}")
    elif word == "orphan":  # ends the launcher above it
        try:
            os.kill(os.getppid(), signal.SIGKILL)
            say(session, "killed")
        except OSError as error:
            say(session, f"{type(error).__name__}")
    elif word == "unread":  # asks for more than the pipe takes, and reads nothing of it
        unreading.set()
        for number in range(20):
            send({"id": 1000 + number, "method": "fs/read_text_file", "params": {"sessionId": session, "path": rest}})
    elif word == "mcp":
        tool, _, arguments = rest.partition(" ")
        try:
            say(session, json.dumps(mcp(tool, json.loads(arguments)), sort_keys=True))
        except OSError as error:
            say(session, f"{type(error).__name__}: {error}")
    elif word == "env":
        say(session, str(os.environ.get(rest)))
    elif word == "arguments":
        say(session, " ".join(sys.argv[1:]))
    elif word == "names":
        say(session, ",".join(sorted(os.environ)))
    elif word == "memory":
        try:
            say(session, str(len(bytearray(int(rest)))))
        except MemoryError:
            say(session, "MemoryError")
    elif word == "garbage":
        sys.stdout.write("warning: no JSON\n\x00\xff\n{\"half\": \n" * int(rest or 1))
        sys.stdout.flush()
    elif word == "long":
        sys.stdout.write("x" * int(rest) + "\n")
        sys.stdout.flush()
    elif word == "flood":
        for number in range(int(rest)):
            say(session, f"{number} ")
    elif word == "crash":
        sys.stderr.write(f"panic: {rest}\n")
        sys.stderr.flush()
        os._exit(3)
    elif word == "fork":  # away from the group, and deaf
        code = "import os,signal,sys,time\nos.setsid()\nif os.fork(): os._exit(0)\n"
        code += "[signal.signal(s, signal.SIG_IGN) for s in (1, 2, 15)]\nopen(sys.argv[1], 'w').write(str(os.getpid()))\ntime.sleep(600)"
        subprocess.Popen([sys.executable, "-c", code, rest])
        while not (os.path.exists(rest) and open(rest).read()):
            time.sleep(0.01)
    elif word == "heir":  # a process that has still something to write when the agent has ended
        code = "import os,signal,sys,time\n"
        code += "def end(*_):\n time.sleep(0.3)\n open(sys.argv[1], 'w').write('saved')\n os._exit(0)\n"
        code += "signal.signal(signal.SIGTERM, end)\nprint(flush=True)\ntime.sleep(600)"
        subprocess.Popen([sys.executable, "-c", code, rest], stdout=subprocess.PIPE).stdout.readline()
    elif word == "file":
        with open(rest, "w") as file:
            file.write(str(os.getpid()))
    elif word == "sleep":
        deadline = time.monotonic() + float(rest)
        while time.monotonic() < deadline and not cancelled.is_set():
            time.sleep(0.01)
    elif word == "hang":  # whatever the client says
        time.sleep(600)
    elif word == "remember":
        with open(os.path.join(HOME, session), "a") as file:
            file.write(rest + ";")
    elif word == "recall":
        with open(os.path.join(HOME, session)) as file:
            say(session, file.read())
    elif word == "usage":
        update(session, "usage_update", used=10, size=200, cost={"amount": 0.5, "currency": "USD"})


def prompt(number, params):
    session = params["sessionId"]
    text = "".join(block.get("text", "") for block in params["prompt"] if block["type"] == "text")
    for order in text.split("\n"):
        if cancelled.is_set():
            break
        obey(session, order)
    reason = "cancelled" if cancelled.is_set() else "end_turn"
    usage = {"totalTokens": 7, "inputTokens": 3, "outputTokens": 4}
    send({"id": number, "result": {"stopReason": reason, "usage": usage}})


def handle(message):
    method, number, params = message.get("method"), message.get("id"), message.get("params")
    if method is None:
        waiting = pending.get(number)
        if waiting:
            waiting[1] = message
            waiting[0].set()
    elif method == "initialize":
        if "--login" in sys.argv:
            return send({"id": number, "error": {"code": -32000, "message": "Authentication required"}})
        capabilities = {"loadSession": "--forgetful" not in sys.argv, "mcpCapabilities": {"http": "--no-mcp" not in sys.argv}}
        info = {"name": "peer", "version": "1.2.3"}
        send({"id": number, "result": {"protocolVersion": 1, "agentCapabilities": capabilities, "agentInfo": info}})
    elif method == "session/new":
        session = f"s-{os.getpid()}"
        with open(os.path.join(HOME, session), "w") as file:
            file.write("")
        with open(os.path.join(HOME, "mcp"), "w") as file:
            json.dump(params["mcpServers"], file)
        servers[:] = params["mcpServers"]
        send({"id": number, "result": {"sessionId": session}})
    elif method == "session/load":
        session = params["sessionId"]
        if not os.path.exists(os.path.join(HOME, session)):
            return send({"id": number, "error": {"code": -32603, "message": "no such session"}})
        servers[:] = params["mcpServers"]
        if "--late" in sys.argv:  # as Gemini CLI
            send({"id": number, "result": None})
            time.sleep(0.02)
            say(session, "an earlier")
            time.sleep(0.02)
            return say(session, "answer")
        say(session, "an earlier answer")
        send({"id": number, "result": None})
    elif method == "session/prompt":
        if "deaf" in params["prompt"][0]["text"]:  # only this thread may say so
            for deaf_to in (signal.SIGINT, signal.SIGTERM):
                signal.signal(deaf_to, signal.SIG_IGN)
        threading.Thread(target=prompt, args=(number, params), daemon=True).start()
    elif method == "session/cancel":
        cancelled.set()


for line in sys.stdin:
    while unreading.is_set():
        time.sleep(1)
    handle(json.loads(line))
