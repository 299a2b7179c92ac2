// The conversation on the page. What agents and people say is only ever set as text, never as HTML.

/** More of one text is not shown: results of tools may be large. */
const SHOWN_CHARS = 20_000;

const PICTURES = ['image/png', 'image/jpeg', 'image/gif', 'image/webp'];

const STATUSES = ['info', 'success', 'warning', 'error', 'pending'];

/** Components within each other that are drawn. The host refuses more. */
const LEVELS = 12;

/** An address that a page may show: the host lets no other through. */
function isSafe(url) {
  return typeof url === 'string' && /^(https:\/\/|\/api\/v1\/)/.test(url);
}

/** A component of an interface (`ui_schema`). What is unknown is left out. */
function component(node, levels) {
  if (levels === 0 || node === null || typeof node !== 'object') return h('span');
  const text = (value) => (typeof value === 'string' ? value : '');
  const status = STATUSES.includes(node.status) ? node.status : 'info';
  switch (node.type) {
    case 'stack': {
      const children = Array.isArray(node.children) ? node.children : [];
      const box = h('div', { className: 'ui-stack' }, ...children.map((child) => component(child, levels - 1)));
      box.classList.toggle('card', node.appearance === 'card');
      box.classList.toggle('row', node.direction === 'horizontal');
      return box;
    }
    case 'text':
      return h('div', { className: `ui-text ${['title', 'subtitle', 'caption'].find((role) => role === node.role) ?? 'body'}`, dir: 'auto' }, text(node.content));
    case 'badge': {
      const badge = h('span', { className: 'ui-badge' }, text(node.label));
      badge.dataset.status = status;
      return badge;
    }
    case 'field':
      return h('div', { className: 'ui-field' }, h('span', { className: 'name' }, text(node.label)), h('span', { dir: 'auto' }, text(node.content)));
    case 'link':
      if (!isSafe(node.url)) return h('span', {}, text(node.label));
      return h('a', { href: node.url, rel: 'noopener noreferrer', target: '_blank' }, text(node.label));
    case 'image':
      // The policy of the page loads no pictures from elsewhere.
      return isSafe(node.url) ? h('a', { href: node.url, rel: 'noopener noreferrer', target: '_blank' }, 'Image') : h('span');
    case 'divider':
      return h('hr');
    default:
      return h('span');
  }
}

/** An element with properties and children. */
export function h(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

/** A value as people can read it: JSON with indents, text as it is. */
export function readable(value) {
  let text = value;
  if (typeof value === 'string') {
    try {
      const parsed = JSON.parse(value);
      if (parsed !== null && typeof parsed === 'object') text = JSON.stringify(parsed, null, 2);
    } catch {
      // It is text.
    }
  } else {
    text = JSON.stringify(value, null, 2) ?? '';
  }
  return text.length > SHOWN_CHARS ? `${text.slice(0, SHOWN_CHARS)}\n… and ${text.length - SHOWN_CHARS} more characters` : text;
}

/** Changes a text in place. What only grows keeps the selection of who reads it. */
function setText(element, text) {
  const node = element.firstChild ?? element.appendChild(document.createTextNode(''));
  if (node.data === text) return;
  if (text.startsWith(node.data)) node.appendData(text.slice(node.length));
  else node.data = text;
}

function foldable(className, label) {
  const summary = h('summary', {}, label);
  return h('details', { className }, summary);
}

/** Draws a thread into a list, and changes only what is new since it was drawn last. */
export class View {
  /** `picture` gives the data URL of a source, `download` saves an artifact. `again` sends the last message once more. */
  constructor(list, { picture, download, again }) {
    this.list = list;
    this.download = download;
    this.items = new Map();
    this.picture = picture;
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
    for (const message of thread.messages) {
      // The result of a call is shown with the call.
      if (message.role !== 'tool' || !calls.has(message.toolCallId)) {
        const item = this.item(message.id, () => h('li'));
        this.drawMessage(item, message, thread, unsent);
        wanted.push(item);
      }
      addNotes(message.id);
    }
    // The message that they came after is gone: an attempt that was begun anew.
    for (const [after] of notes) if (after !== null && !known.has(after)) addNotes(after);
    this.place(wanted);
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
    item.setAttribute('aria-busy', String(thread.open.has(message.id)));
    const parts = DRAWERS[message.role] ?? DRAWERS.system;
    parts.call(this, item, message, thread);
    item.classList.toggle('unsent', isUnsent);
    if (message.subagentRunId) {
      setText(this.part(item, 'name', () => h('div', { className: 'name' })), thread.subagents.get(message.subagentRunId) ?? 'Subagent');
    }
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

  drawContent(item, content) {
    const parts = typeof content === 'string' ? [{ type: 'text', text: content }] : content ?? [];
    parts.forEach((part, at) => {
      if (part.type === 'text') {
        const name = `text ${at}`;
        if (part.text || item.parts?.has(name)) setText(this.part(item, name, () => h('div', { className: 'text', dir: 'auto' })), part.text);
      } else {
        // Once drawn it stays: what was sent as bytes comes back as an address of the same picture.
        this.part(item, `${part.type} ${at}`, () => this.media(part));
      }
    });
  }

  /** A picture, or a line that says what else it is. */
  media({ type, source = {} }) {
    if (type !== 'image') return h('div', { className: 'note' }, `Attached: ${type}${source.mimeType ? ` (${source.mimeType})` : ''}`);
    if (source.type === 'url' && !isOurs(source.value)) return foreign(source.value);
    const image = h('img', { className: 'picture', alt: 'Attached picture' });
    this.picture(source).then(
      (url) => (image.src = url),
      (error) => image.replaceWith(h('div', { className: 'note' }, `A picture that cannot be shown: ${error.message}`)),
    );
    return image;
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

  drawArtifact(item, { url, name = 'artifact', mediaType = '' }) {
    if (!isOurs(url)) return item.append(name);
    if (PICTURES.includes(mediaType)) item.append(this.media({ type: 'image', source: { type: 'url', value: url } }));
    const button = h('button', { type: 'button', className: 'quiet' }, `Save ${name}`);
    button.onclick = () => this.download(url, name).catch((error) => (button.textContent = `${name}: ${error.message}`));
    item.append(button);
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
    if (note.artifact) this.drawArtifact(item, note.artifact);
    else if (note.detail === undefined) item.append(note.text);
    else item.append(h('details', {}, h('summary', {}, note.text), h('pre', { tabIndex: 0 }, readable(note.detail))));
    return item;
  }
}

/** How the messages of each role are drawn. */
const DRAWERS = {
  user(item, message) {
    item.className = 'user';
    this.drawContent(item, message.content);
  },
  assistant(item, message, thread) {
    item.className = 'assistant';
    this.drawContent(item, message.content);
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

/** Whether an address is a path of this host. */
const isOurs = (address) => /^\/(?![/\\])/.test(address);

/** A picture elsewhere is not loaded, as that would tell others who reads; whoever wants it can open it. */
function foreign(address) {
  let url;
  try {
    url = new URL(address);
  } catch {
    url = null;
  }
  if (!url || !['http:', 'https:'].includes(url.protocol)) return h('div', { className: 'note' }, 'A picture without a usable address');
  return h('div', { className: 'note' }, 'Picture at ', h('a', { href: url.href, target: '_blank', rel: 'noopener noreferrer' }, url.host));
}

/** The data URL of bytes, where they are a picture that browsers show. */
export function pictureUrl(mimeType, base64) {
  if (!PICTURES.includes(mimeType)) throw new Error(`its type is ${mimeType || 'not said'}`);
  return `data:${mimeType};base64,${base64}`;
}
