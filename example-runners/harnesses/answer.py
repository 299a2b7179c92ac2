#!/usr/bin/env python3
"""A runner of the preset `command`: one request on standard input, results as lines on standard output."""

import json
import sys


def put(kind, **data):
    print(json.dumps({"type": kind, "data": data}), flush=True)


request = json.load(sys.stdin)
turn = int(request["session_id"] or 0) + 1
put("harness.session", session_id=str(turn))
put("message.delta", chunk={"role": "assistant", "content": f"Message {turn}: "})
put("message.delta", chunk={"role": "assistant", "content": request["text"]})
put("run.completed", finish_reason="stop")
