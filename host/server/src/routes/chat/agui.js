// The AG-UI 1.0 side of the page: events as they come, and the thread that they make.

/** Nothing has come for so long, not even a keep-alive comment (one every 15 s): the connection is dead. */
const SILENCE_MS = 45_000;

/** A connection that ended before its run did. */
export class Broken extends Error {}

/** The events of a response, each with the id that its frame had. Throws `Broken` where the connection breaks. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  try {
    for (;;) {
      const { done, value } = await orBroken(reader.read());
      if (done) return;
      const frames = (text + value).split('\n\n');
      text = frames.pop();
      for (const frame of frames) {
        const event = parsed(frame);
        if (event) yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** What a read gives, unless it fails or takes too long. */
async function orBroken(read) {
  let timer;
  const silence = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Broken('nothing came for too long')), SILENCE_MS);
  });
  try {
    return await Promise.race([read, silence]);
  } catch (error) {
    throw error instanceof Broken || error.name === 'AbortError' ? error : new Broken(error.message);
  } finally {
    clearTimeout(timer);
  }
}

/** The event of one frame; none where it is a comment. */
function parsed(frame) {
  const data = [];
  for (const line of frame.split('\n')) {
    if (line.startsWith('data:')) data.push(line.slice(line[5] === ' ' ? 6 : 5));
  }
  return data.length ? JSON.parse(data.join('\n')) : null;
}

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
    this.hasMore = false;
  }

  /** Takes over what the host says the thread is. Notes stay: only this page knows them. */
  hydrate(snapshot) {
    this.messages = snapshot.messages ?? [];
    this.state = snapshot.state ?? {};
    this.interrupts = snapshot.pendingInterrupts ?? [];
    this.pendingCalls = snapshot.pendingToolCallIds ?? [];
    this.hasMore = Boolean(snapshot.hasMore);
    this.open.clear();
    this.notes = this.notes.filter((note) => !note.running);
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
    thread.messages = reconciled(thread.messages, event.messages);
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

/** A value with a JSON Patch (RFC 6902) applied; as it was where the patch does not fit it. */
export function patched(value, patch) {
  try {
    return patch.reduce(operate, structuredClone(value));
  } catch {
    return value;
  }
}

function operate(root, { op, path, from, value }) {
  switch (op) {
    case 'add':
      return put(root, path, value, 'insert');
    case 'replace':
      at(root, path);
      return put(root, path, value, 'set');
    case 'remove':
      return take(root, path);
    case 'copy':
      return put(root, path, structuredClone(at(root, from)), 'insert');
    case 'move': {
      const moved = at(root, from);
      return put(take(root, from), path, moved, 'insert');
    }
    case 'test':
      if (JSON.stringify(at(root, path)) !== JSON.stringify(value)) throw new Error('another value');
      return root;
    default:
      return root;
  }
}

const keys = (path) => path.split('/').slice(1).map((key) => key.replaceAll('~1', '/').replaceAll('~0', '~'));

function step(value, key) {
  if (value === null || typeof value !== 'object' || !Object.hasOwn(value, key)) throw new Error('no such place');
  return value[key];
}

const at = (root, path) => keys(path).reduce(step, root);

/** The thing that holds what a path names, and its key there. */
function holder(root, path) {
  const all = keys(path);
  const key = all.pop();
  return [all.reduce(step, root), key];
}

function put(root, path, value, how) {
  if (path === '') return value;
  const [parent, key] = holder(root, path);
  if (Array.isArray(parent)) {
    const index = key === '-' ? parent.length : Number(key);
    if (!(Number.isInteger(index) && index >= 0 && index <= parent.length)) throw new Error('no such place');
    parent.splice(index, how === 'insert' ? 0 : 1, value);
  } else {
    // Not an assignment: the key may be `__proto__`.
    Object.defineProperty(parent, key, { value, enumerable: true, configurable: true, writable: true });
  }
  return root;
}

function take(root, path) {
  at(root, path);
  const [parent, key] = holder(root, path);
  if (Array.isArray(parent)) parent.splice(Number(key), 1);
  else delete parent[key];
  return root;
}
