// Pictures and files of messages, and artifacts of runs.

import { h, link } from './dom.js';
import { PICTURES, download, get, picture } from './host.js';

/** Whether an address is a path of this host. */
const isOurs = (address) => /^\/(?![/\\])/.test(address);

/** A part of a message that is no text: a picture, a file to save, or a line that says what it is. */
export function media({ type, source = {} }) {
  const address = source.type === 'file' ? `/api/v1/artifacts/${encodeURIComponent(source.value)}` : source.value;
  const isForeign = source.type === 'url' && !isOurs(source.value);
  if (type === 'image') return isForeign ? foreign(source.value) : shown(source);
  const kind = `${type}${source.mimeType ? `, ${source.mimeType.split(';')[0]}` : ''}`;
  if (source.type === 'data' || isForeign) return h('div', { className: 'note' }, `Attached: ${kind}`);
  const button = saving(address, kind);
  const named = get(`${address}/metadata`);
  named.then(({ name }) => name && button.rename(name), () => {});
  return h('div', { className: 'file' }, button);
}

function shown(source) {
  const image = h('img', { className: 'picture', alt: 'Attached picture' });
  picture(source).then(
    (url) => (image.src = url),
    (error) => image.replaceWith(h('div', { className: 'note' }, `A picture that cannot be shown: ${error.message}`)),
  );
  return image;
}

/** A picture elsewhere is not loaded, as that would tell others who reads; its reader may open it. */
function foreign(address) {
  const url = parsed(address);
  if (!url || !['http:', 'https:'].includes(url.protocol)) return h('div', { className: 'note' }, 'A picture without a usable address');
  return h('div', { className: 'note' }, 'Picture at ', link(url.href, url.host));
}

/** A button that saves what an address of this host has. */
function saving(address, label) {
  const button = h('button', { type: 'button', className: 'quiet' });
  let name = label;
  button.rename = (to) => {
    name = to;
    button.textContent = `Save ${name}`;
  };
  button.rename(label);
  button.onclick = () => download(address, name).catch((error) => (button.textContent = `${name}: ${error.message}`));
  return button;
}

/** The elements of an artifact. */
export function artifact({ url, name = 'artifact', mediaType = '' }) {
  if (!isOurs(url)) return [name];
  const button = saving(url, name);
  return PICTURES.includes(mediaType) ? [media({ type: 'image', source: { type: 'url', value: url } }), button] : [button];
}

function parsed(address) {
  try {
    return new URL(address);
  } catch {
    return null;
  }
}
