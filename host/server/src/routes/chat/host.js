// Requests to the host, with the key of this tab.

import { Broken } from './stream.js';

/** Pictures that browsers show. */
export const PICTURES = ['image/png', 'image/jpeg', 'image/gif', 'image/webp'];

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
      // What is there is not to stay where the new value has no room.
      sessionStorage.removeItem(`agent-host.${name}`);
      if (value !== null) sessionStorage.setItem(`agent-host.${name}`, JSON.stringify(value));
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

/** The data URL of bytes, where they are a picture that browsers show. */
function pictureUrl(mimeType, base64) {
  if (!PICTURES.includes(mimeType)) throw new Error(`its type is ${mimeType || 'not said'}`);
  return `data:${mimeType};base64,${base64}`;
}

/** The data URL of a picture. */
export async function dataUrl(blob) {
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
function base64(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result.slice(reader.result.indexOf(',') + 1));
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(blob);
  });
}

/** Uploads a file for a thread, and gives the part of a message that names it. */
export async function upload(file, thread, signal) {
  const query = new URLSearchParams({ conversation_id: thread, ...(file.name ? { name: file.name } : {}) });
  // An `ArrayBuffer` has no type of its own, so that the content can decide.
  const body = await file.arrayBuffer();
  const send = (headers) => request(`/api/v1/artifacts?${query}`, { method: 'POST', headers, body, signal });
  const response = await send(file.type ? { 'Content-Type': file.type } : {}).catch((error) => {
    // Browsers take the type from the name of the file.
    if (error.status === 415) return send({});
    throw error;
  });
  const { artifact_id: value, media_type: mimeType } = await response.json();
  const kind = PICTURES.includes(mimeType) ? 'image' : ['audio', 'video'].find((kind) => mimeType.startsWith(`${kind}/`)) ?? 'document';
  return { type: kind, source: { type: 'file', value, mimeType } };
}

/** Larger pictures are made smaller: models see no more of them. */
const PICTURE_BYTES = 1_500_000;

/** The file itself, or a smaller picture made of it. */
export async function fitted(file) {
  if (!['image/png', 'image/jpeg', 'image/webp'].includes(file.type) || file.size <= PICTURE_BYTES) return file;
  const bitmap = await createImageBitmap(file).catch(() => null);
  if (!bitmap) return file;
  const scale = Math.min(1, 2048 / Math.max(bitmap.width, bitmap.height));
  const canvas = document.createElement('canvas');
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  canvas.getContext('2d').drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  const smaller = await new Promise((resolve) => canvas.toBlob(resolve, 'image/jpeg', 0.85));
  return smaller && smaller.size < file.size ? new File([smaller], file.name.replace(/\.\w+$/, '.jpg'), { type: smaller.type }) : file;
}
