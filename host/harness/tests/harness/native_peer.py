#!/usr/bin/env python3
"""A scripted agent of the protocols `claude` (streams of JSON) and `codex` (app-server): `native_peer.py claude|codex [ARGUMENTS]`.
The text of a prompt says what it does, one order a line.

Standard library only. It keeps its sessions below HOME, as coding agents do.
"""

import json
import os
import sys
import threading
import time

HOME = os.environ["HOME"]
DIALECT, ARGUMENTS = sys.argv[1], sys.argv[2:]
lock = threading.Lock()
cancelled = threading.Event()
pending = {}
numbers = iter(range(1, 1 << 30))
# The largest number of tokens that fits.
MOST = (1 << 64) - 1


def send(message):
    with lock:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


def wait_for(number):
    """Waits for the client's answer to a request that was sent under this number."""
    done, answer = threading.Event(), []
    pending[number] = (done, answer)
    return lambda: (done.wait(), pending.pop(number))[1][1][0]


def kept(session):
    return os.path.join(HOME, session)


class Codex:
    def __init__(self):
        self.thread = self.turn = None
        self.total = 0
        self.account = None if "--login" in ARGUMENTS else {"type": "apiKey"}
        self.steered = []

    def notify(self, method, **params):
        send({"method": method, "params": {"threadId": self.thread, "turnId": self.turn, **params}})

    def item(self, how, **item):
        self.notify(f"item/{how}", item=item)

    def say(self, text):
        self.item("started", type="agentMessage", id="m", text="")
        self.notify("item/agentMessage/delta", itemId="m", delta=text)
        self.item("completed", type="agentMessage", id="m", text=text)

    def spell(self, text):
        for character in text:
            self.notify("item/agentMessage/delta", itemId="m", delta=character)
        self.item("completed", type="agentMessage", id="m", text="".join(text))

    def think(self, text):
        self.notify("item/reasoning/summaryTextDelta", itemId="r", delta=text)

    def plan(self, steps):
        self.notify("turn/plan/updated", plan=[{"step": step, "status": "inProgress"} for step in steps])

    def tool(self, command):
        call = {"type": "commandExecution", "id": "t1", "command": f"/bin/bash -lc '{command}'", "cwd": os.getcwd()}
        self.item("started", **call, status="inProgress")
        self.item("completed", **call, status="completed", aggregatedOutput="out", exitCode=0)

    def edit(self, path):
        diff = {"path": path, "kind": {"type": "update", "move_path": None}, "diff": "@@ -1 +1 @@\n-x\n+y\n"}
        self.item("started", type="fileChange", id="e1", changes=[diff], status="inProgress")
        self.item("completed", type="fileChange", id="e1", changes=[diff], status="completed")

    def permission(self, command):
        number = next(numbers)
        call = {"type": "commandExecution", "id": f"p{number}", "command": f"/bin/bash -lc '{command}'", "cwd": os.getcwd()}
        self.item("started", **call, status="inProgress")
        answer = wait_for(number)
        params = {"threadId": self.thread, "turnId": self.turn, "itemId": call["id"], "kind": "command", "command": call["command"]}
        offers = ["accept", {"acceptWithExecpolicyAmendment": {"execpolicy_amendment": command.split()}}, "cancel"]
        send({"id": number, "method": "item/commandExecution/requestApproval", "params": {**params, "availableDecisions": offers}})
        decision = answer()["result"]["decision"]
        self.item("completed", **call, status="declined" if decision == "decline" else "completed", exitCode=0)
        self.say(json.dumps(decision, sort_keys=True))

    def usage(self):
        self.total += 10
        tokens = lambda of: {"totalTokens": of, "inputTokens": of - 4, "outputTokens": 4, "cachedInputTokens": 1}
        self.notify("thread/tokenUsage/updated", tokenUsage={"total": tokens(self.total), "last": tokens(10), "modelContextWindow": 200})

    def boast(self):
        tokens = {name: MOST for name in ("totalTokens", "inputTokens", "outputTokens", "cachedInputTokens")}
        self.notify("thread/tokenUsage/updated", tokenUsage={"total": tokens, "last": tokens, "modelContextWindow": MOST})

    def steered_in(self):
        """Waits for a message in the middle of the turn."""
        deadline = time.monotonic() + 30
        while not self.steered and time.monotonic() < deadline:
            time.sleep(0.01)
        self.say("steered" if self.steered else "nobody came")

    def key(self):
        self.say(str(self.account["key"]))

    def mcp(self):
        with open(kept("mcp")) as file:
            self.say(file.read())

    def run(self, text):
        obey(self, self.thread, text)
        while self.steered:
            obey(self, self.thread, self.steered.pop(0))
        turn, self.turn = self.turn, None
        status = "interrupted" if cancelled.is_set() else "failed" if failure else "completed"
        problem = {"message": failure[0], "codexErrorInfo": failure[1]} if failure else None
        self.notify("turn/completed", turn={"id": turn, "status": status, "error": problem, "items": []})

    def handle(self, message):
        method, number, params = message.get("method"), message.get("id"), message.get("params")
        answer = lambda result: send({"id": number, "result": result})
        if method is None:
            done, answers = pending[number]
            answers.append(message)
            done.set()
        elif method == "initialize":
            answer({"userAgent": "agent-host/1.2.3 (peer)"})
        elif method == "account/read":
            answer({"account": self.account, "requiresOpenaiAuth": True})
        elif method == "account/login/start":
            self.account = {"type": params["type"], "key": params["apiKey"]}
            answer({"type": "apiKey"})
        elif method in ("thread/start", "thread/resume"):
            self.thread = params.get("threadId", f"s-{os.getpid()}")
            if method == "thread/resume" and not os.path.exists(kept(self.thread)):
                return send({"id": number, "error": {"code": -32600, "message": f"no rollout found for thread id {self.thread}"}})
            open(kept(self.thread), "a").close()
            with open(kept("mcp"), "w") as file:
                json.dump({"config": params.get("config"), "token": os.environ.get("AGENT_HOST_MCP_TOKEN")}, file)
            with open(kept("approvals"), "w") as file:
                json.dump([params.get("approvalPolicy"), params.get("sandbox")], file)
            answer({"thread": {"id": self.thread}})
        elif method == "turn/start":
            self.turn = f"turn-{number}"
            answer({"turn": {"id": self.turn, "status": "inProgress"}})
            self.notify("turn/started", turn={"id": self.turn})
            text = params["input"][0]["text"]
            threading.Thread(target=self.run, args=(text,), daemon=True).start()
        elif method == "turn/steer":
            if params["expectedTurnId"] != self.turn:
                return send({"id": number, "error": {"code": -32600, "message": "no active turn"}})
            self.steered.append(params["input"][0]["text"])
            answer({"turnId": self.turn})
        elif method == "turn/interrupt":
            cancelled.set()
            answer({})


