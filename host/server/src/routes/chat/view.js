// The conversation on the page: a list of messages and notes, of which only what has changed is drawn again.

import { copyButton, foldable, h, readable, setText } from './dom.js';
import { LEVELS, STATUSES, component } from './interface.js';
import { MarkdownText } from './markdown.js';
import { artifact, media } from './media.js';

/** Draws a thread into a list. */
export class View {
  /** `edit` opens a message of the user for a change, `again` asks for another answer to the last one. */
  constructor(list, { edit, again }) {
    this.list = list;
    this.items = new Map();
    this.edit = edit;
    this.again = again;
  }

  clear() {
    this.items.clear();
    this.list.replaceChildren();
  }

  draw(thread, unsent) {
    const notes = grouped(thread.notes);
    const wanted = [];
    const addNotes = (after) => {
      for (const note of notes.get(after) ?? []) {
        const item = this.item(note, () => this.drawNote(note));
        item.classList.toggle('running', Boolean(note.running));
        wanted.push(item);
      }
    };
    const known = new Set(thread.messages.map((message) => message.id));
    const calls = new Set(thread.messages.flatMap((message) => message.toolCalls ?? []).map((call) => call.id));
    addNotes(null);
    let last = null;
    for (const message of thread.messages) {
      // The result of a call is shown with the call.
      if (message.role !== 'tool' || !calls.has(message.toolCallId)) {
        const item = this.item(message.id, () => h('li'));
        this.drawMessage(item, message, thread, unsent);
        wanted.push(item);
        last = item;
      }
      addNotes(message.id);
    }
    // The message that they came after is gone: an attempt that was begun anew.
    for (const [after] of notes) if (after !== null && !known.has(after)) addNotes(after);
    this.place(wanted);
    for (const item of wanted) item.classList.toggle('last', item === last);
  }

  /** The element of a message or note, made where there is none yet. */
  item(key, make) {
    let item = this.items.get(key);
    if (!item) {
      item = make();
      this.items.set(key, item);
    }
    return item;
  }

  place(wanted) {
    const stays = new Set(wanted);
    for (const [key, item] of this.items) {
      if (stays.has(item)) continue;
      item.remove();
      this.items.delete(key);
    }
    let next = this.list.firstChild;
    for (const item of wanted) {
      if (item === next) next = next.nextSibling;
      else this.list.insertBefore(item, next);
    }
  }

  drawMessage(item, message, thread, unsent) {
    const drawn = item.drawn ?? {};
    const revision = thread.revisions.get(message);
    const isUnsent = message.id === unsent;
    if (drawn.message === message && drawn.revision === revision && drawn.isUnsent === isUnsent) return;
    item.drawn = { message, revision, isUnsent };
    item.dataset.role = message.role;
    const isOpen = thread.open.has(message.id);
    item.setAttribute('aria-busy', String(isOpen));
    const parts = DRAWERS[message.role] ?? DRAWERS.system;
    parts.call(this, item, message, thread);
    item.classList.toggle('unsent', isUnsent);
    if (message.subagentRunId) {
      setText(this.part(item, 'name', () => h('div', { className: 'name' })), thread.subagents.get(message.subagentRunId) ?? 'Subagent');
    }
    if (!isUnsent && !isOpen) this.drawActions(item, message);
    const actions = item.parts?.get('actions');
    if (actions) actions.hidden = isUnsent || isOpen;
  }

  /** The buttons of a message. */
  drawActions(item, message) {
    if (!['user', 'assistant'].includes(message.role)) return;
    const hasText = textOf(message.content) !== '';
    const actions = this.part(item, 'actions', () => {
      const shown = () => item.drawn.message;
      const box = h('div', { className: 'message-actions' }, copyButton(() => textOf(shown().content)));
      const button = (className, text, onclick) => box.append(h('button', { type: 'button', className: `quiet ${className}`, onclick }, text));
      if (message.role === 'user') button('edit', 'Edit', () => this.edit(shown()));
      else if (!message.subagentRunId) button('again', 'Regenerate', () => this.again());
      return box;
    });
    actions.firstChild.hidden = !hasText;
    item.append(actions);
  }

  /** The part of an item with this name, made where there is none yet. */
  part(item, name, make) {
    item.parts ??= new Map();
    let part = item.parts.get(name);
    if (!part) {
      part = make();
      item.parts.set(name, part);
      if (name === 'name') item.prepend(part);
      else item.append(part);
    }
    return part;
  }

