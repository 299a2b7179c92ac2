// Builds a page with a stock front end, serves it on an origin of its own, and plays a person in Chromium. The argument is JSON:
// see mod.rs. Ends with `done` on the standard output.

import assert from 'node:assert/strict';
import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import { join } from 'node:path';

import { launch } from '../browser.mjs';

const { page: source, url, port, modules, playwright, chromium } = JSON.parse(process.argv[2]);
const { build } = createRequire(join(modules, 'x.js'))('esbuild');
const SECONDS = 1000;

const { outputFiles: [script] } = await build({
  entryPoints: [source], bundle: true, write: false, format: 'esm', jsx: 'automatic', nodePaths: [modules], outfile: 'page.js',
  define: { 'process.env.NODE_ENV': '"production"' }, loader: { '.css': 'empty', '.woff2': 'empty', '.woff': 'empty', '.ttf': 'empty' },
  logLevel: 'error',
});
const server = createServer((request, response) => {
  const [type, body] = request.url.startsWith('/page.js')
    ? ['text/javascript', Buffer.from(script.contents)]
    : ['text/html', '<!doctype html><div id="page"></div><script type="module" src="/page.js"></script>'];
  response.writeHead(200, { 'content-type': type }).end(body);
});
await new Promise((listening) => server.listen(port, '127.0.0.1', listening));

const browser = await launch(playwright, chromium);
const context = await browser.newContext({ viewport: { width: 1000, height: 800 } });
const page = await context.newPage();
page.setDefaultTimeout(30 * SECONDS);
const said = [];
page.on('pageerror', (error) => said.push(`${error.stack}`));
page.on('console', (message) => said.push(message.text()));
page.on('response', async (response) => {
  if (response.url().startsWith(url) && response.status() >= 400) said.push(`${response.status()} ${await response.text().catch(() => '')}`);
});

/** Where each front end has what a person uses. */
const UIS = {
  'assistant-ui': {
    text: '#text', send: '#send', stop: '#stop', running: '#running', assistant: '.assistant .text', user: '.user .text', reload: '.reload', tool: '.tool',
    async edit(text) {
      await page.click('.user >> nth=-1 >> .edit');
      await page.fill('.editing textarea', text);
      await page.click('.save');
    },
    attach: () => page.click('#attach'),
    attached: '.attached',
  },
  copilotkit: {
    text: '[data-testid=copilot-chat-textarea]', send: '[data-testid=copilot-send-button]', stop: '[data-testid=copilot-send-button]',
    running: '[data-copilot-running=true]', assistant: '[data-testid=copilot-assistant-message]', user: '[data-testid=copilot-user-message]',
    reload: '[data-testid=copilot-regenerate-button]', tool: '.tool',
    async edit(text) {
      page.once('dialog', (dialog) => dialog.accept(text));
      await page.hover('[data-testid=copilot-user-message] >> nth=-1');
      await page.click('[data-testid=copilot-edit-button] >> nth=-1');
    },
    async attach() {
      await page.click('[data-testid=copilot-add-menu-button]');
      await page.click('[role=menuitem] >> nth=0');
    },
    attached: '[data-testid=copilot-attachment-queue]',
  },
};
const ui = UIS[Object.keys(UIS).find((name) => source.includes(name))];
const answers = () => page.locator(ui.assistant).allInnerTexts();
const own = async () => (await page.locator(ui.user).allInnerTexts()).map((text) => text.trim());
let thread;

/** Opens the page with a thread. */
async function open(agent, name, more = '') {
  thread = { agent: `${url}/agents/${agent}`, name };
  await page.goto(`http://127.0.0.1:${port}/?agent=${encodeURIComponent(thread.agent)}&thread=${name}${more}`);
  await page.waitForSelector(ui.text);
}

/** What the host has of the thread: the messages of the person and the agent. */
async function messages() {
  const answer = await fetch(`${thread.agent}/threads/${thread.name}?limit=100`);
  return (await answer.json()).messages.filter(({ role }) => role === 'user' || role === 'assistant');
}

/** Role and text of each of them. */
async function stored() {
  const text = (content) => (typeof content === 'string' ? content : (content ?? []).map((part) => part.text ?? part.type).join(' '));
  return (await messages()).map(({ role, content }) => `${role}: ${text(content)}`);
}

async function idle() {
  await page.waitForSelector(ui.running, { state: 'detached' });
}

async function write(text) {
  await page.fill(ui.text, text);
  await page.click(ui.send);
}

/** Sends a message and waits for an answer with this text. */
async function say(text, answer) {
  await write(text);
  await shows(answer);
}

/** Waits until the last answer has this text, and the run has ended. */
async function shows(answer) {
  try {
    await page.waitForFunction(
      ([answers, answer]) => [...document.querySelectorAll(answers)].at(-1)?.innerText.includes(answer), [ui.assistant, answer], { timeout: 20 * SECONDS },
    );
  } catch {
    throw new Error(`no answer has ${JSON.stringify(answer)}: ${JSON.stringify(await answers())}`);
  }
  await idle();
}

async function until(what, holds) {
  for (const began = Date.now(); Date.now() - began < 20 * SECONDS; await page.waitForTimeout(50)) {
    if (await holds()) return;
  }
  throw new Error(`there is not: ${what}`);
}

