// The field in which people write: a draft, files, and the change of an earlier message.

import { $, h } from './dom.js';
import { dataUrl, fitted, memory, PICTURES, upload } from './host.js';
import { textOf } from './view.js';

/** Length of the longest text that is sent. A host does not even read so much to its end. */
const TOO_LONG = 1_000_000;
/** Files of one message. */
const MAX_FILES = 16;

export class Composer {
  /** `send` gets the content of a message, and the id of the message that it replaces. `thread` names the open thread. */
  constructor({ isReady, send, thread, status }) {
    Object.assign(this, { isReady, send, thread, status });
    this.field = $('text');
    /** Files that were chosen, each with the promise of its part of the message. */
    this.files = [];
    /** The message that is changed, and the draft that was there before. */
    this.editing = null;
    this.field.value = memory.get('draft') ?? '';
    this.listen();
    this.grow();
  }

  listen() {
    $('composer').addEventListener('submit', (event) => {
      event.preventDefault();
      this.submit();
    });
    this.field.addEventListener('input', () => {
      if (!this.editing) memory.set('draft', this.field.value || null);
      this.grow();
    });
    this.field.addEventListener('keydown', (event) => {
      if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.submit();
    });
    this.field.addEventListener('paste', (event) => this.take(event, event.clipboardData.files));
    addEventListener('dragover', (event) => event.dataTransfer.types.includes('Files') && event.preventDefault());
    addEventListener('drop', (event) => this.take(event, event.dataTransfer.files));
    $('attach').addEventListener('click', () => $('file').click());
    $('file').addEventListener('change', () => {
      this.attach([...$('file').files]);
      $('file').value = '';
    });
    $('editing').querySelector('button').addEventListener('click', () => this.cancelEdit());
  }

  take(event, files) {
    if (!files.length) return;
    event.preventDefault();
    this.attach([...files]);
  }

  /** The field is as high as its text. */
  grow() {
    this.field.style.height = 'auto';
    this.field.style.height = `${this.field.scrollHeight}px`;
  }

  /** Puts the cursor into the field, where that opens no keyboard over the page. */
  focus() {
    if (matchMedia('(pointer: fine)').matches) this.field.focus({ preventScroll: true });
  }

  setText(text) {
    this.field.value = text;
    this.grow();
  }

  // ---- Files ----

  attach(files) {
    for (const file of files) {
      if (this.files.length === MAX_FILES) return this.status(`A message has at most ${MAX_FILES} files.`);
      this.add(file);
    }
  }

  add(file) {
    const control = new AbortController();
    const name = file.name || 'Picture';
    const size = h('small', {}, 'uploading …');
    const remove = h('button', { type: 'button', className: 'quiet' }, 'Remove');
    const item = h('li', {}, h('span', {}, name), size, remove);
    const entry = { control, item, part: null };
    remove.setAttribute('aria-label', `Remove ${name}`);
    remove.onclick = () => this.drop(entry);
    entry.part = fitted(file).then((fits) => upload(fits, this.thread(), control.signal).then((part) => [part, fits]));
    entry.part.then(
      async ([, fits]) => {
        size.textContent = `${Math.ceil(fits.size / 1000).toLocaleString('en')} kB`;
        if (PICTURES.includes(fits.type)) item.prepend(h('img', { alt: '', src: await dataUrl(fits) }));
      },
      (error) => {
        item.className = 'wrong';
        size.textContent = error.message;
      },
    );
    this.files.push(entry);
    $('attachments').append(item);
    $('attachments').hidden = false;
  }

  drop(entry) {
    entry.control.abort();
    entry.item.remove();
    this.files = this.files.filter((other) => other !== entry);
    $('attachments').hidden = !this.files.length;
  }

  // ---- Sending ----

  async submit() {
    const text = this.field.value.trim();
    const { files, editing } = this;
    if (!this.isReady() || !(text || files.length || editing?.parts.length)) return;
    if (text.length > TOO_LONG) return this.status('This is too long for one message: attach it as a file.');
    let parts;
    try {
      parts = (await Promise.all(files.map(({ part }) => part))).map(([part]) => part);
    } catch {
      return this.status('A file could not be uploaded. Remove it, or add it again.');
    }
    // The uploads took their time.
    if (!this.isReady() || this.field.value.trim() !== text || this.editing !== editing) return;
    for (const entry of files) this.drop(entry);
    parts.unshift(...(editing?.parts ?? []));
    const content = parts.length ? [...(text ? [{ type: 'text', text }] : []), ...parts] : text;
    this.setText('');
    if (editing) this.cancelEdit();
    else memory.set('draft', null);
    this.send(content, editing?.id);
  }

  /** Gets back what the host did not take. */
  giveBack(messages) {
    const text = messages.map(({ content }) => (typeof content === 'string' ? content : content.find(({ type }) => type === 'text')?.text ?? '')).join('');
    if (text && !this.field.value) this.setText(text);
  }

  /** Opens a message of the user for a change. */
  edit({ id, content }) {
    const draft = this.editing?.draft ?? this.field.value;
    const parts = typeof content === 'string' ? [] : content.filter(({ type }) => type !== 'text');
    this.editing = { id, parts, draft };
    $('editing').hidden = false;
    this.setText(textOf(typeof content === 'string' ? content : content.filter(({ type }) => type === 'text')));
    this.field.focus();
  }

  /** Goes back to the draft. Says whether a message was being changed. */
  cancelEdit() {
    if (!this.editing) return false;
    this.setText(this.editing.draft);
    this.editing = null;
    $('editing').hidden = true;
    return true;
  }

  /** Forgets what belongs to the thread that was open. */
  leave() {
    this.cancelEdit();
    for (const entry of this.files) this.drop(entry);
  }
}
