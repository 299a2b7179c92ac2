#!/usr/bin/env python3
"""An executor of Agent Host: it takes runs from a queue and does them. Python 3.9 or later, standard library only.

    agent-host serve &                  # with agent-host.toml of this directory
    python3 executor.py                 # AGENT_HOST_SERVER and AGENT_HOST_KEY say where, and by which key

Everything that it does for a run goes through the grant of that run, as it does for a guest in the sandbox.
"""

import json
import os
import signal
import sys
import threading
import time
import urllib.error
import urllib.request

SERVER = os.environ.get("AGENT_HOST_SERVER", "http://127.0.0.1:7070")
KEY = os.environ.get("AGENT_HOST_KEY")  # with the scope runs:execute; none where the host trusts its own machine
QUEUE = os.environ.get("EXECUTOR_QUEUE", "python")
LEASE_MS = int(os.environ.get("EXECUTOR_LEASE_MS", "15000"))
DELAY = float(os.environ.get("EXECUTOR_DELAY", "0.05"))  # between two words, so that there is something to watch

stopping = threading.Event()


class Problem(Exception):
    """The host said no. `code` is what programs decide by."""

    def __init__(self, status, document):
        super().__init__(f"{status} {document.get('code')}: {document.get('detail')}")
        self.status, self.code = status, document.get("code")


class ClaimLost(Exception):
    """The run is not ours any more: whatever we still do for it is refused, so we stop."""


