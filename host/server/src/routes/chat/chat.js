// The page: which thread is open, what is sent, and the connection that brings the answer.
//
// The host has the truth. Whatever breaks, the page asks it how the thread stands and follows the run that is under way from
// there, so nothing is lost and nothing is doubled; what was sent is sent again with the same id until the host has it.

import { Broken, Thread, events } from './agui.js';
import { card } from './asks.js';
import { askForKey, base64, download, fitted, get, memory, picture, post, Refused, request } from './host.js';
import { View } from './view.js';

/** Messages of a thread that is opened: the most that the host gives. */
const MESSAGES = 100;
const BACKOFF_MS = [200, 500, 1_000, 2_000, 4_000, 8_000];
const STREAM = 'text/event-stream';

const $ = (id) => document.getElementById(id);

let agents = [];
/** The agent and thread that are open. */
let here = { agent: '', thread: '' };
let thread = new Thread();
/** Ends the connection of the open thread. */
let talking = null;
/** What was sent and has not arrived yet, as far as is known. */
let outbox = null;
let runId = null;
let attached = null;
/** Answers to some of what is asked, until there is one to each. */
let answers = new Map();

const view = new View($('log'), { picture, download, again: askAgain });

function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');
  return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join('-');
}

const threadPath = ({ agent, thread }) => `/agents/${encodeURIComponent(agent)}/threads/${encodeURIComponent(thread)}`;

// ---- The connection ----

/** Brings the open thread up to date and stays with it until nothing is under way. `fresh` is sent first. */
async function talk(fresh = null) {
  talking?.abort();
  const control = (talking = new AbortController());
  const { signal } = control;
  let tries = 0;
  const alive = () => {
    tries = 0;
    setStatus('');
  };
  showBusy();
  while (!signal.aborted) {
    try {
      const response = fresh ? await send(fresh, signal) : await resume(signal);
      fresh = null;
      if (!response) break;
      if (response.status !== 204) alive();
      if (await listen(response, signal, alive)) break;
    } catch (error) {
      if (signal.aborted) break;
      fresh = null;
      const isFinal = error instanceof Refused ? !error.passes : !(error instanceof Broken);
      if (isFinal) {
        if (!(error instanceof Refused)) console.error(error);
        if (!refused(error) || tries > 2) break;
      }
      tries += 1;
      await pause(tries, error, signal);
    }
  }
  if (talking === control) {
    talking = null;
    setStatus('');
    thread.finish();
    showBusy();
    draw();
  }
}

/** The run that a stop would end. It is kept beside the thread: a run that waits for people has no stream. */
function setRun(id) {
  runId = id;
  memory.set('run', { ...here, runId: id });
}

/** Starts a run with what was written. */
async function send(sent, signal) {
  const { agent } = here;
  setRun(sent.body.runId);
  const response = await post(`/agents/${encodeURIComponent(agent)}/run`, sent.body, { signal, accept: STREAM });
  delivered();
  return response;
}

function delivered() {
  outbox = null;
  memory.set('outbox', null);
  thread.interrupts = [];
  answers.clear();
  draw();
}

/** Asks how the thread stands. Gives the stream of the run that is under way, where there is one. */
async function resume(signal) {
  const snapshot = await load(signal);
  thread.hydrate(snapshot);
  if (outbox && !hasArrived(outbox, snapshot)) {
    showUnsent();
    return send(outbox, signal);
  }
  if (outbox) delivered();
  thread.interrupts = snapshot.pendingInterrupts ?? [];
  draw();
  const active = snapshot.activeRun;
  if (active) setRun(active.runId);
  if (!active || thread.interrupts.length) return null;
  const cursor = active.cursor ? `?after=${encodeURIComponent(active.cursor)}` : '';
  const path = `${threadPath(here)}/runs/${encodeURIComponent(active.runId)}/events${cursor}`;
  return request(path, { headers: { Accept: STREAM }, signal });
}