  drawContent(item, content, drawText = setText) {
    const parts = typeof content === 'string' ? [{ type: 'text', text: content }] : content ?? [];
    parts.forEach((part, at) => {
      if (part.type === 'text') {
        const name = `text ${at}`;
        if (part.text || item.parts?.has(name)) drawText(this.part(item, name, () => h('div', { className: 'text', dir: 'auto' })), part.text);
      } else {
        // Once drawn it stays: what was sent as bytes comes back as an address of the same picture.
        this.part(item, `${part.type} ${at}`, () => media(part));
      }
    });
  }

  drawTool(item, call, thread) {
    const tool = this.part(item, `call ${call.id}`, () => {
      const details = foldable('tool', h('code'));
      details.firstChild.append(h('span'));
      details.append(h('div', {}, h('div', {}, 'Arguments'), h('pre', { tabIndex: 0 }), h('div', {}, 'Result'), h('pre', { tabIndex: 0 })));
      details.dataset.call = call.id;
      return details;
    });
    const [name, state] = tool.firstChild.children;
    const [, asked, resultTitle, answered] = tool.lastChild.children;
    const result = thread.result(call.id);
    setText(name, call.function.name);
    setText(asked, readable(call.function.arguments || '{}'));
    tool.dataset.state = result ? (result.error ? 'failed' : 'done') : 'running';
    state.textContent = result ? (result.error ? ' failed' : ' done') : ` ${thread.progress.get(call.id) || 'running …'}`;
    resultTitle.hidden = answered.hidden = !result;
    if (result) setText(answered, result.error ? readable(result.error) : readable(textOf(result.content)));
  }

  drawNote(note) {
    if (note.kind === 'problem') {
      const item = h('li', { className: 'problem' }, h('strong', {}, note.title), h('p', {}, note.text));
      item.setAttribute('role', 'alert');
      if (note.what) item.append(h('p', { className: 'what' }, note.what));
      if (note.again) {
        const button = h('button', { type: 'button', onclick: () => this.again() }, 'Ask again');
        item.append(h('div', { className: 'actions' }, button));
      }
      return item;
    }
    const item = h('li', { className: `note ${note.kind}` });
    if (note.artifact) item.append(...artifact(note.artifact));
    else if (note.detail === undefined) item.append(note.text);
    else item.append(h('details', {}, h('summary', {}, note.text), h('pre', { tabIndex: 0 }, readable(note.detail))));
    return item;
  }
}

/** The functions that draw the messages of each role. */
const DRAWERS = {
  user(item, message) {
    item.className = 'user';
    this.drawContent(item, message.content);
  },
  assistant(item, message, thread) {
    item.className = 'assistant';
    const isWhole = !thread.open.has(message.id);
    this.drawContent(item, message.content, (element, text) => {
      element.markdown ??= new MarkdownText(element);
      element.markdown.update(text, isWhole);
    });
    for (const call of message.toolCalls ?? []) this.drawTool(item, call, thread);
  },
  reasoning(item, message) {
    item.className = '';
    const details = this.part(item, 'details', () => {
      const details = foldable('reasoning', 'Reasoning');
      details.append(h('div', { className: 'text', dir: 'auto' }));
      return details;
    });
    setText(details.lastChild, message.content ?? '');
  },
  tool(item, message) {
    item.className = 'note';
    this.drawContent(item, message.content);
  },
  activity(item, message) {
    if (message.activityType === 'ui_schema') {
      item.className = 'interface';
      const { root, status } = message.content ?? {};
      item.dataset.status = STATUSES.includes(status) ? status : 'info';
      item.replaceChildren(component(root, LEVELS));
      return;
    }
    item.className = 'activity';
    const { title, text, message: said, ...rest } = message.content ?? {};
    const line = [title, text, said].filter((part) => typeof part === 'string').join(': ') || message.activityType;
    const more = this.part(item, 'more', () => {
      const details = foldable('', h('span'));
      details.append(h('pre', { tabIndex: 0 }));
      return details;
    });
    const only = this.part(item, 'only', () => h('div'));
    only.hidden = Object.keys(rest).length > 0;
    more.hidden = !only.hidden;
    setText(only, line);
    setText(more.querySelector('span'), line);
    setText(more.lastChild, readable(rest));
  },
  system(item, message) {
    item.className = 'note';
    const details = this.part(item, 'details', () => {
      const details = foldable('', message.role);
      details.append(h('div', { className: 'text' }));
      return details;
    });
    setText(details.lastChild, textOf(message.content));
  },
};

function grouped(notes) {
  const groups = new Map();
  for (const note of notes) groups.set(note.after, [...(groups.get(note.after) ?? []), note]);
  return groups;
}

/** The text of content: a string, or parts. */
export function textOf(content) {
  if (typeof content === 'string') return content;
  return (content ?? []).map((part) => (part.type === 'text' ? part.text : `[${part.type}]`)).join('\n');
}
