"""The agent of `cargo xtask bench harness`: a program of the preset `command`. The text of the message says what it does."""

import http.client
import json
import sys
import time
import urllib.parse


def direct(host, count):
    """Seconds of so many calls of the same function over HTTP by an executor, on one connection."""
    url = urllib.parse.urlsplit(host)
    connection = http.client.HTTPConnection(url.hostname, url.port)

    def post(path, token, body):
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
        connection.request("POST", path, json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{path}: {answer.status} {text.decode()}")
        return json.loads(text)

    executor = post("/api/v1/executors", None, {"name": "direct", "runner_ids": ["plugin:bench/direct/default"]})
    conversation = {"conversation_id": "direct"}
    post("/api/v1/runs", None, {"binding_id": "direct", "conversation": conversation, "input": {"text": "go"}})
    claim = post("/api/v1/claims", executor["credential"], {"start": True, "wait_ms": 20000})
    run, token = f"/api/v1/runs/{claim['run']['run_id']}", claim["lease_token"]
    began = time.monotonic()
    for _ in range(count):
        post(f"{run}/calls/state.get", token, {"scope": "conversation", "key": "color"})
    seconds = time.monotonic() - began
    post(f"{run}/finalize", token, {"status": "completed"})
    return seconds


if len(sys.argv) == 4 and sys.argv[1] == "direct":
    print(direct(sys.argv[2], int(sys.argv[3])))
    sys.exit()

request = json.load(sys.stdin)
task = json.loads(request["text"])


def put(kind, **data):
    sys.stdout.write(json.dumps({"type": kind, "data": data}) + "\n")
    sys.stdout.flush()


def say(text):
    put("message.delta", chunk={"role": "assistant", "content": text})


def calls(count):
    """Seconds of so many calls of one tool at the endpoint of the run, on one connection."""
    url = urllib.parse.urlsplit(request["mcp"]["url"])
    connection = http.client.HTTPConnection(url.hostname, url.port)
    headers = {"Authorization": f"Bearer {request['mcp']['token']}", "Content-Type": "application/json"}
    headers["Accept"] = "application/json, text/event-stream"

    def post(method, params, number=None):
        body = {"jsonrpc": "2.0", "method": method, "params": params, **({} if number is None else {"id": number})}
        connection.request("POST", url.path, json.dumps(body), headers)
        answer = connection.getresponse()
        if session := answer.headers.get("Mcp-Session-Id"):
            headers["Mcp-Session-Id"] = session
        lines = [line.removeprefix("data:").strip() for line in answer.read().decode().splitlines()]
        messages = [json.loads(line) for line in lines if line.startswith("{")]
        return next((message for message in messages if number is not None and message.get("id") == number), None)

    client = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "bench", "version": "1"}}
    headers["MCP-Protocol-Version"] = post("initialize", client, 1)["result"]["protocolVersion"]
    post("notifications/initialized", {})
    call = {"name": "state_get", "arguments": {"scope": "conversation", "key": "color"}}
    began = time.monotonic()
    for number in range(count):
        answer = post("tools/call", call, number + 2)
        if "result" not in answer or answer["result"].get("isError"):
            raise RuntimeError(f"the tool does not answer: {answer}")
    return time.monotonic() - began


if task["do"] == "first":  # the time at which the first byte is written, in nanoseconds since 1970
    time.sleep(task["after"])
    say(str(time.time_ns()))
elif task["do"] == "events":
    # The client follows by then.
    time.sleep(task["after"])
    lines = "".join(json.dumps({"type": "harness.mode", "data": {"mode": f"m{number}"}}) + "\n" for number in range(task["count"]))
    sys.stdout.write(lines)
    sys.stdout.flush()
elif task["do"] == "calls":
    say(str(calls(task["count"])))
elif task["do"] == "idle":
    time.sleep(task["seconds"])
put("run.completed", finish_reason="stop")
