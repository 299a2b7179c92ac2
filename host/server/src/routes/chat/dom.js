// Elements. What agents and people say is set as text, never as HTML; only markdown.js makes elements of it.

/** Length of the longest text that is shown: results of tools may be large. */
const SHOWN_CHARS = 20_000;

export const $ = (id) => document.getElementById(id);

/** An element with properties and children. */
export function h(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

/** A link that opens elsewhere and tells the other page nothing. */
export function link(url, text) {
  return h('a', { href: url, rel: 'noopener noreferrer', target: '_blank' }, text);
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

/** Changes a text in place. A text that only grows keeps the selection of its reader. */
export function setText(element, text) {
  const node = element.firstChild ?? element.appendChild(document.createTextNode(''));
  if (node.data === text) return;
  if (text.startsWith(node.data)) node.appendData(text.slice(node.length));
  else node.data = text;
}

export function foldable(className, label) {
  return h('details', { className }, h('summary', {}, label));
}

/** A button that copies a text, and says for a moment that it has. */
export function copyButton(text) {
  const button = h('button', { type: 'button', className: 'quiet' }, 'Copy');
  let timer;
  button.onclick = async () => {
    button.textContent = (await copied(text())) ? 'Copied' : 'Not copied';
    clearTimeout(timer);
    timer = setTimeout(() => (button.textContent = 'Copy'), 1_500);
  };
  return button;
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Not allowed, or a page without TLS from another machine.
  }
  const area = h('textarea', { value: text, className: 'unseen' });
  document.body.append(area);
  area.select();
  const done = document.execCommand('copy');
  area.remove();
  return done;
}
