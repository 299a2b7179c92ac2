#!/usr/bin/env python3
"""A task board on Agent Host: tasks with a priority, an assignment policy, retries and approval, and a page that shows them live.
Python 3.9 or later, standard library only.

    agent-host serve &                  # with agent-host.toml of this directory
    python3 board.py                    # AGENT_HOST_SERVER and AGENT_HOST_KEY say where, and by which key

The board decides which task goes when to which agent, and nothing else. A task is an event of the host (`task.opened`), a decision
about it is another (`task.approved`, `task.closed`), and all that is known of a run is read from the host. The board has no store: a
board that is started again, or a second one beside it, sees the same tasks and makes no run twice.
"""

import http.server
import itertools
import json
import os
import signal
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

SERVER = os.environ.get("AGENT_HOST_SERVER", "http://127.0.0.1:7070")
KEY = os.environ.get("AGENT_HOST_KEY")  # scopes runs:read, runs:control, events:write, actions:respond
LISTEN = os.environ.get("BOARD_LISTEN", "127.0.0.1:7080")
AGENTS = [name for name in os.environ.get("BOARD_AGENTS", "").split(",") if name]  # none: every binding that is ready
SLOTS = int(os.environ.get("BOARD_SLOTS", "2"))  # runs that an agent has at one time
PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "page.html")

POLICIES = ("least_busy", "round_robin", "all")
ENDED = ("completed", "failed", "cancelled", "timeout")
MAX_BODY = 64 * 1024  # a task is a text of a person
MAX_WATCHERS = 32  # pages that are open at one time
MAX_RETRIES = 10
READ_AT_ONCE = 8  # ended runs whose texts are read at one time
LOOK_S = 2.0  # the board looks at the host so often, whatever it hears


class Problem(Exception):
    """The host said no. `code` is what programs decide by."""

    def __init__(self, status, document):
        super().__init__(document.get("message") or document.get("detail") or f"status {status}")
        self.status, self.code = status, document.get("code", "unknown")


def ask(method, path, body=None, key=None, accept="application/json", timeout=30):
    """A request to the host; gives the open answer. `key` makes its repetition harmless."""
    headers = {"Accept": accept}
    if KEY:
        headers["Authorization"] = f"Bearer {KEY}"
    if key:
        headers["Idempotency-Key"] = key
    data = None
    if body is not None:
        headers["Content-Type"] = "application/json"
        data = json.dumps(body).encode()
    try:
        return urllib.request.urlopen(urllib.request.Request(SERVER + path, data, headers, method=method), timeout=timeout)
    except urllib.error.HTTPError as error:
        text = error.read()
        try:
            document = json.loads(text)
        except ValueError:
            document = {"detail": text[:200].decode(errors="replace")}
        raise Problem(error.code, document) from None


def host(method, path, body=None, key=None):
    with ask(method, path, body, key) as answer:
        text = answer.read()
        return json.loads(text) if text else None


def pages(path):
    """Every item of a list."""
    cursor = ""
    while True:
        page = host("GET", f"{path}{'&' if '?' in path else '?'}limit=100{cursor}")
        yield from page["items"]
        if not page["has_more"] or not page.get("next_cursor"):
            return
        cursor = "&cursor=" + urllib.parse.quote(page["next_cursor"])


def quoted(text):
    return urllib.parse.quote(text, safe="")