class Claude:
    def __init__(self):
        resumed = [argument.removeprefix("--resume=") for argument in ARGUMENTS if argument.startswith("--resume=")]
        self.session = resumed[0] if resumed else f"s-{os.getpid()}"
        self.calls = 0
        if resumed and not os.path.exists(kept(self.session)):
            self.end(True, errors=[f"No conversation found with session ID: {self.session}"], subtype="error_during_execution")
            sys.exit(1)
        open(kept(self.session), "a").close()

    def put(self, kind, **more):
        send({"type": kind, "session_id": self.session, "parent_tool_use_id": None, **more})

    def end(self, is_error, subtype="success", **more):
        usage = {"input_tokens": 3, "output_tokens": 4, "cache_read_input_tokens": 1}
        window = {"m": {"contextWindow": 200}}
        self.put("result", subtype=subtype, is_error=is_error, usage=usage, total_cost_usd=0.5, modelUsage=window, stop_reason="end_turn", **more)

    def event(self, **event):
        self.put("stream_event", event=event)

    def assistant(self, *blocks, number=None, usage=None, **more):
        usage = usage or {"input_tokens": 6, "output_tokens": 4}
        self.put("assistant", message={"id": number or "other", "role": "assistant", "content": list(blocks), "usage": usage}, **more)

    def pieces(self, pieces, kind, member, block):
        number = f"msg-{next(numbers)}"
        self.event(type="message_start", message={"id": number})
        self.event(type="content_block_start", index=0, content_block={"type": block, member: ""})
        for piece in pieces:
            self.event(type="content_block_delta", index=0, delta={"type": kind, member: piece})
        self.assistant({"type": block, member: "".join(pieces)}, number=number)
        self.event(type="message_stop")

    def say(self, text):
        self.pieces([text], "text_delta", "text", "text")

    def spell(self, text):
        self.pieces(list(text), "text_delta", "text", "text")

    def think(self, text):
        self.pieces([text], "thinking_delta", "thinking", "thinking")

    def use(self, name, tool_input):
        self.calls += 1
        number = f"t{self.calls}"
        self.assistant({"type": "tool_use", "id": number, "name": name, "input": tool_input})
        return number

    def used(self, number, content, is_error=False):
        result = {"type": "tool_result", "tool_use_id": number, "content": content, "is_error": is_error}
        self.put("user", message={"role": "user", "content": [result]})

    def plan(self, steps):
        todos = [{"content": step, "status": "in_progress", "activeForm": step} for step in steps]
        self.used(self.use("TodoWrite", {"todos": todos}), "ok")

    def tool(self, command):
        self.used(self.use("Bash", {"command": command}), [{"type": "text", "text": "out"}])

    def edit(self, path):
        self.used(self.use("Edit", {"file_path": path, "old_string": "x\n", "new_string": "y\n"}), "changed")

    def permission(self, command):
        tool_input = {"command": command}
        number = self.use("Bash", tool_input)
        request_id = f"r-{number}"
        answer = wait_for(request_id)
        rule = {"type": "addRules", "rules": [{"toolName": "Bash"}], "behavior": "allow", "destination": "localSettings"}
        mode = {"type": "setMode", "mode": "bypassPermissions", "destination": "session"}
        request = {"subtype": "can_use_tool", "tool_name": "Bash", "input": tool_input, "tool_use_id": number, "permission_suggestions": [rule, mode]}
        send({"type": "control_request", "request_id": request_id, "request": request})
        response = answer()["response"]["response"]
        self.used(number, "ok", response["behavior"] == "deny")
        more = [f"{rule['type']} {rule['destination']}" for rule in response.get("updatedPermissions", [])]
        self.say(json.dumps([response["behavior"], *more]))

    def usage(self):
        self.assistant()

    def boast(self):
        self.assistant(usage={name: MOST for name in ("input_tokens", "output_tokens", "cache_read_input_tokens")})

    def mcp(self):
        path = next(argument.removeprefix("--mcp-config=") for argument in ARGUMENTS if argument.startswith("--mcp-config="))
        mode = oct(os.stat(path).st_mode & 0o777)
        with open(path) as file:
            self.say(mode + " " + file.read())

    def run(self, text):
        self.put("system", subtype="init", claude_code_version="1.2.3", permissionMode="default")
        if "--login" in ARGUMENTS:
            said = {"type": "text", "text": "Not logged in - Please run /login"}
            self.assistant(said, error="authentication_failed")
            return self.end(True, result=said["text"])
        obey(self, self.session, text)
        if cancelled.is_set():
            return self.end(True, subtype="error_during_execution")
        self.end(bool(failure), result=failure[0] if failure else "done")

    def handle(self, message):
        kind = message["type"]
        if kind == "control_response":
            done, answers = pending[message["response"]["request_id"]]
            answers.append(message)
            done.set()
        elif kind == "control_request":
            subtype = message["request"]["subtype"]
            if subtype == "interrupt":
                cancelled.set()
            source = "none" if "--login" in ARGUMENTS else "ANTHROPIC_API_KEY"
            account = {"tokenSource": "none", "apiKeySource": source, "apiProvider": "firstParty"}
            answer = {"claude_code_version": "1.2.3", "account": account}
            send({"type": "control_response", "response": {"subtype": "success", "request_id": message["request_id"], "response": answer}})
        elif kind == "user":
            text = message["message"]["content"][0]["text"]
            threading.Thread(target=self.run, args=(text,), daemon=True).start()


