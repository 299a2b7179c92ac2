// The open thread: what is sent, the connection that brings the answer, and the watch for what others do with the thread.
//
// The host has the truth. After any failure the page asks how the thread stands and follows the active run from there, so nothing
// is lost and nothing is doubled. A request is sent again with the same `runId` until the host has it.

import { get, memory, post, Refused, request } from './host.js';
import { Broken, events } from './stream.js';
import { Thread } from './thread.js';

/** Messages of a thread that is opened, and of each page of older ones. */
const MESSAGES = 50;
const BACKOFF_MS = [200, 500, 1_000, 2_000, 4_000, 8_000];
/** Pauses between attempts to watch a thread, which may not exist yet. */
const WATCH_MS = [2_000, 5_000, 15_000];
/** Facts of one turn come together. */
const SETTLE_MS = 100;
const STREAM = 'text/event-stream';

const ADVICE = {
  forbidden: 'Use another key, with the scope that is missing (“Change key”, above).',
  thread_busy: 'An answer is still under way, and is shown below. Send yours when it is done, or stop it.',
  interrupts_open: 'Answer first what the agent asks.',
  unknown_interrupt: 'It was answered elsewhere, or is too old: this is how the thread stands now.',
  already_answered: 'It was answered elsewhere: this is how the thread stands now.',
  expired: 'It is too late for this answer: this is how the thread stands now.',
  payload_too_large: 'Send less text, or attach it as a file.',
  queue_full: 'Too much is waiting here already. Send it again in a moment.',
  insufficient_storage: 'The disk of the host is nearly full.',
  workspace_full: 'This workspace keeps as much as it may. Delete conversations, or ask the operator for more room.',
  not_found: 'Is the agent still configured? Reload the page to see those that are.',
  internal: 'The log of the host says what happened.',
};

export const advice = (error) => ADVICE[error.code] ?? '';

export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');
  return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join('-');
}

const ids = (list) => (list ?? []).map((item) => item.id ?? item).sort().join(' ');

export class Session {
  /**
   * `changed`: the thread is to be drawn. `status` shows a line, with a button. `refused` gets the messages that the host did not
   * take. `moved`: the list of threads may be another one.
   */
  constructor({ changed, status, refused, moved }) {
    Object.assign(this, { changed, status, giveBack: refused, moved });
    this.here = { agent: '', thread: '' };
    this.thread = new Thread();
    /** Ends the connection of the open thread. */
    this.talking = null;
    /** Ends the watch for what others do. */
    this.watching = null;
    /** True while the page asks how the thread stands. */
    this.isLoading = false;
    /** A request that the host may not have yet. */
    this.outbox = null;
    this.runId = null;
    /** Answers to some of what is asked, until there is one to each. */
    this.answers = new Map();
    document.addEventListener('visibilitychange', () => {
      if (document.hidden) this.watching?.abort();
      else if (this.here.thread && !this.talking) this.watch();
    });
  }

  get phase() {
    return this.talking ? 'busy' : this.thread.interrupts.length ? 'asking' : 'idle';
  }

  /** Whether a message can be sent now. */
  get isReady() {
    return Boolean(this.here.agent) && !this.thread.interrupts.length && !this.outbox && (!this.talking || this.isLoading);
  }

  get path() {
    return `/agents/${encodeURIComponent(this.here.agent)}/threads/${encodeURIComponent(this.here.thread)}`;
  }

  open(place) {
    this.talking?.abort();
    this.watching?.abort();
    this.talking = null;
    this.here = place;
    this.thread = new Thread();
    const of = (kept) => kept?.agent === place.agent && kept.thread === place.thread;
    const ran = memory.get('run');
    this.runId = of(ran) ? ran.runId : null;
    const waiting = memory.get('outbox');
    this.outbox = of(waiting) ? waiting : null;
    this.answers.clear();
    memory.set('thread', place);
    this.status('');
    this.changed();
    this.talk();
  }

  // ---- The connection ----