class Board:
    """What the host has told, and what follows from it. Nothing of it is kept anywhere else."""

    def __init__(self):
        self.lock = threading.Condition()
        self.tasks = {}  # event id: the task, as its event has it
        self.runs = {}  # event id: its runs, newest first, as the host shows them
        self.said = {}  # run id: what it has said so far, while it is followed
        self.actions = []  # questions of runs that wait for a person
        self.agents = []
        self.version = 0
        self.problem = None
        self.news = threading.Event()
        self.followed = set()

    # What the host tells

    def take(self, event):
        """An event of the host that is about tasks."""
        kind, subject = event["event_type"], (event.get("subject") or {}).get("subject_id")
        with self.lock:
            if kind == "task.opened":
                task = self.tasks.setdefault(event["event_id"], {"id": event["event_id"]})
                data, text = event.get("data", {}), (event.get("input") or {}).get("text", "")
                task.update(wanted(data), text=text, opened_at=event["received_at"])
            elif subject and kind in ("task.approved", "task.closed"):
                self.tasks.setdefault(subject, {"id": subject})[kind.split(".")[1]] = event["received_at"]
            self.changed()
        self.news.set()

    def changed(self):
        """To be called under the lock."""
        self.version += 1
        self.lock.notify_all()

    def follow_tasks(self):
        """Reads all tasks, then what comes. A broken stream continues after the last event that was seen."""
        seen = None
        while True:
            try:
                if seen is None:
                    page = host("GET", "/api/v1/events?event_type=task.*&limit=1")
                    seen = page.get("prev_cursor") or ""
                    for event in reversed(list(pages("/api/v1/events?event_type=task.*"))):
                        self.take(event)
                after = f"&after={quoted(seen)}" if seen else ""
                for cursor, event in stream(f"/api/v1/events?event_type=task.*{after}"):
                    seen = cursor or seen
                    self.take(event)
            except (OSError, Problem, ValueError) as error:
                self.says(f"the host cannot be followed: {error}")
                seen = None
            time.sleep(0.5)

    def says(self, problem):
        with self.lock:
            if problem != self.problem:
                self.problem = problem
                self.changed()
                if problem:
                    print(problem, file=sys.stderr, flush=True)

    def follow_run(self, run):
        """What a run says, as it says it; its end is news for the board."""
        run_id, text = run["run_id"], ""
        try:
            for _, event in stream(f"/api/v1/runs/{run_id}/events"):
                if event["type"] == "message.delta":
                    text = (text + event["data"]["chunk"]["content"])[-4000:]
                elif event["type"] == "message.completed":
                    text = plain(event["data"]["message"]["content"])[-4000:]
                else:
                    self.news.set()
                with self.lock:
                    self.said[run_id] = text
                    self.changed()
        except (OSError, Problem, ValueError):
            pass  # the next look at the host begins it again
        finally:
            with self.lock:
                self.said.setdefault(run_id, text)
                self.followed.discard(run_id)
            self.news.set()

    # What the board decides

    def look(self):
        """Reads agents, questions and the runs of every task that is not over."""
        bindings = host("GET", "/api/v1/runners")["bindings"]
        agents = [b["id"] for b in bindings if b["ready"] and (not AGENTS or b["id"] in AGENTS)]
        actions = list(pages("/api/v1/actions"))
        with self.lock:
            open_tasks = [task["id"] for task in self.tasks.values() if self.state(task) not in ("done", "closed", "failed")]
        runs = {task: list(pages(f"/api/v1/runs?event_id={task}")) for task in open_tasks}
        with self.lock:
            if (agents, actions) != (self.agents, self.actions) or any(self.runs.get(task) != runs[task] for task in runs):
                self.agents, self.actions = agents, actions
                self.runs.update(runs)
                self.changed()
            new = [run for task in runs.values() for run in task if run["status"] not in ENDED and run["run_id"] not in self.followed]
            # A run may have ended before the board has seen it, and has said something all the same.
            unread = (run for task in self.runs.values() for run in task if run["status"] in ENDED and run["run_id"] not in self.said)
            new += itertools.islice((run for run in unread if run["run_id"] not in self.followed), READ_AT_ONCE)
            self.followed.update(run["run_id"] for run in new)
        for run in new:
            threading.Thread(target=self.follow_run, args=(run,), daemon=True).start()

    def latest(self, task):
        """The newest run of each agent for a task. To be called under the lock."""
        latest = {}
        for run in self.runs.get(task["id"], []):
            latest.setdefault(run["binding_id"], run)
        return latest

    def state(self, task):
        """The state of a task, which follows from its decisions and its runs. To be called under the lock."""
        latest = self.latest(task).values()
        if any(run["status"] not in ENDED for run in latest):
            return "running"
        if task.get("closed"):
            return "closed"
        if task.get("approval") and not task.get("approved"):
            return "needs approval"
        if not latest or any(self.may_retry(task, run) for run in latest) or len(latest) < len(self.assigned(task)):
            return "waiting"
        return "done" if all(run["status"] == "completed" for run in latest) else "failed"

    def may_retry(self, task, run):
        tries = sum(1 for other in self.runs.get(task["id"], []) if other["binding_id"] == run["binding_id"])
        return run["status"] in ("failed", "timeout") and tries <= task.get("retries", 0) and not task.get("closed")

    def assigned(self, task):
        """The agents of a task: those that its first run names, else those that its policy chooses. To be called under the lock."""
        runs = self.runs.get(task["id"], [])
        if runs:
            named = runs[-1].get("metadata", {}).get("agents") or []
            return sorted({run["binding_id"] for run in runs} | {agent for agent in named if agent in self.agents})
        allowed = [agent for agent in self.agents if not task.get("agents") or agent in task["agents"]]
        if not allowed or task.get("policy") == "all":
            return allowed
        if task.get("policy") == "round_robin":
            order = sorted(self.tasks.values(), key=lambda other: (other.get("opened_at", 0), other["id"]))
            return [allowed[[other["id"] for other in order].index(task["id"]) % len(allowed)]]
        return [min(allowed, key=lambda agent: (self.busy(agent), agent))]

    def busy(self, agent):
        return sum(1 for runs in self.runs.values() for run in runs if run["binding_id"] == agent and run["status"] not in ENDED)

    def due(self):
        """What is to be done next: (task, agent, run to try again). The most urgent task first, then the oldest."""
        with self.lock:
            opened = [task for task in self.tasks.values() if "title" in task]
            for task in sorted(opened, key=lambda task: (-task["priority"], task["opened_at"], task["id"])):
                if task.get("closed"):
                    # A task that was closed in the moment in which its run was made.
                    late = [run for run in self.runs.get(task["id"], []) if run["status"] not in ENDED]
                    for run in late:
                        if not run.get("cancel_requested_at"):
                            return task, None, run
                if self.state(task) in ("closed", "done", "failed", "needs approval") or task.get("closed"):
                    continue
                latest = self.latest(task)
                for agent in self.assigned(task):
                    if self.busy(agent) >= SLOTS:
                        continue
                    if agent not in latest:
                        return task, agent, None
                    if self.may_retry(task, latest[agent]):
                        return task, agent, latest[agent]
        return None

    def schedule(self):
        """The loop of the board: look at the host, then make the runs that are due, one after another."""
        while True:
            self.news.wait(LOOK_S)
            self.news.clear()
            try:
                self.look()
                while True:
                    due = self.due()
                    if due is None:
                        break
                    self.dispatch(*due)
                    self.look()
                self.says(None)
            except (OSError, Problem, ValueError) as error:
                self.says(f"the host said no: {error}")

    def dispatch(self, task, agent, run):
        """Makes a run, tries one again, or cancels one. The keys make each of it happen once, whoever else does it."""
        if agent is None:
            host("POST", f"/api/v1/runs/{run['run_id']}/cancel", {"reason": "the task was closed"})
        elif run is None:
            with self.lock:
                agents = self.assigned(task)
            body = {
                "binding_id": agent,
                "event_id": task["id"],
                "queue": {"priority": task["priority"]},
                "metadata": {"task": task["id"], "title": task["title"], "agents": agents},
            }
            try:
                host("POST", "/api/v1/runs", body, key=f"board/{task['id']}/{agent}")
            except Problem as problem:
                if problem.code != "idempotency_conflict":  # else another board, with other agents, was faster
                    raise
        else:
            host("POST", f"/api/v1/runs/{run['run_id']}/retry", key=f"board/retry/{run['run_id']}")

    # What people do

    def open(self, wish):
        if not isinstance(wish, dict):
            raise ValueError("a task is a JSON object")
        title, text = wish.get("title"), wish.get("text") or wish.get("title")
        if not isinstance(title, str) or not title.strip() or len(title) > 200:
            raise ValueError("`title` has 1 to 200 characters")
        if not isinstance(text, str):
            raise ValueError("`text` is a text")
        data = {"title": title.strip(), **{name: wish[name] for name in ("priority", "policy", "agents", "retries", "approval") if name in wish}}
        checked(data)
        event = {"event_type": "task.opened", "source": "api", "data": data, "input": {"text": text}}
        accepted = host("POST", "/api/v1/events", event)
        if accepted["runs"]:
            print("a binding answers `task.opened` by itself: narrow its `match`", file=sys.stderr, flush=True)
        self.take({**event, "event_id": accepted["event_id"], "received_at": int(time.time() * 1000)})
        return {"id": accepted["event_id"]}

    def decide(self, task, kind):
        with self.lock:
            if task not in self.tasks:
                raise KeyError(f"there is no task {task}")
            runs = [run["run_id"] for run in self.runs.get(task, []) if run["status"] not in ENDED]
        subject = {"subject_type": "task", "subject_id": task}
        event = {"event_type": f"task.{kind}", "source": "api", "subject": subject}
        host("POST", "/api/v1/events", event, key=f"board/{kind}/{task}")
        if kind == "closed":
            for run in runs:
                host("POST", f"/api/v1/runs/{run}/cancel", {"reason": "the task was closed"})
        self.take({**event, "event_id": "", "received_at": int(time.time() * 1000)})
        return {"id": task}

    def snapshot(self):
        """The board as the page shows it. To be called under the lock."""
        tasks = []
        for task in sorted(self.tasks.values(), key=lambda task: (-task.get("priority", 0), task.get("opened_at", 0))):
            if "title" in task:
                runs = [{**run, "said": self.said.get(run["run_id"], "")} for run in self.runs.get(task["id"], [])]
                tasks.append({**task, "state": self.state(task), "runs": runs})
        return {"agents": self.agents, "slots": SLOTS, "tasks": tasks, "actions": self.actions, "problem": self.problem}