async function load(signal) {
  try {
    return await get(`${threadPath(here)}?limit=${MESSAGES}`, signal);
  } catch (error) {
    // Nobody has said anything in it yet.
    if (error instanceof Refused && error.status === 404 && agents.some(({ id }) => id === here.agent)) return {};
    throw error;
  }
}

/** Whether the host has what was sent. */
function hasArrived({ body }, snapshot) {
  if (snapshot.activeRun?.runId === body.runId) return true;
  const said = body.messages.map((message) => message.id);
  if (said.length) return (snapshot.messages ?? []).some((message) => said.includes(message.id));
  const answered = body.resume.map((entry) => entry.interruptId);
  return !(snapshot.pendingInterrupts ?? []).some((interrupt) => answered.includes(interrupt.id));
}

/** Follows a stream. Says whether it came to its end; throws `Broken` where it did not. */
async function listen(response, signal, alive) {
  // All of it was read already.
  if (response.status === 204) throw new Broken('the run is over');
  if (!response.headers.get('Content-Type')?.startsWith(STREAM)) throw new Error('The host did not answer with a stream of events.');
  for await (const event of events(response)) {
    if (signal.aborted) return true;
    alive();
    if (event.type === 'RUN_STARTED') setRun(event.runId);
    else if (event.type === 'RUN_FINISHED') return finished(event);
    else if (event.type === 'RUN_ERROR') return failed(event);
    else thread.apply(event);
    draw();
  }
  throw new Broken('the stream ended before the answer');
}

function finished({ outcome, usage }) {
  thread.finish();
  if (outcome?.type === 'interrupt') thread.interrupts = outcome.interrupts;
  if (outcome?.type === 'cancelled') thread.note({ kind: 'end', text: 'Stopped' });
  thread.pendingCalls = outcome?.pendingToolCallIds ?? [];
  noteUsage(usage);
  return true;
}

function failed({ message, code, usage }) {
  // The host goes down. The run is not over for that.
  if (code === 'SERVER_SHUTDOWN') throw new Broken(message);
  thread.finish();
  if (code === 'RUN_CANCELED') thread.note({ kind: 'end', text: 'Stopped' });
  else noteProblem('The answer failed', message, code, 'Ask again; if it fails again, `agent-host runs list` shows the record of the run.', true);
  noteUsage(usage);
  return true;
}

/** Shows what the host refused. Says whether it is worth looking how the thread stands. */
function refused(error) {
  const isState = [409, 410, 422].includes(error.status) && error.code !== 'run_id_conflict';
  const lost = outbox;
  outbox = null;
  memory.set('outbox', null);
  answers.clear();
  if (lost) takeBack(lost);
  noteProblem(lost ? 'This was not sent' : 'This cannot be shown', error.message, error.code, ADVICE[error.code] ?? '');
  return isState;
}

const ADVICE = {
  forbidden: 'Use another key, with the scope that is missing (“Change key”, above).',
  thread_busy: 'An answer is still under way, and is shown below. Send yours when it is done, or stop it.',
  interrupts_open: 'Answer first what the agent asks.',
  unknown_interrupt: 'It was answered elsewhere, or is too old: this is how the thread stands now.',
  already_answered: 'It was answered elsewhere: this is how the thread stands now.',
  expired: 'It is too late for this answer: this is how the thread stands now.',
  payload_too_large: 'Send less text, or a smaller picture.',
  queue_full: 'Too much is waiting here already. Send it again in a moment.',
  insufficient_storage: 'The disk of the host is nearly full.',
  not_found: 'Is the agent still configured? Reload the page to see those that are.',
  internal: 'The log of the host says what happened.',
};

function noteProblem(title, message, code, what, again = false) {
  const text = code ? `${message} (${code})` : message;
  thread.note({ kind: 'problem', title, text, what, again });
}

