// The page: which thread is open, and how its parts are drawn.

import { card } from './asks.js';
import { Composer } from './composer.js';
import { $ } from './dom.js';
import { askForKey, get, memory, Refused } from './host.js';
import { advice, newId, paused, Session } from './session.js';
import { fragment, Threads } from './threads.js';
import { View } from './view.js';

let agents = [];

const session = new Session({
  changed: draw,
  status: setStatus,
  refused: (messages) => composer.giveBack(messages),
  moved: () => threads.refresh(),
});
const composer = new Composer({
  isReady: () => session.isReady,
  thread: () => session.here.thread,
  status: setStatus,
  send(content, replaces) {
    scrollDown();
    if (replaces) session.replace(replaces, content);
    else session.say(content);
  },
});
const threads = new Threads({ here: () => session.here });
const view = new View($('log'), {
  edit: (message) => session.isReady && composer.edit(message),
  again: () => session.again(),
});

// ---- Drawing ----

let isDrawing = false;
/** The phase that was drawn last. */
let drawn = '';

/** Draws what has changed, at most once for each frame. */
function draw() {
  showPhase();
  if (isDrawing) return;
  isDrawing = true;
  requestAnimationFrame(() => {
    isDrawing = false;
    const { thread } = session;
    view.draw(thread, session.outbox?.body.messages[0]?.id);
    drawAsks();
    drawState();
    $('earlier').hidden = !thread.before;
    $('about').hidden = thread.messages.length > 0 || thread.notes.length > 0;
    showPhase();
  });
}

function drawAsks() {
  const asked = $('asked');
  const { interrupts, pendingCalls } = session.thread;
  const ids = interrupts.map(({ id }) => id).join(' ');
  if (asked.dataset.ids !== ids) {
    asked.dataset.ids = ids;
    asked.replaceChildren(...interrupts.map((interrupt) => card(interrupt, (given) => session.answer(interrupt, given))));
    // People who write are not interrupted.
    if (ids && !composer.field.value) asked.querySelector('h2').focus({ preventScroll: true });
    // Where not all of it fits, it is read from its beginning.
    if (ids && follows) {
      scrollDown();
      follows = false;
      asked.firstChild.scrollIntoView({ block: 'nearest' });
    }
  }
  const waits = pendingCalls.length && !interrupts.length && session.phase === 'idle';
  composer.field.placeholder = ids ? 'Answer above first' : waits ? 'A tool of another client is to answer first' : 'Write a message';
}

function drawState() {
  const { state } = session.thread;
  const isEmpty = state === null || typeof state !== 'object' || !Object.keys(state).length;
  $('state').hidden = isEmpty;
  const text = isEmpty ? '' : JSON.stringify(state, null, 2);
  const pre = $('state').querySelector('pre');
  if (pre.textContent !== text) pre.textContent = text;
}

function showPhase() {
  const { phase } = session;
  $('working').hidden = phase !== 'busy';
  $('stop').hidden = phase === 'idle' || !session.runId;
  $('send').hidden = phase === 'busy';
  $('send').disabled = !session.here.agent || phase === 'asking';
  $('forget').hidden = !memory.get('key');
  document.body.dataset.state = phase;
  if (phase === 'idle' && drawn !== 'idle' && document.activeElement === document.body) composer.focus();
  drawn = phase;
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

const scroller = document.scrollingElement;
const isAtEnd = () => scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 80;
/** Whether the page stays at the end when it grows: until its reader goes elsewhere. */
let follows = true;
addEventListener('scroll', () => (follows = isAtEnd()), { passive: true });

function scrollDown() {
  follows = true;
  scroller.scrollTo({ top: scroller.scrollHeight });
}
new ResizeObserver(() => follows && scrollDown()).observe(document.querySelector('main'));
addEventListener('resize', () => follows && scrollDown());

/** Shows older messages, and leaves those that are read where they are. */
async function showEarlier() {
  const button = $('earlier');
  button.disabled = true;
  follows = false;
  try {
    await session.loadOlder();
    const fromEnd = scroller.scrollHeight - scroller.scrollTop;
    requestAnimationFrame(() => requestAnimationFrame(() => scroller.scrollTo({ top: scroller.scrollHeight - fromEnd })));
  } catch (error) {
    setStatus(`Earlier messages cannot be shown: ${error.message}`);
  }
  button.disabled = false;
}

async function stop() {
  $('stop').disabled = true;
  await session.stop();
  $('stop').disabled = false;
}

// ---- Places ----

/** Opens a thread. */
function open(place) {
  composer.leave();
  view.clear();
  follows = true;
  $('agent').value = place.agent;
  const { description } = agents.find(({ id }) => id === place.agent) ?? {};
  $('about').textContent = [`Say something to ${nameOf(place.agent)}.`, description].filter(Boolean).join('\n');
  session.open(place);
  threads.refresh();
  composer.focus();
}

/** The name of an agent. Where two have the same one, it has the id of the binding. */
function nameOf(id) {
  const name = agents.find((agent) => agent.id === id)?.name || id;
  const isTwice = agents.filter((agent) => agent.name === name).length > 1;
  return isTwice ? `${name} (${id})` : name;
}

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
  threads.show(false);
  open(place);
  composer.field.focus();
}

async function start() {
  for (let tries = 1; ; tries++) {
    try {
      ({ agents } = await get('/agents'));
      setStatus('');
      break;
    } catch (error) {
      if (error instanceof Refused && !error.passes) return say(error.message, advice(error));
      await session.pause(tries + 1, error);
    }
  }
  if (!agents.length) return say('This host has no agent yet.', 'Add a [[bindings]] with a runner to its configuration, and reload this page.');
  $('agent').replaceChildren(...agents.map(({ id }) => new Option(nameOf(id), id)));
  $('agent').disabled = false;
  const place = wanted();
  history.replaceState(null, '', fragment(place));
  open(place);
}

function say(...lines) {
  showPhase();
  $('about').hidden = false;
  $('about').textContent = lines.filter(Boolean).join('\n');
}

// ---- What people do ----

$('stop').addEventListener('click', stop);
$('earlier').addEventListener('click', showEarlier);
$('new').addEventListener('click', () => begin(session.here.agent));
$('agent').addEventListener('change', () => begin($('agent').value));
$('forget').addEventListener('click', async () => {
  if (await askForKey('Another key for this tab.', { mayRefuse: true })) location.reload();
});
addEventListener('keydown', (event) => {
  if (event.key !== 'Escape' || event.isComposing || document.querySelector('dialog[open]')) return;
  if (threads.show(false) || composer.cancelEdit()) return;
  if (session.phase === 'busy' && !session.isLoading) stop();
});
addEventListener('popstate', () => {
  if (!agents.length) return;
  const place = wanted();
  if (place.agent !== session.here.agent || place.thread !== session.here.thread) open(place);
});

start();
