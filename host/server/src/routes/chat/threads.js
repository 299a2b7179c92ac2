// The list of threads of the open agent.

import { $, h } from './dom.js';
import { get } from './host.js';

/** Threads of a page of the list. */
const PAGE = 30;
/** Threads that the host gives at most. */
const MOST = 100;
/** Pause after a key, before titles are searched. */
const TYPING_MS = 250;

export const fragment = (place) => `#${new URLSearchParams(place)}`;

export class Threads {
  /** `here` gives the agent and thread that are open. */
  constructor({ here }) {
    this.here = here;
    this.threads = [];
    this.next = null;
    this.loading = null;
    let timer;
    $('search').addEventListener('input', () => {
      clearTimeout(timer);
      timer = setTimeout(() => this.refresh(), TYPING_MS);
    });
    $('more-threads').addEventListener('click', () => this.load(this.next));
    $('show-threads').addEventListener('click', () => this.show(document.body.dataset.threads !== 'open'));
    $('curtain').addEventListener('click', () => this.show(false));
    $('thread-list').addEventListener('click', (event) => event.target.closest('a') && this.show(false));
  }

  /** Shows the list over the page, where the page has no room for it. Says whether that changes anything. */
  show(isOpen) {
    const was = document.body.dataset.threads === 'open';
    document.body.dataset.threads = isOpen ? 'open' : 'closed';
    $('show-threads').setAttribute('aria-expanded', String(isOpen));
    if (isOpen) $('search').focus({ preventScroll: true });
    return was !== isOpen;
  }

  refresh() {
    return this.load(null);
  }

  /** Reads the beginning of the list, or the page that follows. */
  async load(cursor) {
    this.loading?.abort();
    const { signal } = (this.loading = new AbortController());
    const { agent } = this.here();
    if (!agent) return;
    const limit = cursor ? PAGE : Math.min(MOST, Math.max(PAGE, this.agent === agent ? this.threads.length : 0));
    const query = new URLSearchParams({ limit, ...(cursor ? { cursor } : {}), ...($('search').value ? { q: $('search').value } : {}) });
    try {
      const page = await get(`/agents/${encodeURIComponent(agent)}/threads?${query}`, signal);
      if (signal.aborted) return;
      this.threads = cursor ? [...this.threads, ...page.threads] : page.threads;
      this.next = page.nextCursor ?? null;
      this.agent = agent;
      this.draw();
    } catch {
      // The list is no reason to disturb: the next change of the thread reads it again.
    }
  }

  draw() {
    const { agent, thread: open } = this.here();
    $('thread-list').replaceChildren(...this.threads.map(({ threadId, title, updatedAt }) => {
      const entry = h('a', { href: fragment({ agent, thread: threadId }) }, h('span', { dir: 'auto' }, title || 'A thread without words'), h('small', {}, when(updatedAt)));
      if (threadId === open) entry.setAttribute('aria-current', 'page');
      return h('li', {}, entry);
    }));
    $('more-threads').hidden = !this.next;
    $('no-threads').hidden = this.threads.length > 0;
    $('no-threads').textContent = $('search').value ? 'No title has this text.' : 'No threads yet.';
  }
}

/** A time of today, or else a date. */
function when(ms) {
  const at = new Date(ms);
  const isToday = at.toDateString() === new Date().toDateString();
  return isToday ? at.toLocaleTimeString([], { hour: '2-digit', minute: '2-digit' }) : at.toLocaleDateString();
}