function noteUsage(usage) {
  const number = (count) => count.toLocaleString('en');
  const lines = (usage ?? []).map(({ model, inputTokens, outputTokens, totalTokens }) => {
    const counts = [];
    if (inputTokens !== undefined) counts.push(`${number(inputTokens)} tokens in`);
    if (outputTokens !== undefined) counts.push(`${number(outputTokens)} out`);
    if (!counts.length && totalTokens !== undefined) counts.push(`${number(totalTokens)} tokens`);
    return [counts.join(', '), model].filter(Boolean).join(' · ');
  });
  if (lines.some(Boolean)) thread.note({ kind: 'usage', text: lines.filter(Boolean).join('; ') });
}

/** Waits before the next try: longer each time, and no longer than until the network is back or somebody asks for it. */
function pause(tries, error, signal) {
  const most = BACKOFF_MS[Math.min(tries, BACKOFF_MS.length) - 1];
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, most * (0.7 + 0.3 * Math.random()));
    signal.addEventListener('abort', resolve, { once: true });
    addEventListener('online', resolve, { once: true });
    if (tries > 1) {
      const text = error instanceof Refused ? `The host is not ready: ${error.message}` : 'The connection is lost. Connecting again …';
      setStatus(text, 'Now', () => {
        clearTimeout(timer);
        resolve();
      });
    }
  });
}

// ---- What people do ----

function body(more) {
  return { threadId: here.thread, runId: newId(), protocolVersion: '1.0', messages: [], state: {}, tools: [], context: [], forwardedProps: {}, ...more };
}

function dispatch(sent) {
  outbox = { ...here, body: sent };
  memory.set('outbox', outbox);
  showUnsent();
  talk(outbox);
}

/** A message that the host may not have yet stands in the thread like any other. */
function showUnsent() {
  for (const message of outbox.body.messages) {
    if (!thread.message(message.id)) thread.messages.push({ ...message });
  }
  draw();
}

/** What was not taken goes back to where it was written. */
function takeBack({ body }) {
  const ids = new Set(body.messages.map((message) => message.id));
  thread.messages = thread.messages.filter((message) => !ids.has(message.id));
  const text = body.messages.map(({ content }) => (typeof content === 'string' ? content : content.find(({ type }) => type === 'text')?.text ?? '')).join('');
  if (text && !$('text').value) $('text').value = text;
  grow();
}

/** A host does not even read so much to its end. */
const TOO_LONG = 1_000_000;

function submit() {
  const text = $('text').value.trim();
  if (talking || !here.agent || thread.interrupts.length || !(text || attached)) return;
  if (text.length > TOO_LONG) return setStatus('This is too long for one message.');
  let content = text;
  if (attached) {
    const image = { type: 'image', source: { type: 'data', value: attached.base64, mimeType: attached.type } };
    content = text ? [{ type: 'text', text }, image] : [image];
  }
  $('text').value = '';
  memory.set('draft', null);
  attach(null);
  grow();
  scrollDown();
  dispatch(body({ messages: [{ id: newId(), role: 'user', content }] }));
}

function askAgain() {
  const last = thread.messages.findLast((message) => message.role === 'user');
  if (!last || talking || thread.interrupts.length) return;
  dispatch(body({ messages: [{ id: newId(), role: 'user', content: last.content }] }));
}

/** Keeps an answer until there is one to everything that is asked: they are sent together. */
function answer(interrupt, given) {
  answers.set(interrupt.id, { interruptId: interrupt.id, ...given });
  const open = thread.interrupts.filter(({ id }) => !answers.has(id)).length;
  if (open) return setStatus(`${open} more to answer`);
  setStatus('');
  dispatch(body({ resume: thread.interrupts.map(({ id }) => answers.get(id)) }));
}

async function stop() {
  if (!runId) return;
  $('stop').disabled = true;
  try {
    await post(`${threadPath(here)}/runs/${encodeURIComponent(runId)}/cancel`, {});
    // While it streams, the stream says how it ends. One that waits for people has none.
    if (!talking) await settle();
  } catch (error) {
    noteProblem('It could not be stopped', error.message, error.code, ADVICE[error.code] ?? '');
  }
  $('stop').disabled = false;
  draw();
}

