"""Reads lines of JSON, each an event of the wire, and holds each against the models of ag-ui-protocol.

A line {"input": ...} is a request; the others are {"event": ...}. What no model takes, what has fields that the protocol does
not name, and null for what may be left out, is printed with its line, and the program ends with 1.
"""

import json
import sys

from ag_ui.core import Event, RunAgentInput
from pydantic import BaseModel, TypeAdapter

events = TypeAdapter(Event)


def faults(value, where):
    """What the models take although the protocol does not have it."""
    if isinstance(value, BaseModel):
        for name in value.model_extra or {}:
            yield f"{where}.{name} is nothing that the protocol has"
        for name in type(value).model_fields:
            field = getattr(value, name)
            if field is None and name in value.model_fields_set:
                yield f"{where}.{name} is null"
            yield from faults(field, f"{where}.{name}")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from faults(item, f"{where}[{number}]")


def checked(entry):
    if "event" in entry:
        model = events.validate_python(entry["event"])
        if model.type.value != entry["event"]["type"]:
            yield f"became {model.type}"
    else:
        model = RunAgentInput.model_validate(entry["input"])
    yield from faults(model, type(model).__name__)


bad, count = 0, 0
for number, line in enumerate(open(sys.argv[1], encoding="utf-8"), 1):
    entry = json.loads(line)
    try:
        found = list(checked(entry))
    except ValueError as error:
        found = [str(error)]
    count += 1
    if found:
        bad += 1
        print(f"{number}: {line.strip()}", *found, sep="\n  ", flush=True)
print(f"{count} lines, {bad} bad")
sys.exit(1 if bad or not count else 0)