def checked(data):
    """Refuses what no task can have."""
    if not isinstance(data.get("priority", 0), int) or not -1000 <= data.get("priority", 0) <= 1000:
        raise ValueError("`priority` is a number from -1000 to 1000")
    if data.get("policy", POLICIES[0]) not in POLICIES:
        raise ValueError(f"`policy` is one of: {', '.join(POLICIES)}")
    if not isinstance(data.get("retries", 0), int) or not 0 <= data.get("retries", 0) <= MAX_RETRIES:
        raise ValueError(f"`retries` is a number from 0 to {MAX_RETRIES}")
    if not isinstance(data.get("agents", []), list) or not all(isinstance(agent, str) for agent in data.get("agents", [])):
        raise ValueError("`agents` is a list of agents")
    if not isinstance(data.get("approval", False), bool):
        raise ValueError("`approval` is true or false")


def wanted(data):
    """The wishes of a task. Anybody may send events, so what cannot be is left at its default."""
    try:
        checked(data)
    except ValueError:
        data = {"title": data.get("title")}
    title = data.get("title") if isinstance(data.get("title"), str) else "a task without a title"
    defaults = {"priority": 0, "policy": POLICIES[0], "agents": [], "retries": 0, "approval": False}
    return {**defaults, **{name: data[name] for name in defaults if name in data}, "title": title}