/** Waits until a run that was stopped asks nothing any more. */
async function settle() {
  for (let tries = 0; tries < 10; tries++) {
    await talk();
    if (!thread.interrupts.length) return thread.note({ kind: 'end', text: 'Stopped' });
    await new Promise((resolve) => setTimeout(resolve, 300));
  }
}

async function choosePicture(file) {
  if (!file) return;
  try {
    const fits = await fitted(file);
    attach({ type: fits.type, base64: await base64(fits), name: file.name, size: fits.size });
    setStatus('');
  } catch (error) {
    setStatus(error.message);
  }
}

function attach(chosen) {
  attached = chosen;
  $('file').value = '';
  $('picture').hidden = !chosen;
  if (!chosen) return;
  $('picture').querySelector('img').src = `data:${chosen.type};base64,${chosen.base64}`;
  $('picture').querySelector('span').textContent = `${chosen.name || 'Picture'}, ${Math.ceil(chosen.size / 1000)} kB`;
}

// ---- The page ----

let isDrawing = false;

/** Draws what has changed, at most once for each frame. */
function draw() {
  if (isDrawing) return;
  isDrawing = true;
  requestAnimationFrame(() => {
    isDrawing = false;
    view.draw(thread, outbox?.body.messages[0]?.id);
    drawAsks();
    drawState();
    $('earlier').hidden = !thread.hasMore;
    $('about').hidden = thread.messages.length > 0 || thread.notes.length > 0;
  });
}

function drawAsks() {
  const asked = $('asked');
  const ids = thread.interrupts.map(({ id }) => id).join(' ');
  if (asked.dataset.ids !== ids) {
    asked.dataset.ids = ids;
    asked.replaceChildren(...thread.interrupts.map((interrupt) => card(interrupt, (given) => answer(interrupt, given))));
    // Whoever writes is not interrupted.
    if (ids && !$('text').value) asked.querySelector('h2').focus({ preventScroll: true });
    // Where not all of it fits, it is read from its beginning.
    if (ids && follows) {
      scrollDown();
      follows = false;
      asked.firstChild.scrollIntoView({ block: 'nearest' });
    }
  }
  const waits = thread.pendingCalls.length && !thread.interrupts.length && !talking;
  $('text').placeholder = ids ? 'Answer above first' : waits ? 'A tool of another client is to answer first' : 'Write a message';
  showBusy();
}

function drawState() {
  const isEmpty = thread.state === null || typeof thread.state !== 'object' || !Object.keys(thread.state).length;
  $('state').hidden = isEmpty;
  const text = isEmpty ? '' : JSON.stringify(thread.state, null, 2);
  const pre = $('state').querySelector('pre');
  if (pre.textContent !== text) pre.textContent = text;
}

function showBusy() {
  const isBusy = Boolean(talking);
  const waits = thread.interrupts.length > 0;
  $('working').hidden = !isBusy;
  $('stop').hidden = !((isBusy || waits) && runId);
  $('send').hidden = isBusy;
  $('send').disabled = !here.agent || waits;
  $('forget').hidden = !memory.get('key');
  document.body.dataset.state = isBusy ? 'busy' : waits ? 'asking' : 'idle';
}

function setStatus(text, button, click) {
  if ($('status').dataset.text === text) return;
  $('status').dataset.text = text;
  $('status').textContent = text;
  if (button) {
    const again = Object.assign(document.createElement('button'), { type: 'button', textContent: button, onclick: click });
    $('status').append(again);
  }
}

const page = document.scrollingElement;
const isAtEnd = () => page.scrollHeight - page.scrollTop - page.clientHeight < 80;
/** Whether the page stays at the end when it grows: until whoever reads goes elsewhere. */
let follows = true;
addEventListener('scroll', () => (follows = isAtEnd()), { passive: true });

