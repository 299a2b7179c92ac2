// What an agent asks people: one card for each interrupt, with a form where its answer has one.

import { h, readable } from './dom.js';

const KINDS = {
  confirmation: 'Your approval is needed',
  input_required: 'A question for you',
  tool_call: 'A tool waits for its answer',
  'agent-host:effect_in_doubt': 'It is not known whether this was done',
};

/** A card. `answer` is called once, with what stands in `resume` beside the id. */
export function card(interrupt, answer) {
  const said = interrupt.metadata?.title ?? interrupt.message;
  const title = h('h2', { tabIndex: -1 }, said || KINDS[interrupt.reason] || 'The agent waits for you');
  const wrong = h('p', { className: 'wrong', hidden: true });
  wrong.setAttribute('role', 'alert');
  const actions = h('div', { className: 'actions' });
  const form = h('form', { className: 'ask', noValidate: false }, h('div', { className: 'kind' }, KINDS[interrupt.reason] ?? interrupt.reason), title);
  form.dataset.interrupt = interrupt.id;
  const say = (status, payload) => {
    for (const control of form.elements) control.disabled = true;
    form.classList.add('answered');
    answer(payload === undefined ? { status } : { status, payload });
  };

  form.append(shownOf(interrupt));
  const expires = interrupt.expiresAt && new Date(interrupt.expiresAt);
  if (expires && expires <= new Date()) {
    form.append(h('p', { className: 'hint' }, 'The time for an answer is over.'));
    actions.append(h('button', { type: 'button', onclick: () => say('cancelled') }, 'Go on without'));
  } else {
    if (expires) form.append(h('p', { className: 'hint' }, `Until ${expires.toLocaleString()}`));
    const value = fill(form, actions, interrupt, say);
    form.addEventListener('submit', (event) => {
      event.preventDefault();
      try {
        say('resolved', value());
      } catch (error) {
        wrong.textContent = error.message;
        wrong.hidden = false;
      }
    });
  }
  form.append(wrong, actions);
  return form;
}

/** What whoever decides is to see beside the words. */
function shownOf({ message = '', metadata = {} }) {
  const { description, action, target, payload, parameters } = metadata;
  const box = h('div');
  if (typeof description === 'string') box.append(h('p', { className: 'message' }, description));
  if (typeof action === 'string' && !message.includes(action)) box.append(h('p', { className: 'message' }, h('code', {}, action)));
  for (const [name, value] of Object.entries({ Target: target, Payload: payload, Arguments: parameters })) {
    const isEmpty = value === undefined || value === null || (typeof value === 'object' && !Object.keys(value).length);
    if (!isEmpty) box.append(h('div', { className: 'hint' }, name), h('pre', { tabIndex: 0 }, readable(value)));
  }
  return box;
}

/** Adds fields and buttons. Gives a function that reads the answer. */
function fill(form, actions, interrupt, say) {
  const schema = interrupt.responseSchema;
  const button = (text, click) => h('button', { type: 'button', onclick: click }, text);
  const submit = (text) => h('button', { type: 'submit', className: 'primary' }, text);
  if (interrupt.reason === 'agent-host:effect_in_doubt') {
    actions.append(submit('Do it again'), button('Leave it as it is', () => say('resolved', { repeat: false })));
    return () => ({ repeat: true });
  }
  if (interrupt.reason === 'tool_call' && !schema) {
    const area = h('textarea', { id: `${interrupt.id}-result`, rows: 3 });
    form.append(h('label', { htmlFor: area.id }, 'What the tool says'), area);
    actions.append(submit('Answer'), button('Skip', () => say('cancelled')));
    return () => area.value;
  }
  if (isApproval(interrupt.reason, schema)) {
    const isBoolean = schema?.type === 'boolean';
    const reason = schema?.properties?.reason && h('input', { type: 'text', id: `${interrupt.id}-reason`, maxLength: 1000 });
    if (reason) form.append(h('label', { htmlFor: reason.id }, 'Reason (optional)'), reason);
    const payload = (approved) => (isBoolean ? approved : { approved, ...(reason?.value.trim() ? { reason: reason.value.trim() } : {}) });
    actions.append(submit('Approve'), button('Deny', () => say('resolved', payload(false))));
    return () => payload(true);
  }
  const value = fields(form, schema, interrupt.id);
  actions.append(submit('Answer'), button('Skip', () => say('cancelled')));
  return value;
}