  /** Brings the thread up to date and stays with it until nothing is under way. `fresh` is sent first. */
  async talk(fresh = null) {
    this.talking?.abort();
    this.watching?.abort();
    const control = (this.talking = new AbortController());
    const { signal } = control;
    let tries = 0;
    const alive = () => {
      tries = 0;
      this.status('');
    };
    this.isLoading = !fresh;
    this.changed();
    while (!signal.aborted) {
      try {
        const response = fresh ? await this.send(fresh, signal) : await this.resume(signal);
        fresh = null;
        if (!response) break;
        this.isLoading = false;
        if (response.status !== 204) alive();
        if (await this.listen(response, signal, alive)) break;
      } catch (error) {
        if (signal.aborted) break;
        fresh = null;
        const isFinal = error instanceof Refused ? !error.passes : !(error instanceof Broken);
        if (isFinal) {
          if (!(error instanceof Refused)) console.error(error);
          if (!this.refused(error) || tries > 2) break;
        }
        tries += 1;
        await this.pause(tries, error, signal);
      }
    }
    if (this.talking !== control) return;
    this.talking = null;
    this.isLoading = false;
    this.status('');
    this.thread.finish();
    this.changed();
    this.moved();
    this.watch();
  }

  /** The run that a stop would end. It is kept beside the thread: a run that waits for people has no stream. */
  setRun(id) {
    this.runId = id;
    memory.set('run', { ...this.here, runId: id });
  }

  /** Starts a run with what was written. */
  async send(sent, signal) {
    this.setRun(sent.body.runId);
    const response = await post(`/agents/${encodeURIComponent(this.here.agent)}/run`, sent.body, { signal, accept: STREAM });
    this.delivered();
    this.moved();
    return response;
  }

  delivered() {
    this.setOutbox(null);
    this.thread.interrupts = [];
    this.answers.clear();
    this.changed();
  }

  setOutbox(sent) {
    this.outbox = sent;
    memory.set('outbox', sent);
  }

  /** Asks how the thread stands. Gives the stream of the active run, where there is one. */
  async resume(signal) {
    const snapshot = await this.load(signal, MESSAGES);
    this.thread.hydrate(snapshot);
    if (this.outbox && !hasArrived(this.outbox, snapshot)) {
      this.showUnsent();
      return this.send(this.outbox, signal);
    }
    if (this.outbox) this.delivered();
    this.thread.interrupts = snapshot.pendingInterrupts ?? [];
    this.changed();
    const active = snapshot.activeRun;
    if (active) this.setRun(active.runId);
    if (!active || this.thread.interrupts.length) return null;
    const cursor = active.cursor ? `?after=${encodeURIComponent(active.cursor)}` : '';
    return request(`${this.path}/runs/${encodeURIComponent(active.runId)}/events${cursor}`, { headers: { Accept: STREAM }, signal });
  }

  async load(signal, limit) {
    try {
      return await get(`${this.path}?limit=${limit}`, signal);
    } catch (error) {
      // Nobody has said anything in it yet. An agent that is not there is refused when something is sent.
      if (error instanceof Refused && error.status === 404) return {};
      throw error;
    }
  }

  /** Reads older messages. */
  async loadOlder() {
    const { thread } = this;
    if (!thread.before) return;
    const page = await get(`${this.path}?limit=${MESSAGES}&before=${encodeURIComponent(thread.before)}`);
    if (thread !== this.thread) return;
    thread.prepend(page);
    this.changed();
  }

  /** Follows a stream. Says whether it came to its end; throws `Broken` where it did not. */
  async listen(response, signal, alive) {
    // All of it was read already.
    if (response.status === 204) throw new Broken('the run is over');
    if (!response.headers.get('Content-Type')?.startsWith(STREAM)) throw new Error('The host did not answer with a stream of events.');
    for await (const event of events(response)) {
      if (signal.aborted) return true;
      alive();
      if (event.type === 'RUN_STARTED') this.setRun(event.runId);
      else if (event.type === 'RUN_FINISHED') return this.finished(event);
      else if (event.type === 'RUN_ERROR') return this.failed(event);
      else this.thread.apply(event);
      this.changed();
    }
    throw new Broken('the stream ended before the answer');
  }