def plain(content):
    """The text of a message."""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content or [] if isinstance(part, dict))


def stream(path):
    """The events of a stream of the host, each with its cursor. The stream ends when the host ends it."""
    with ask("GET", path, accept="text/event-stream", timeout=60) as answer:
        cursor, data = None, []
        for line in answer:
            line = line.decode().rstrip("\r\n")
            if line.startswith("id:"):
                cursor = line[3:].strip()
            elif line.startswith("data:"):
                data.append(line[5:].lstrip())
            elif not line and data:
                yield cursor, json.loads("\n".join(data))
                data = []


BOARD = Board()
WATCHERS = threading.Semaphore(MAX_WATCHERS)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], OSError):  # a page that was closed is no error
            super().handle_error(request, client_address)


class Requests(http.server.BaseHTTPRequestHandler):
    """The page and its few routes. It is for people at this machine: other sites and other names of it are refused."""

    protocol_version = "HTTP/1.1"
    timeout = 60

    def log_message(self, *_):
        pass

    def give(self, status, value, kind="application/json"):
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, text in [
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            ("Content-Security-Policy", "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'"),
            ("X-Content-Type-Options", "nosniff"),
        ]:
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(body)

    def is_own(self):
        """A page of another site, or one that names this machine otherwise, gets nothing (DNS rebinding)."""
        name = (self.headers.get("Host") or "").rsplit(":", 1)[0]
        origin = self.headers.get("Origin")
        same = origin is None or urllib.parse.urlsplit(origin).netloc == self.headers.get("Host")
        return name in ("127.0.0.1", "localhost", "[::1]", LISTEN.rsplit(":", 1)[0]) and same

    def answered(self, work):
        """The answer of a piece of work, or the reason why there is none."""
        try:
            if not self.is_own():
                self.close_connection = True  # its body is not read
                return self.give(403, {"message": "this board is for its own page"})
            return self.give(200, work())
        except Problem as problem:
            return self.give(problem.status, {"code": problem.code, "message": str(problem)})
        except KeyError as error:
            return self.give(404, {"code": "not_found", "message": str(error.args[0])})
        except ValueError as error:
            return self.give(400, {"code": "invalid_argument", "message": str(error)})
        except OSError as error:
            return self.give(502, {"code": "host_unreachable", "message": f"the host does not answer: {error}"})

    def do_GET(self):
        parts = self.path.split("?")[0].strip("/").split("/")
        if parts == [""]:
            with open(PAGE, "rb") as page:
                return self.give(200, page.read(), "text/html; charset=utf-8") if self.is_own() else self.give(403, {})
        if parts == ["stream"] and self.is_own():
            return self.watch()
        if parts == ["board"]:
            return self.answered(self.shown)
        if len(parts) == 3 and parts[0] == "runs" and parts[2] == "events":
            after = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query).get("after", [""])[0]
            more = f"&after={quoted(after)}" if after else ""
            return self.answered(lambda: host("GET", f"/api/v1/runs/{quoted(parts[1])}/events?limit=100{more}"))
        return self.answered(lambda: self.unknown())

    def unknown(self):
        raise KeyError("there is nothing here")

    def shown(self):
        with BOARD.lock:
            return BOARD.snapshot()

    def do_POST(self):
        parts = self.path.strip("/").split("/")
        self.answered(lambda: self.done(parts))

    def done(self, parts):
        length = int(self.headers.get("Content-Length") or 0)
        if not 0 <= length <= MAX_BODY:
            self.close_connection = True
            raise ValueError(f"the body has at most {MAX_BODY} bytes")
        body = json.loads(self.rfile.read(length) or b"{}")
        if (self.headers.get("Content-Type") or "").split(";")[0].strip() != "application/json":
            raise ValueError("send JSON, with the header `Content-Type: application/json`")
        if parts == ["tasks"]:
            return BOARD.open(body)
        if len(parts) == 3 and parts[0] == "tasks" and parts[2] in ("approve", "close"):
            return BOARD.decide(parts[1], {"approve": "approved", "close": "closed"}[parts[2]])
        if len(parts) == 3 and parts[0] == "runs" and parts[2] in ("retry", "cancel"):
            run, verb = quoted(parts[1]), parts[2]
            answer = host("POST", f"/api/v1/runs/{run}/{verb}", {"reason": "cancelled at the board"} if verb == "cancel" else None)
            with BOARD.lock:  # a task that was over is looked at again
                for task, runs in list(BOARD.runs.items()):
                    if verb == "retry" and any(known["run_id"] == parts[1] for known in runs):
                        BOARD.runs[task] = [answer, *runs]
                        BOARD.changed()
            BOARD.news.set()
            return answer
        if len(parts) == 2 and parts[0] == "actions":
            answer = host("POST", f"/api/v1/actions/{quoted(parts[1])}/respond", body)
            BOARD.news.set()
            return answer
        return self.unknown()

    def watch(self):
        """The board, again and again as it changes, as server-sent events."""
        if not WATCHERS.acquire(blocking=False):
            return self.give(429, {"message": f"{MAX_WATCHERS} pages are open"})
        try:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Cache-Control", "no-store")
            self.send_header("Connection", "close")
            self.end_headers()
            seen = -1
            while True:
                with BOARD.lock:
                    BOARD.lock.wait_for(lambda: BOARD.version != seen, timeout=15)
                    seen, shown = BOARD.version, BOARD.snapshot()
                self.wfile.write(b"data: " + json.dumps(shown).encode() + b"\n\n")
                self.wfile.flush()
                time.sleep(0.1)  # pieces of answers come faster than people read
        except OSError:
            pass  # the page was closed
        finally:
            WATCHERS.release()
            self.close_connection = True


def main():
    name, port = LISTEN.rsplit(":", 1)
    server = Server((name, int(port)), Requests)
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: threading.Thread(target=server.shutdown, daemon=True).start())
    for work in (BOARD.follow_tasks, BOARD.schedule):
        threading.Thread(target=work, daemon=True).start()
    print(f"the board is at http://{server.server_address[0]}:{server.server_address[1]}/", flush=True)
    server.serve_forever(poll_interval=0.1)


if __name__ == "__main__":
    main()