/** Whether yes and no are all there is to say. */
function isApproval(reason, schema) {
  if (schema?.type === 'boolean' || (!schema && reason === 'confirmation')) return true;
  const names = Object.keys(schema?.properties ?? {});
  return names.includes('approved') && names.every((name) => name === 'approved' || name === 'reason');
}

/** Fields for a schema: one for each property where all of them are simple, one where it is simple itself, else JSON. */
function fields(form, schema, id) {
  if (schema?.type === 'object' && schema.properties) {
    const entries = Object.entries(schema.properties).map(([name, of]) => [name, simple(of)]);
    if (entries.length && entries.every(([, of]) => of)) {
      const required = new Set(schema.required ?? []);
      const read = entries.map(([name, of]) => [name, field(form, of, `${id}-${name}`, of.title ?? name, required.has(name))]);
      return () => {
        const given = read.map(([name, value]) => [name, value()]).filter(([, value]) => value !== undefined);
        return Object.fromEntries(given);
      };
    }
  }
  const of = simple(schema);
  return of ? field(form, of, id, of.title ?? 'Answer', true) : json(form, schema, id);
}

/** A schema that one control can fill in; none where it is not so simple. */
function simple(schema) {
  if (!schema || typeof schema !== 'object') return null;
  if (Array.isArray(schema.enum) && schema.enum.length) return schema;
  const { type } = schema;
  const kinds = Array.isArray(type) ? type.filter((kind) => kind !== 'null') : [type];
  return kinds.length === 1 && ['string', 'number', 'integer', 'boolean'].includes(kinds[0]) ? { ...schema, type: kinds[0] } : null;
}

/** One control with its label. Gives a function that reads it: `undefined` where it is left empty. */
function field(form, schema, id, label, required) {
  const control = controlOf(schema);
  control.id = id;
  if (schema.description) control.title = schema.description;
  if (schema.type === 'boolean' && !schema.enum) {
    control.checked = schema.default === true;
    form.append(h('label', { className: 'check' }, control, ` ${label}`));
    return () => control.checked;
  }
  control.required = required && schema.minLength !== 0;
  form.append(h('label', { htmlFor: id }, required ? label : `${label} (optional)`), control);
  if (schema.description) form.append(h('div', { className: 'hint' }, schema.description));
  return () => {
    if (control.value === '') return required && schema.type === 'string' && !schema.enum ? '' : undefined;
    if (schema.enum) return schema.enum[Number(control.value)];
    return schema.type === 'string' ? control.value : Number(control.value);
  };
}

function controlOf(schema) {
  if (schema.enum) {
    const options = schema.enum.map((value, at) => h('option', { value: String(at), selected: value === schema.default }, typeof value === 'string' ? value : JSON.stringify(value)));
    return h('select', {}, h('option', { value: '' }, 'Choose …'), ...options);
  }
  if (schema.type === 'boolean') return h('input', { type: 'checkbox' });
  if (schema.type === 'string') {
    const isLong = !schema.format && !(schema.maxLength <= 200);
    const control = isLong ? h('textarea', { rows: 2 }) : h('input', { type: { email: 'email', uri: 'url', date: 'date' }[schema.format] ?? 'text' });
    if (schema.maxLength !== undefined) control.maxLength = schema.maxLength;
    if (schema.minLength !== undefined) control.minLength = schema.minLength;
    if (typeof schema.default === 'string') control.value = schema.default;
    return control;
  }
  const control = h('input', { type: 'number', step: schema.type === 'integer' ? '1' : 'any' });
  if (schema.minimum !== undefined) control.min = schema.minimum;
  if (schema.maximum !== undefined) control.max = schema.maximum;
  if (schema.default !== undefined) control.value = schema.default;
  return control;
}

function json(form, schema, id) {
  const area = h('textarea', { id, rows: 4, spellcheck: false, required: true });
  form.append(h('label', { htmlFor: id }, 'Answer, as JSON'), area);
  if (schema) form.append(h('details', { className: 'hint' }, h('summary', {}, 'What it may be'), h('pre', { tabIndex: 0 }, readable(schema))));
  return () => {
    try {
      return JSON.parse(area.value);
    } catch (error) {
      throw new Error(`This is not JSON yet: ${error.message}`);
    }
  };
}