  finished({ outcome, usage }) {
    this.thread.finish();
    if (outcome?.type === 'interrupt') this.thread.interrupts = outcome.interrupts;
    if (outcome?.type === 'cancelled') this.thread.note({ kind: 'end', text: 'Stopped' });
    this.thread.pendingCalls = outcome?.pendingToolCallIds ?? [];
    this.noteUsage(usage);
    return true;
  }

  failed({ message, code, usage }) {
    // The host goes down. The run is not over for that.
    if (code === 'SERVER_SHUTDOWN') throw new Broken(message);
    this.thread.finish();
    if (code === 'RUN_CANCELED') this.thread.note({ kind: 'end', text: 'Stopped' });
    else this.noteProblem('The answer failed', message, code, 'Ask again; if it fails again, `agent-host runs list` shows the record of the run.', true);
    this.noteUsage(usage);
    return true;
  }

  /** Shows what the host refused. Says whether the thread may stand otherwise than it is shown. */
  refused(error) {
    const lost = this.outbox;
    const isState = [409, 410, 422].includes(error.status) && error.code !== 'run_id_conflict';
    this.setOutbox(null);
    this.answers.clear();
    if (lost) {
      const given = new Set(lost.body.messages.map((message) => message.id));
      this.thread.messages = this.thread.messages.filter((message) => !given.has(message.id));
      this.giveBack(lost.body.messages);
    }
    this.noteProblem(lost ? 'This was not sent' : 'This cannot be shown', error.message, error.code, advice(error));
    return isState || Boolean(lost?.isBranch);
  }

  noteProblem(title, message, code, what, again = false) {
    const text = code ? `${message} (${code})` : message;
    this.thread.note({ kind: 'problem', title, text, what, again });
  }

  noteUsage(usage) {
    const number = (count) => count.toLocaleString('en');
    const lines = (usage ?? []).map(({ model, inputTokens, outputTokens, totalTokens }) => {
      const counts = [];
      if (inputTokens !== undefined) counts.push(`${number(inputTokens)} tokens in`);
      if (outputTokens !== undefined) counts.push(`${number(outputTokens)} out`);
      if (!counts.length && totalTokens !== undefined) counts.push(`${number(totalTokens)} tokens`);
      return [counts.join(', '), model].filter(Boolean).join(' · ');
    });
    if (lines.some(Boolean)) this.thread.note({ kind: 'usage', text: lines.filter(Boolean).join('; ') });
  }

  /** Waits before the next try: longer each time, and no longer than until the network is back or somebody asks for it. */
  pause(tries, error, signal) {
    return paused(BACKOFF_MS[Math.min(tries, BACKOFF_MS.length) - 1], signal, (go) => {
      if (tries < 2) return;
      const text = error instanceof Refused ? `The host is not ready: ${error.message}` : 'The connection is lost. Connecting again …';
      this.status(text, 'Now', go);
    });
  }

  // ---- Others in the same thread ----

  /** Follows the facts of an idle thread: another tab, or a client of another API, may go on with it. */
  async watch() {
    this.watching?.abort();
    const { signal } = (this.watching = new AbortController());
    const path = `/api/v1/threads/${encodeURIComponent(this.here.thread)}`;
    for (let tries = 0; !signal.aborted && !document.hidden; tries++) {
      try {
        const { eventCursor } = await get(path, signal);
        if (await this.isBehind(signal)) return signal.aborted || this.talk();
        tries = 0;
        const stream = await request(`${path}/events?after=${eventCursor}`, { headers: { Accept: STREAM }, signal });
        let checked = null;
        for await (const _ of events(stream)) {
          checked ??= new Promise((resolve) => setTimeout(resolve, SETTLE_MS)).then(async () => {
            checked = null;
            if (!signal.aborted && (await this.isBehind(signal)) && !signal.aborted) this.talk();
          }).catch(() => {});
        }
      } catch (error) {
        // A thread that was deleted stays so. For all else there is another time.
        if (error.status === 410 || error.status === 403) return;
      }
      await paused(WATCH_MS[Math.min(tries, WATCH_MS.length - 1)], signal);
    }
  }

