// Requests to the host, with the key of this tab.

import { Broken } from './agui.js';
import { pictureUrl } from './view.js';

/** What this tab remembers. A browser may refuse to, and then a reload forgets it. */
export const memory = {
  get(name) {
    try {
      return JSON.parse(sessionStorage.getItem(`agent-host.${name}`));
    } catch {
      return null;
    }
  },
  set(name, value) {
    try {
      if (value === null) sessionStorage.removeItem(`agent-host.${name}`);
      else sessionStorage.setItem(`agent-host.${name}`, JSON.stringify(value));
    } catch {
      // Full, or not allowed.
    }
  },
};

/** An answer that says no: a problem document of the host. */
export class Refused extends Error {
  constructor(status, problem) {
    super(problem.detail || problem.title || `The host answered with status ${status}.`);
    this.status = status;
    this.code = problem.code ?? '';
    this.details = problem.details ?? {};
  }

  /** Whether the same request may succeed in a moment. */
  get passes() {
    return [408, 429, 502, 503, 504].includes(this.status) && this.code !== 'queue_full';
  }
}

const dialog = document.getElementById('key');
let asking = null;

/** Asks for a key, once for all requests that need one. Says whether there is one now: who does not have to may refuse. */
export function askForKey(why, { mayRefuse = false } = {}) {
  asking ??= new Promise((resolve) => {
    const input = dialog.querySelector('input');
    dialog.querySelector('.why').textContent = why;
    const done = (given) => {
      asking = null;
      input.value = '';
      dialog.close();
      resolve(given);
    };
    dialog.oncancel = (event) => {
      event.preventDefault();
      if (mayRefuse) done(false);
    };
    dialog.querySelector('form').onsubmit = (event) => {
      event.preventDefault();
      memory.set('key', input.value.trim());
      done(true);
    };
    dialog.showModal();
  });
  return asking;
}

/** Sends a request and gives its response, if it is a good one. Throws `Refused`, or `Broken` where nobody answers. */
export async function request(path, init = {}) {
  for (;;) {
    const key = memory.get('key');
    const headers = { Accept: 'application/json', ...init.headers };
    if (key) headers.Authorization = `Bearer ${key}`;
    let response;
    try {
      response = await fetch(path, { cache: 'no-store', ...init, headers });
    } catch (error) {
      throw error.name === 'AbortError' ? error : new Broken(error.message);
    }
    if (response.ok) return response;
    const problem = await response.json().catch(() => ({}));
    if (response.status !== 401) throw new Refused(response.status, problem);
    if (memory.get('key') === key) memory.set('key', null);
    const why = key ? 'The host does not take the key that this tab has' : 'This host lets nobody in without a key';
    await askForKey(problem.detail && key ? `${why}: ${problem.detail}.` : `${why}.`);
  }
}

export async function get(path, signal) {
  const response = await request(path, { signal });
  try {
    return await response.json();
  } catch (error) {
    throw error.name === 'AbortError' ? error : new Broken(error.message);
  }
}

export function post(path, body, { signal, accept } = {}) {
  const headers = { 'Content-Type': 'application/json', ...(accept ? { Accept: accept } : {}) };
  return request(path, { method: 'POST', headers, body: JSON.stringify(body), signal });
}

const pictures = new Map();

/** The data URL of a picture of a message. Those of the host need the key, so an address alone does not do. */
export function picture(source) {
  if (source.type === 'data') return Promise.resolve().then(() => pictureUrl(source.mimeType, source.value));
  const path = source.type === 'file' ? `/api/v1/artifacts/${encodeURIComponent(source.value)}` : source.value;
  if (!pictures.has(path)) {
    const loading = request(path).then((response) => response.blob()).then(dataUrl);
    loading.catch(() => pictures.delete(path));
    pictures.set(path, loading);
  }
  return pictures.get(path);
}

async function dataUrl(blob) {
  return pictureUrl(blob.type, await base64(blob));
}

/** Saves an artifact as a file. */
export async function download(path, name) {
  const response = await request(path);
  const url = URL.createObjectURL(await response.blob());
  const link = Object.assign(document.createElement('a'), { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

/** The bytes of a file, in base64. */
export function base64(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result.slice(reader.result.indexOf(',') + 1));
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}

/** A request has room for so much of a picture (256 KiB, in base64, with the rest). */
const PICTURE_BYTES = 180_000;

/** A picture that a message has room for: the file itself, or a smaller one made of it. */
export async function fitted(file) {
  if (!/^image\/(png|jpeg|gif|webp)$/.test(file.type)) throw new Error('Pictures can be PNG, JPEG, GIF or WebP.');
  if (file.size <= PICTURE_BYTES) return file;
  let bitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    throw new Error('The browser cannot read this picture.');
  }
  for (const longest of [2048, 1536, 1024, 640, 320]) {
    const scale = Math.min(1, longest / Math.max(bitmap.width, bitmap.height));
    const canvas = document.createElement('canvas');
    canvas.width = Math.max(1, Math.round(bitmap.width * scale));
    canvas.height = Math.max(1, Math.round(bitmap.height * scale));
    canvas.getContext('2d').drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    const smaller = await new Promise((resolve) => canvas.toBlob(resolve, 'image/jpeg', 0.82));
    if (smaller && smaller.size <= PICTURE_BYTES) return smaller;
  }
  throw new Error('The picture is too large, and cannot be made small enough.');
}