function scrollDown() {
  follows = true;
  page.scrollTo({ top: page.scrollHeight });
}
new ResizeObserver(() => follows && scrollDown()).observe(document.querySelector('main'));
addEventListener('resize', () => follows && scrollDown());

/** The field is as high as its text. */
function grow() {
  $('text').style.height = 'auto';
  $('text').style.height = `${$('text').scrollHeight}px`;
}

/** Opens a thread. */
function open({ agent, thread: id }) {
  talking?.abort();
  talking = null;
  here = { agent, thread: id };
  thread = new Thread();
  const ran = memory.get('run');
  runId = ran?.agent === agent && ran.thread === id ? ran.runId : null;
  answers.clear();
  const waiting = memory.get('outbox');
  outbox = waiting?.agent === agent && waiting.thread === id ? waiting : null;
  memory.set('thread', here);
  $('agent').value = agent;
  const { name, description } = agents.find((known) => known.id === agent) ?? {};
  $('about').textContent = [`Say something to ${name ?? agent}.`, description].filter(Boolean).join('\n');
  view.clear();
  follows = true;
  setStatus('');
  draw();
  talk();
}

const fragment = ({ agent, thread }) => `#${new URLSearchParams({ agent, thread })}`;

/** The thread that the address names, or else that this tab had, or else a new one. */
function wanted() {
  const named = new URLSearchParams(location.hash.slice(1));
  const had = memory.get('thread') ?? {};
  const knows = (id) => agents.some((agent) => agent.id === id);
  const agent = [named.get('agent'), had.agent].find(knows) ?? agents[0].id;
  const thread = named.get('thread') || (had.agent === agent && had.thread) || newId();
  return { agent, thread };
}

function begin(agent) {
  const place = { agent, thread: newId() };
  history.pushState(null, '', fragment(place));
  open(place);
  $('text').focus();
}

async function start() {
  for (let tries = 1; ; tries++) {
    try {
      ({ agents } = await get('/agents'));
      setStatus('');
      break;
    } catch (error) {
      if (error instanceof Refused && !error.passes) return say(error.message, ADVICE[error.code]);
      await pause(tries + 1, error, new AbortController().signal);
    }
  }
  showBusy();
  if (!agents.length) return say('This host has no agent yet.', 'Add a [[bindings]] with a runner to its configuration, and reload this page.');
  $('agent').replaceChildren(...agents.map(({ id, name }) => new Option(name || id, id)));
  $('agent').disabled = false;
  const place = wanted();
  history.replaceState(null, '', fragment(place));
  open(place);
}

function say(...lines) {
  showBusy();
  $('about').hidden = false;
  $('about').textContent = lines.filter(Boolean).join('\n');
}

$('composer').addEventListener('submit', (event) => {
  event.preventDefault();
  submit();
});
$('text').addEventListener('input', () => {
  memory.set('draft', $('text').value || null);
  grow();
});
$('text').addEventListener('keydown', (event) => {
  if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  submit();
});
$('text').addEventListener('paste', (event) => {
  const file = [...event.clipboardData.files].find(({ type }) => type.startsWith('image/'));
  if (file) choosePicture(file);
});
$('attach').addEventListener('click', () => $('file').click());
$('file').addEventListener('change', () => choosePicture($('file').files[0]));
$('picture').querySelector('button').addEventListener('click', () => attach(null));
$('stop').addEventListener('click', stop);
$('new').addEventListener('click', () => begin(here.agent));
$('agent').addEventListener('change', () => begin($('agent').value));
$('forget').addEventListener('click', async () => {
  if (await askForKey('Another key for this tab.', { mayRefuse: true })) location.reload();
});
addEventListener('popstate', () => {
  if (!agents.length) return;
  const place = wanted();
  if (place.agent !== here.agent || place.thread !== here.thread) open(place);
});

$('text').value = memory.get('draft') ?? '';
grow();
start();
