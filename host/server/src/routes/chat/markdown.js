// Markdown of answers. An agent may be hostile: the parser passes no HTML, and what it makes is cleaned by DOMPurify against a
// list of elements. Both come from npm (`vendor`), and are loaded before this module.

import { copyButton, h } from './dom.js';

/** Length of the longest text that is parsed. A longer one is shown as text. */
const MARKDOWN_CHARS = 100_000;

/** Addresses that a link may have. */
const ADDRESS = /^(?:https?:\/\/|mailto:)/i;

/** Part of the time that drawing a growing text may take. */
const SHARE = 0.1;

const CLEAN = {
  ALLOWED_TAGS: [
    'p', 'br', 'hr', 'h1', 'h2', 'h3', 'h4', 'h5', 'h6', 'strong', 'em', 's', 'code', 'pre', 'ul', 'ol', 'li', 'blockquote', 'a',
    'table', 'thead', 'tbody', 'tr', 'th', 'td',
  ],
  ALLOWED_ATTR: ['href', 'class', 'start'],
  ALLOWED_URI_REGEXP: ADDRESS,
  ALLOW_ARIA_ATTR: false,
  ALLOW_DATA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

/** Classes that the parser gives. Others are classes of the page, which no answer may have. */
const CLASS = /^(?:language-[\w+#.-]{1,32}|align-(?:left|center|right))$/;

const purify = globalThis.DOMPurify;
purify.addHook('uponSanitizeAttribute', (_, attribute) => {
  if (attribute.attrName === 'class' && !CLASS.test(attribute.attrValue)) attribute.keepAttr = false;
});

const parser = globalThis.markdownit({ html: false, linkify: true, breaks: true });
parser.linkify.set({ fuzzyLink: false, fuzzyEmail: false });
parser.validateLink = (url) => ADDRESS.test(url.trim());
// A picture elsewhere is not loaded, as that would tell others who reads; its reader may open it.
parser.renderer.rules.image = (tokens, at) => {
  const [token, escape] = [tokens[at], parser.utils.escapeHtml];
  return `<a href="${escape(token.attrGet('src'))}">${escape(`Picture: ${token.content || 'without a name'}`)}</a>`;
};
// The policy of the page forbids `style`.
for (const cell of ['th_open', 'td_open']) {
  parser.renderer.rules[cell] = (tokens, at, options, _, self) => {
    const token = tokens[at];
    const aligned = /^text-align:(left|center|right)$/.exec(token.attrGet('style') ?? '');
    token.attrs = aligned ? [['class', `align-${aligned[1]}`]] : null;
    return self.renderToken(tokens, at, options);
  };
}

/** The blocks of a text: the line that each begins with, and its HTML. */
function blocks(text) {
  const context = {};
  const found = [];
  let depth = 0;
  let block = [];
  for (const token of parser.parse(text, context)) {
    block.push(token);
    depth += token.nesting;
    if (depth > 0) continue;
    found.push({ line: block[0].map?.[0] ?? 0, html: parser.renderer.render(block, parser.options, context) });
    block = [];
  }
  return found;
}

/** The elements of the HTML of a block. */
function elements(html) {
  const clean = purify.sanitize(html, CLEAN);
  for (const anchor of clean.querySelectorAll('a')) Object.assign(anchor, { target: '_blank', rel: 'noopener noreferrer' });
  for (const table of clean.querySelectorAll('table')) boxed(table, h('div', { className: 'table', tabIndex: 0 }));
  for (const pre of clean.querySelectorAll('pre')) {
    const language = /^language-(.+)$/.exec(pre.firstElementChild?.className ?? '')?.[1] ?? '';
    const copy = copyButton(() => pre.textContent.replace(/\n$/, ''));
    pre.tabIndex = 0;
    boxed(pre, h('div', { className: 'code' }, h('div', { className: 'bar' }, h('span', {}, language), copy)));
  }
  return [...clean.childNodes].filter((node) => node.nodeType === Node.ELEMENT_NODE);
}

function boxed(element, box) {
  element.replaceWith(box);
  box.append(element);
}

/** The place in a text at which a line begins. */
function placeOf(text, line) {
  let place = 0;
  for (; line > 0; line--) place = text.indexOf('\n', place) + 1;
  return place;
}

/**
 * A text that may still grow, in an element. Of a growing text the last block alone is parsed and drawn again; the whole text is
 * parsed at its end. Blocks that do not change keep their elements, and with them the selection of their reader.
 */
export class MarkdownText {
  constructor(element) {
    this.element = element;
    this.blocks = [];
    this.text = '';
    /** Blocks that are not parsed again while the text grows, and the place in the text behind them. */
    this.settled = { blocks: 0, place: 0 };
    this.notBefore = 0;
    this.timer = null;
  }

  update(text, isWhole) {
    clearTimeout(this.timer);
    if (text.length > MARKDOWN_CHARS) return this.plain(text);
    if (!this.element.classList.contains('markdown')) {
      this.element.classList.add('markdown');
      this.element.replaceChildren();
    }
    const wait = this.notBefore - performance.now();
    if (!isWhole && wait > 0) {
      this.timer = setTimeout(() => this.update(text, false), wait);
      return;
    }
    const began = performance.now();
    if (isWhole || !text.startsWith(this.text)) this.settled = { blocks: 0, place: 0 };
    this.text = text;
    const { place } = this.settled;
    const rest = text.slice(place);
    const found = blocks(rest.replaceAll('\r', ''));
    this.draw(this.settled.blocks, found);
    if (!isWhole && found.length > 1 && !rest.includes('\r')) {
      this.settled = { blocks: this.blocks.length - 1, place: place + placeOf(rest, found.at(-1).line) };
    }
    const ended = performance.now();
    this.notBefore = ended + (ended - began) / SHARE;
  }

  draw(from, found) {
    const old = this.blocks.splice(from);
    found.forEach(({ html }, at) => {
      const known = old[at];
      if (known?.html === html) return this.blocks.push(known);
      const nodes = elements(html);
      const next = [...(known?.nodes ?? []), ...old.slice(at + 1).flatMap((block) => block.nodes)][0] ?? null;
      for (const node of nodes) this.element.insertBefore(node, next);
      for (const node of known?.nodes ?? []) node.remove();
      this.blocks.push({ html, nodes });
    });
    for (const { nodes } of old.slice(found.length)) nodes.forEach((node) => node.remove());
  }

  plain(text) {
    this.element.classList.remove('markdown');
    this.blocks = [];
    this.settled = { blocks: 0, place: 0 };
    if (this.element.textContent !== text) this.element.textContent = text;
  }
}
