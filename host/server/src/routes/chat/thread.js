// A thread of AG-UI 1.0 as the page has it, and the events that change it.

import { patched } from './patch.js';

/**
 * A conversation as the page knows it: what the host said of it, and the events since. `revisions` tells the view what has
 * changed: a message with another number is to be drawn again.
 */
export class Thread {
  constructor() {
    this.messages = [];
    /** Lines between messages that are no part of the conversation: steps, errors, usage. Each stands `after` a message. */
    this.notes = [];
    this.state = {};
    /** What the agent waits for, and whom. */
    this.interrupts = [];
    this.pendingCalls = [];
    /** Ids of messages and calls that are not whole yet. */
    this.open = new Set();
    this.subagents = new Map();
    this.progress = new Map();
    this.revisions = new WeakMap();
    /** The place from which older messages are read; none where the first message is the first of the thread. */
    this.before = null;
  }

  /** Takes over what the host says the thread is. Notes stay: only this page knows them. */
  hydrate(snapshot) {
    const older = this.olderThan(snapshot.messages ?? []);
    this.messages = [...older, ...(snapshot.messages ?? [])];
    if (!older.length) this.before = snapshot.before ?? null;
    this.state = snapshot.state ?? {};
    this.interrupts = snapshot.pendingInterrupts ?? [];
    this.pendingCalls = snapshot.pendingToolCallIds ?? [];
    this.open.clear();
    this.notes = this.notes.filter((note) => !note.running);
  }

  /** The messages of this page before the first of a snapshot, which has the newest messages alone. */
  olderThan([first]) {
    const at = first ? this.messages.findIndex((message) => message.id === first.id) : -1;
    return at > 0 ? this.messages.slice(0, at) : [];
  }

  /** Adds a page of older messages. */
  prepend({ messages = [], before = null }) {
    const known = new Set(this.messages.map((message) => message.id));
    this.messages = [...messages.filter((message) => !known.has(message.id)), ...this.messages];
    this.before = before;
  }

  /** Puts a message of the user where the thread has the one with its id; all that follows leaves. Else adds it. */
  branch(message) {
    const at = this.messages.findIndex(({ id }) => id === message.id);
    if (at >= 0) this.messages.length = at;
    this.messages.push(message);
    const stays = new Set(this.messages.slice(0, -1).map(({ id }) => id)).add(null);
    this.notes = this.notes.filter((note) => stays.has(note.after));
  }

  message(id) {
    // What is streamed is near the end.
    return this.messages.findLast((message) => message.id === id);
  }

  /** The message of the assistant that has a call, and the call. */
  call(id) {
    for (let at = this.messages.length - 1; at >= 0; at--) {
      const call = this.messages[at].toolCalls?.find((call) => call.id === id);
      if (call) return { message: this.messages[at], call };
    }
    return null;
  }

  result(callId) {
    return this.messages.findLast((message) => message.role === 'tool' && message.toolCallId === callId);
  }

  touch(message) {
    this.revisions.set(message, (this.revisions.get(message) ?? 0) + 1);
  }

  note(note) {
    this.notes.push({ after: this.messages.at(-1)?.id ?? null, ...note });
  }

  /** Adds a message, or finds the one that has its id. */
  begin(id, role, event) {
    let message = this.message(id);
    if (!message) {
      message = { id, role, content: '' };
      if (event.name) message.name = event.name;
      if (event.subagentRunId) message.subagentRunId = event.subagentRunId;
      this.messages.push(message);
    }
    this.open.add(id);
    this.touch(message);
    return message;
  }

  append(id, role, event) {
    const message = this.begin(id, role, event);
    message.content = (message.content ?? '') + event.delta;
  }

  end(id) {
    this.open.delete(id);
    const message = this.message(id) ?? this.call(id)?.message;
    if (message) this.touch(message);
  }

  apply(event) {
    const handler = HANDLERS[event.type];
    if (handler) handler(this, event);
  }

  finish() {
    for (const id of [...this.open]) this.end(id);
    this.notes = this.notes.filter((note) => !note.running);
    this.progress.clear();
  }
}