failure = []


def obey(agent, session, text):
    for order in text.split("\n"):
        if cancelled.is_set():
            return
        word, _, rest = order.partition(" ")
        if word in ("say", "spell", "think", "tool", "edit", "permission"):
            getattr(agent, word)(rest)
        elif word in ("usage", "mcp", "steered_in", "key", "boast"):
            getattr(agent, word)()
        elif word == "plan":
            agent.plan(rest.split(","))
        elif word == "env":
            agent.say(str(os.environ.get(rest)))
        elif word == "cat":
            with open(os.path.join(HOME, rest)) as file:
                agent.say(file.read())
        elif word == "arguments":
            agent.say(" ".join(ARGUMENTS))
        elif word == "fail":
            failure[:] = [rest, "other"]
        elif word == "unauthorized":
            failure[:] = ["401", "unauthorized"]
        elif word == "garbage":
            with lock:
                sys.stdout.write("warning: no JSON\n\x00\xff\n{\"half\": \n" * int(rest or 1))
                sys.stdout.flush()
        elif word == "flood":
            agent.spell([f"{number} " for number in range(int(rest))])
        elif word == "crash":
            sys.stderr.write(f"panic: {rest}\n")
            sys.stderr.flush()
            os._exit(3)
        elif word == "file":
            with open(rest, "w") as file:
                file.write(str(os.getpid()))
        elif word == "sleep":
            deadline = time.monotonic() + float(rest)
            while time.monotonic() < deadline and not cancelled.is_set():
                time.sleep(0.01)
        elif word == "hang":
            time.sleep(600)
        elif word == "remember":
            with open(kept(session), "a") as file:
                file.write(rest + ";")
        elif word == "recall":
            with open(kept(session)) as file:
                agent.say(file.read())


agent = {"codex": Codex, "claude": Claude}[DIALECT]()
for line in sys.stdin:
    agent.handle(json.loads(line))