def request(method, path, token, body=None, timeout=30):
    """One request; gives the answer, or None where there is none."""
    headers = {"Accept": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    data = None
    if body is not None:
        headers["Content-Type"] = "application/json"
        data = json.dumps(body).encode()
    asked = urllib.request.Request(SERVER + path, data=data, headers=headers, method=method)
    try:
        with urllib.request.urlopen(asked, timeout=timeout) as answer:
            text = answer.read()
            return json.loads(text) if text else None
    except urllib.error.HTTPError as error:
        text = error.read()
        try:
            document = json.loads(text)
        except ValueError:
            document = {"code": "unknown", "detail": text[:200].decode(errors="replace")}
        raise Problem(error.code, document) from None


def patiently(method, path, token, body=None, timeout=30, tries=8):
    """A request that may be repeated: a host that restarts or is busy is waited for."""
    for attempt in range(tries):
        try:
            return request(method, path, token, body, timeout)
        except Problem as problem:
            if problem.code == "claim_lost":
                raise ClaimLost(str(problem)) from None
            if problem.status not in (429, 502, 503) or attempt == tries - 1:
                raise
        except OSError:  # the connection
            if attempt == tries - 1:
                raise
        time.sleep(min(0.1 * 2**attempt, 5))


class Run:
    """A run that we hold, as long as our claim counts."""

    def __init__(self, claimed):
        self.path = f"/api/v1/runs/{claimed['run']['run_id']}"
        self.token = claimed["lease_token"]
        self.context = claimed.get("context")
        self.appended = 0  # results that the host has of this claim
        self.over = threading.Event()  # set when there is nothing more to do for it
        self.cancelled = False
        self.renewing = threading.Thread(target=self.renew, daemon=True)

    def start(self):
        if self.context is None:
            self.context = patiently("POST", self.path + "/start", self.token, {})["context"]
        self.renewing.start()

    def renew(self):
        """Renews the lease three times in its life, and hears so that the run is to end."""
        while not self.over.wait(LEASE_MS / 3000):
            try:
                claim = patiently("POST", self.path + "/renew", self.token, {"lease_ms": LEASE_MS})
                if claim.get("cancel_requested_at"):
                    self.cancelled = True
                    self.over.set()
            except Exception as error:  # what the run does next fails in the same way, and says so
                print(f"{self.path}: not renewed: {error}", file=sys.stderr, flush=True)
                self.over.set()

    def append(self, *results):
        """Adds results to the record of the run. Their numbers make it harmless to send them twice."""
        if self.over.is_set():
            raise ClaimLost("cancelled" if self.cancelled else "the lease could not be renewed")
        body = {"first": self.appended + 1, "results": [{"type": kind, "data": data} for kind, data in results]}
        self.appended = patiently("POST", self.path + "/append", self.token, body)["appended"]

    def call(self, function, **arguments):
        """A host call, such as `models.invoke`, through the gate of the run."""
        try:
            return patiently("POST", f"{self.path}/calls/{function}", self.token, arguments, timeout=300, tries=3)
        except Problem as problem:
            if problem.code != "cancelled":
                raise
            self.cancelled = True
            raise ClaimLost(str(problem)) from None

    def finish(self, **how):
        self.over.set()
        return patiently("POST", self.path + "/finalize", self.token, how)


def answer(run):
    """The work: counts the messages of the conversation, asks a model where it may, and streams the answer."""
    resources = run.context["resources"]
    said = run.context["input"].get("text") or "nothing"
    count = None
    try:
        count = (run.call("state.get", scope="conversation", key="count").get("value") or 0) + 1
    except Problem as problem:
        if problem.code != "unauthorized":  # an event without a conversation has no such state
            raise
    reply = f"You said: {said}."
    if count is not None:
        reply += f" It is message {count} of this conversation."
    models = [model["model_id"] for model in resources.get("models", []) if "invoke" in model["operations"]]
    if models:
        messages = [{"role": "user", "content": said}]
        response = run.call("models.invoke", model_id=models[0], request={"messages": messages})
        content = response["message"]["content"]
        reply += " " + (content if isinstance(content, str) else json.dumps(content))
    for word in reply.split(" "):
        chunk = {"role": "assistant", "content": word + " "}
        run.append(("message.delta", {"message_id": "m1", "chunk": chunk}))
        time.sleep(DELAY)
    results = [("message.completed", {"message_id": "m1", "message": {"role": "assistant", "content": reply}})]
    if count is not None:
        # With the answer in one commit: an attempt that fails before has counted nothing.
        results.append(("state.updated", {"scope": "conversation", "key": "count", "value": count}))
    run.append(*results)
    run.finish(status="completed", finish_reason="stop")


def execute(claimed):
    run = Run(claimed)
    try:
        run.start()
        print(f"{run.path}: started", flush=True)
        answer(run)
        print(f"{run.path}: completed", flush=True)
    except ClaimLost as lost:
        print(f"{run.path}: given up: {lost}", flush=True)
        if run.cancelled:  # the run ends now, and not when its grace (`queue.cancel_grace_ms`) is over
            try:
                run.finish(status="cancelled", reason="the executor has stopped")
            except (ClaimLost, Problem, OSError):
                pass
    except Exception as error:
        print(f"{run.path}: failed: {error}", file=sys.stderr, flush=True)
        try:
            run.finish(status="failed", code="executor.error", message=str(error)[:1000], retryable=True)
        except (ClaimLost, Problem, OSError) as why:
            print(f"{run.path}: that could not be said: {why}", file=sys.stderr, flush=True)
    finally:
        run.over.set()


def main():
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stopping.set())
    registration = {"name": "executor.py", "version": "1.0.0", "queues": [QUEUE], "slots": 1}
    registered = patiently("POST", "/api/v1/executors", KEY, registration)
    executor, credential = registered["executor_id"], registered["credential"]
    print(f"registered as {executor}", flush=True)
    try:
        while not stopping.is_set():
            # Waits at the host: a run that comes is here within milliseconds. Short enough to hear SIGTERM soon.
            wanted = {"lease_ms": LEASE_MS, "wait_ms": 2000}
            claimed = patiently("POST", "/api/v1/claims", credential, wanted, timeout=30)
            if claimed:
                execute(claimed)
    finally:
        request("DELETE", f"/api/v1/executors/{executor}", credential)
        print("deregistered", flush=True)


if __name__ == "__main__":
    main()