/** A picture of more than 4 MB: noise, which does not compress. */
async function photo() {
  const url = await page.evaluate(() => {
    const canvas = document.createElement('canvas');
    [canvas.width, canvas.height] = [1200, 1200];
    const context = canvas.getContext('2d');
    const image = context.createImageData(canvas.width, canvas.height);
    for (let at = 0; at < image.data.length; at += 65536) crypto.getRandomValues(image.data.subarray(at, at + 65536));
    for (let at = 3; at < image.data.length; at += 4) image.data[at] = 255;
    context.putImageData(image, 0, 0);
    return canvas.toDataURL('image/png');
  });
  const picture = Buffer.from(url.split(',')[1], 'base64');
  assert.ok(picture.length > 4 << 20, `${picture.length} bytes`);
  return picture;
}

const STEPS = {
  async 'a message is answered'() {
    await open('agent', 'chat');
    await say('hello', 'You said: hello');
    assert.deepEqual(await stored(), ['user: hello', 'assistant: You said: hello']);
  },

  async 'stop stops, and the next message is answered at once'() {
    await open('agent', 'stopped');
    await write('long');
    await page.waitForFunction((answers) => document.querySelector(answers)?.innerText.includes('word3'), ui.assistant);
    await page.click(ui.stop);
    await idle();
    await say('after', 'You said: after');
    assert.ok(!(await stored()).some((line) => line.includes('word79')), 'the stopped run went on');
  },

  async 'an answer is made again, and one is left'() {
    await open('agent', 'again');
    await say('one', 'You said: one');
    const [question, answer] = await messages();
    await page.hover(`${ui.assistant} >> nth=-1`);
    await page.click(`${ui.reload} >> nth=-1`);
    await until('another answer', async () => (await messages()).some(({ role, id }) => role === 'assistant' && id !== answer.id));
    await shows('You said: one');
    await say('two', 'You said: two');
    assert.deepEqual(await stored(), ['user: one', 'assistant: You said: one', 'user: two', 'assistant: You said: two']);
    const [same, other] = await messages();
    assert.equal(same.id, question.id);
    assert.notEqual(other.id, answer.id);
    assert.deepEqual(await own(), ['one', 'two']);
  },

  async 'a message is edited, and what came after it is gone'() {
    await open('agent', 'edited');
    await say('one', 'You said: one');
    await say('two', 'You said: two');
    await ui.edit('three');
    await shows('You said: three');
    await say('four', 'You said: four');
    assert.deepEqual(await stored(), [
      'user: one', 'assistant: You said: one', 'user: three', 'assistant: You said: three', 'user: four', 'assistant: You said: four',
    ]);
    assert.deepEqual(await own(), ['one', 'three', 'four']);
  },

  async 'what the page shows reaches the model'() {
    await open('agent', 'context', '&context');
    await say('what order', 'The page shows order 4711.');
  },

  async 'a photo of 4 MB is sent'() {
    await open('agent', 'photo');
    const choosing = page.waitForEvent('filechooser');
    await ui.attach();
    await (await choosing).setFiles({ name: 'photo.png', mimeType: 'image/png', buffer: await photo() });
    await page.waitForSelector(ui.attached);
    await say('look', 'You said: look');
    assert.equal((await stored())[0], 'user: look image');
    await say('and now', 'You said: and now');
  },

  async 'a tool of the page is left behind by a reload, and the thread goes on'() {
    await open('agent', 'tool');
    await write('pick');
    await page.waitForSelector(ui.tool);
    await until('the end of the run', async () => (await messages()).some(({ toolCalls }) => toolCalls?.length > 0));
    await page.reload();
    await page.waitForSelector(ui.text);
    await say('never mind', 'You said: never mind');
  },
};

if (ui === UIS.copilotkit) {
  STEPS['the chat suggests what to say next'] = async () => {
    await open('agent', 'suggestions', '&suggestions');
    await say('hello', 'You said: hello');
    await page.click('[data-testid=copilot-suggestion] >> text=Ask for a sum');
    await shows('You said: what is one and one?');
  };
}

// CopilotKit reads old threads from a runtime of its own, which is not here.
if (ui === UIS['assistant-ui']) {
  STEPS['a thread of 300 turns goes on'] = async () => {
    const agent = `${url}/agents/echo`;
    for (let turn = 0; turn < 300; turn++) {
      const input = {
        threadId: 'turns', runId: `turn-${turn}`, state: {}, tools: [], context: [], forwardedProps: {},
        messages: [{ id: `user-${turn}`, role: 'user', content: `turn ${turn} ${'x'.repeat(500)}` }],
      };
      const answer = await fetch(`${agent}/run`, { method: 'POST', headers: { 'content-type': 'application/json', accept: 'text/event-stream' }, body: JSON.stringify(input) });
      assert.match(await answer.text(), /RUN_FINISHED/);
    }
    await open('echo', 'turns');
    await shows('turn 299');
    await say('one more', 'one more');
    await say('and one more', 'and one more');
    const last = (await stored()).slice(-4);
    ['user: one more', 'assistant: one more', 'user: and one more', 'assistant: and one more'].forEach((line, at) => assert.ok(last[at].startsWith(line), last[at]));
    assert.equal((await own()).length, 302);
  };
}

let failed = 0;
for (const [name, step] of Object.entries(STEPS)) {
  said.length = 0;
  const began = Date.now();
  try {
    await step();
    console.log(`ok: ${name} (${Date.now() - began} ms)`);
  } catch (error) {
    failed += 1;
    console.log(`FAILED: ${name}: ${error.stack}\nthe page says:\n${said.join('\n')}\nthe thread has: ${JSON.stringify(await stored().catch((error) => `${error}`))}`);
  }
}
await browser.close();
server.close();
if (failed === 0) console.log('done');
process.exit(failed);
