// Interfaces that agents show (`ui_schema`): components of a closed list.

import { h, link } from './dom.js';

export const STATUSES = ['info', 'success', 'warning', 'error', 'pending'];

/** Components within each other that are drawn. The host refuses more. */
export const LEVELS = 12;

/** Whether a page may show an address. The host lets no other through. */
function isSafe(url) {
  return typeof url === 'string' && /^(https:\/\/|\/api\/v1\/)/.test(url);
}

/** A component. An unknown one is left out. */
export function component(node, levels) {
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
      return isSafe(node.url) ? link(node.url, text(node.label)) : h('span', {}, text(node.label));
    case 'image':
      // The policy of the page loads no pictures from elsewhere.
      return isSafe(node.url) ? link(node.url, 'Image') : h('span');
    case 'divider':
      return h('hr');
    default:
      return h('span');
  }
}