  /** Whether the thread has something that the page does not show. */
  async isBehind(signal) {
    const now = await this.load(signal, 1);
    const { thread } = this;
    const known = new Set(thread.messages.map((message) => message.id));
    return (
      (now.activeRun && now.activeRun.runId !== this.runId) ||
      ids(now.pendingInterrupts) !== ids(thread.interrupts) ||
      ids(now.pendingToolCallIds) !== ids(thread.pendingCalls) ||
      (now.messages ?? []).some((message) => !known.has(message.id))
    );
  }

  // ---- What people do ----

  body(more) {
    return { threadId: this.here.thread, runId: newId(), protocolVersion: '1.0', messages: [], state: {}, tools: [], context: [], forwardedProps: {}, ...more };
  }

  dispatch(body, isBranch = false) {
    this.setOutbox({ ...this.here, body, isBranch });
    this.showUnsent();
    this.talk(this.outbox);
  }

  /** A message that the host may not have yet stands in the thread like any other. */
  showUnsent() {
    for (const message of this.outbox.body.messages) {
      if (this.outbox.isBranch || !this.thread.message(message.id)) this.thread.branch({ ...message });
    }
    this.changed();
  }

  say(content) {
    this.dispatch(this.body({ messages: [{ id: newId(), role: 'user', content }] }));
  }

  /** Says something else in place of a message; all that followed leaves the thread. */
  replace(id, content) {
    this.dispatch(this.body({ messages: [{ id, role: 'user', content }] }), true);
  }

  /** Asks for another answer to the last message. */
  again() {
    const last = this.thread.messages.findLast((message) => message.role === 'user');
    if (last && this.isReady) this.replace(last.id, last.content);
  }

  /** Keeps an answer until there is one to everything that is asked: they are sent together. */
  answer(interrupt, given) {
    this.answers.set(interrupt.id, { interruptId: interrupt.id, ...given });
    const open = this.thread.interrupts.filter(({ id }) => !this.answers.has(id)).length;
    if (open) return this.status(`${open} more to answer`);
    this.status('');
    this.dispatch(this.body({ resume: this.thread.interrupts.map(({ id }) => this.answers.get(id)) }));
  }

  async stop() {
    if (!this.runId) return;
    // While it streams, the stream says how it ends. One that waits for people has none.
    const isStreaming = Boolean(this.talking);
    try {
      await post(`${this.path}/runs/${encodeURIComponent(this.runId)}/cancel`, {});
      if (!isStreaming) await this.settle();
    } catch (error) {
      this.noteProblem('It could not be stopped', error.message, error.code, advice(error));
    }
    this.changed();
  }

  /** Waits until a run that was stopped asks nothing any more. */
  async settle() {
    for (let tries = 0; tries < 10; tries++) {
      await this.talk();
      if (!this.thread.interrupts.length) return this.thread.note({ kind: 'end', text: 'Stopped' });
      await new Promise((resolve) => setTimeout(resolve, 300));
    }
  }
}

/** Whether the host has what was sent. A branch has the id of a message that was there before: its run says so. */
function hasArrived({ body, isBranch }, snapshot) {
  if (snapshot.activeRun?.runId === body.runId) return true;
  if (isBranch) return false;
  const said = body.messages.map((message) => message.id);
  if (said.length) return (snapshot.messages ?? []).some((message) => said.includes(message.id));
  const answered = body.resume.map((entry) => entry.interruptId);
  return !(snapshot.pendingInterrupts ?? []).some((interrupt) => answered.includes(interrupt.id));
}

/** Waits about so long, or until `go` is called, the network is back, or the signal ends it. */
export function paused(most, signal, show = () => {}) {
  return new Promise((resolve) => {
    const go = () => {
      clearTimeout(timer);
      removeEventListener('online', go);
      signal?.removeEventListener('abort', go);
      resolve();
    };
    const timer = setTimeout(go, most * (0.7 + 0.3 * Math.random()));
    signal?.addEventListener('abort', go, { once: true });
    addEventListener('online', go, { once: true });
    show(go);
  });
}