/** What each event does to a thread. Events of other types are of later versions, and are passed over. */
const HANDLERS = {
  TEXT_MESSAGE_START: (thread, event) => thread.begin(event.messageId, event.role ?? 'assistant', event),
  TEXT_MESSAGE_CONTENT: (thread, event) => thread.append(event.messageId, 'assistant', event),
  TEXT_MESSAGE_END: (thread, event) => thread.end(event.messageId),
  REASONING_MESSAGE_START: (thread, event) => thread.begin(event.messageId, 'reasoning', event),
  REASONING_MESSAGE_CONTENT: (thread, event) => thread.append(event.messageId, 'reasoning', event),
  REASONING_MESSAGE_END: (thread, event) => thread.end(event.messageId),

  TOOL_CALL_START(thread, event) {
    thread.open.add(event.toolCallId);
    const known = thread.call(event.toolCallId);
    if (known) return thread.touch(known.message);
    const id = event.parentMessageId ?? event.toolCallId;
    const wasOpen = thread.open.has(id) && id !== event.toolCallId;
    const message = thread.begin(id, 'assistant', event);
    if (!wasOpen && id !== event.toolCallId) thread.open.delete(id);
    message.toolCalls ??= [];
    message.toolCalls.push({ id: event.toolCallId, type: 'function', function: { name: event.toolCallName, arguments: '' } });
  },
  TOOL_CALL_ARGS(thread, event) {
    const found = thread.call(event.toolCallId);
    if (!found) return;
    found.call.function.arguments += event.delta;
    thread.touch(found.message);
  },
  TOOL_CALL_END: (thread, event) => thread.end(event.toolCallId),
  TOOL_CALL_RESULT(thread, event) {
    const { messageId: id, toolCallId, content } = event;
    const message = thread.message(id);
    if (message) {
      message.content = content;
    } else {
      const asked = thread.messages.indexOf(thread.call(toolCallId)?.message);
      const at = asked < 0 ? thread.messages.length : asked + 1;
      thread.messages.splice(at, 0, { id, role: 'tool', toolCallId, content });
    }
    thread.progress.delete(toolCallId);
    thread.end(toolCallId);
  },

  STATE_SNAPSHOT(thread, event) {
    thread.state = event.snapshot;
  },
  STATE_DELTA(thread, event) {
    thread.state = patched(thread.state, event.delta);
  },
  MESSAGES_SNAPSHOT(thread, event) {
    const older = thread.olderThan(event.messages);
    thread.messages = [...older, ...reconciled(thread.messages.slice(older.length), event.messages)];
  },
  ACTIVITY_SNAPSHOT(thread, event) {
    const known = thread.message(event.messageId);
    if (known && event.replace === false) return;
    const message = known ?? { id: event.messageId, role: 'activity' };
    Object.assign(message, { activityType: event.activityType, content: event.content });
    if (!known) thread.messages.push(message);
    thread.touch(message);
  },
  ACTIVITY_DELTA(thread, event) {
    const message = thread.message(event.messageId);
    if (!message) return;
    message.content = patched(message.content, event.patch);
    thread.touch(message);
  },

  STEP_STARTED: (thread, event) => thread.note({ kind: 'step', id: `step:${event.stepName}`, text: `Step: ${event.stepName}`, running: true }),
  STEP_FINISHED(thread, event) {
    const note = thread.notes.findLast((note) => note.running && note.id === `step:${event.stepName}`);
    if (note) note.running = false;
  },
  SUBAGENT_STARTED(thread, event) {
    thread.subagents.set(event.subagentRunId, event.name);
    const text = event.description ? `${event.name}: ${event.description}` : event.name;
    thread.note({ kind: 'subagent', id: `subagent:${event.subagentRunId}`, text, running: true });
  },
  SUBAGENT_FINISHED: (thread, event) => subagentEnded(thread, event),
  SUBAGENT_ERROR: (thread, event) => subagentEnded(thread, event, event.message),

  CUSTOM(thread, { name, value }) {
    if (name === 'agent-host.tool.progress' && value?.toolCallId) {
      const { toolCallId, progress, total, message } = value;
      const far = total === undefined ? `${progress}` : `${progress} of ${total}`;
      thread.progress.set(toolCallId, message ? `${message} (${far})` : far);
      const found = thread.call(value.toolCallId);
      if (found) thread.touch(found.message);
    } else if (name === 'agent-host.artifact' && value?.url) {
      thread.note({ kind: 'artifact', text: value.name ?? 'artifact', artifact: value });
    } else if (!name.startsWith('agent-host.')) {
      thread.note({ kind: 'custom', text: name, detail: value });
    }
  },
};

function subagentEnded(thread, event, failure) {
  const note = thread.notes.findLast((note) => note.id === `subagent:${event.subagentRunId}`);
  if (!note) return;
  note.running = false;
  if (failure) note.text += ` failed: ${failure}`;
}

/**
 * The messages of a snapshot. Activities and reasoning that the page has and a snapshot without any does not mention stay
 * where they were.
 */
function reconciled(old, snapshot) {
  const said = new Set(snapshot.map((message) => message.id));
  const kept = ['activity', 'reasoning'].filter((role) => !snapshot.some((message) => message.role === role));
  const messages = [...snapshot];
  let previous = null;
  for (const message of old) {
    if (!said.has(message.id)) {
      if (!kept.includes(message.role)) continue;
      messages.splice(messages.findIndex((other) => other.id === previous) + 1, 0, message);
    }
    previous = message.id;
  }
  return messages;
}
