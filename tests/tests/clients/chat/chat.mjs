// Plays one scenario on the chat page. The argument is JSON: see browser.rs. Ends with `done` on the standard output.

import assert from 'node:assert/strict';
import { createInterface } from 'node:readline';

import { launch } from '../browser.mjs';

const { scenario, url, playwright, chromium, more } = JSON.parse(process.argv[2]);
const SECONDS = 1000;
const input = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

const browser = await launch(playwright, chromium);
const context = await browser.newContext({ viewport: { width: 1000, height: 800 } });
const page = await context.newPage();
page.setDefaultTimeout(60 * SECONDS);
const problems = [];
const said = [];
page.on('pageerror', (error) => problems.push(`${error.stack}`));
page.on('console', (message) => {
  said.push(message.text());
  // A policy that is broken is a mistake of the page, whatever the page makes of it.
  if (message.text().includes('Content Security Policy')) problems.push(message.text());
});

/** Tells the test, and waits until it answers. */
async function tell(word) {
  console.log(word);
  await input.next();
}

/** Waits until the page is in this state, and has drawn it. */
async function is(state) {
  await page.waitForFunction((state) => document.body.dataset.state === state, state);
  await page.evaluate(() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn))));
}

const answers = () => page.locator('#log .assistant > .text').allInnerTexts();
const own = () => page.locator('#log .user > .text').allInnerTexts();

async function open(agent = 'agent') {
  await page.goto(`${url}/#agent=${agent}`);
  await page.waitForFunction((agent) => document.getElementById('agent').value === agent, agent);
  await is('idle');
}

/** Sends a text. The page is busy from then on, until something has come of it. */
async function write(text) {
  await page.fill('#text', text);
  await page.press('#text', 'Enter');
}

async function say(text) {
  await write(text);
  await is('idle');
}

const perform = (...script) => JSON.stringify(script);

/** Waits until so much of the last answer is there, and gives it. */
async function some(characters) {
  const last = page.locator('#log .assistant > .text').last();
  for (const began = Date.now(); Date.now() - began < 60 * SECONDS; await page.waitForTimeout(20)) {
    const text = (await last.count()) ? await last.textContent() : '';
    if (text.length >= characters) return text;
  }
  throw new Error(`the answer does not come to ${characters} characters`);
}

/** A red picture of 10 by 10. */
const PNG = 'iVBORw0KGgoAAAANSUhEUgAAAAoAAAAKCAYAAACNMs+9AAAAFUlEQVR42mNk+M9Qz0AEYBxVSF+FABJADveWkH6oAAAAAElFTkSuQmCC';

const SCENARIOS = {
  async streams() {
    await open();
    assert.equal(await page.locator('#agent option').count(), 2);
    await write('long please');
    const steps = new Set();
    while ((await page.evaluate(() => document.body.dataset.state)) === 'busy') {
      steps.add((await answers()).at(-1) ?? '');
      await page.waitForTimeout(50);
    }
    await is('idle');
    assert.deepEqual(await answers(), [more.long]);
    const grown = [...steps].filter((text) => text && text !== more.long);
    assert.ok(grown.length >= 5, `it came in ${grown.length} steps`);
    for (const text of grown) assert.ok(more.long.startsWith(text), text);

    await say('add it up');
    const tool = page.locator('.tool');
    assert.equal(await tool.count(), 1);
    assert.match(await tool.locator('summary').innerText(), /t__add\s+done/);
    assert.ok(!(await tool.locator('pre').first().isVisible()), 'a call is folded');
    await tool.locator('summary').click();
    const [asked, result] = await tool.locator('pre').allInnerTexts();
    assert.deepEqual(JSON.parse(asked), { a: 1, b: 2 });
    assert.match(result, /3/);
    const reasoning = page.locator('.reasoning');
    assert.ok(!(await reasoning.locator('.text').isVisible()), 'reasoning is folded');
    await reasoning.locator('summary').click();
    assert.equal(await reasoning.locator('.text').innerText(), 'They want a sum, so I use the tool.');
    assert.match((await answers()).at(-1), /^It is .*3/);
    assert.match(await page.locator('.note.usage').last().innerText(), /1,200 tokens in, 34 out/);
    assert.deepEqual(await own(), ['long please', 'add it up']);
  },

  async shows() {
    await open('stage');
    await say(perform(
      { do: 'result', type: 'ui.step.started', data: { name: 'look up' } },
      { do: 'result', type: 'ui.activity', data: { activity_id: 'a', activity_type: 'plan', content: { title: 'The plan', steps: ['look'] } } },
      { do: 'result', type: 'ui.activity.delta', data: { activity_id: 'a', activity_type: 'plan', patch: [{ op: 'add', path: '/steps/-', value: 'tell' }] } },
      { do: 'tool', calls: [{ id: 'c1', name: 'good', parameters: { n: 1 }, result: 'fine' }, { id: 'c2', name: 'bad', parameters: {}, error: 'it broke' }] },
      { do: 'result', type: 'ui.hints', data: { tool_call_id: 'c1', hints: { status: 'success', title: '<b>Fine</b>', links: [{ label: 'More', url: 'https://a.example/' }] } } },
      { do: 'state', key: 'city', value: 'Oslo' },
      { do: 'artifact', text: 'hello', media_type: 'text/plain', name: 'hello.txt' },
      { do: 'result', type: 'ui.step.finished', data: { name: 'look up' } },
      { do: 'say', text: 'That was it.' },
    ));
    assert.equal(await page.locator('.note.step').innerText(), 'Step: look up');
    const activity = page.locator('.activity');
    await activity.locator('summary').click();
    assert.match(await activity.innerText(), /The plan/);
    assert.deepEqual(JSON.parse(await activity.locator('pre').innerText()), { steps: ['look', 'tell'] });
    assert.equal(await page.locator('.interface .card .title').innerText(), '<b>Fine</b>');
    assert.equal(await page.locator('.interface .ui-badge').innerText(), 'SUCCESS');
    assert.equal(await page.locator('.interface a').getAttribute('href'), 'https://a.example/');
    assert.deepEqual(await page.locator('.tool summary code').allInnerTexts(), ['good', 'bad']);
    assert.match(await page.locator('.tool').nth(1).locator('pre').nth(1).textContent(), /it broke/);
    await page.locator('#state summary').click();
    assert.deepEqual(JSON.parse(await page.locator('#state pre').innerText()), { city: 'Oslo' });
    const saving = page.waitForEvent('download');
    await page.getByRole('button', { name: 'Save hello.txt' }).first().click();
    assert.equal((await saving).suggestedFilename(), 'hello.txt');
    assert.equal((await answers()).at(-1), 'That was it.');
  },

  async asks() {
    await open('stage');
    await write(perform({ do: 'say', text: 'One moment.' }, { do: 'ask', kind: 'confirmation', title: 'Shall I go on?' }));
    await is('asking');
    assert.match(await page.locator('.ask').innerText(), /Shall I go on\?/);
    assert.ok(await page.locator('#send').isDisabled(), 'nothing else is said before');
    // It is asked again after a reload, and answered once.
    await page.reload();
    await is('asking');
    assert.deepEqual(await answers(), ['One moment.']);
    await page.getByRole('button', { name: 'Approve' }).click();
    await is('idle');
    assert.equal(await page.locator('.ask').count(), 0);
    assert.match((await answers()).at(-1), /true/);

    await write(perform({ do: 'act', action: 'message.edit', target: { id: 7 }, payload: { text: 'hi' } }));
    await is('asking');
    const card = page.locator('.ask');
    assert.match(await card.innerText(), /message\.edit[^]*"id": 7/);
    await card.getByLabel('Reason').fill('not today');
    await card.getByRole('button', { name: 'Deny' }).click();
    await is('idle');
    assert.match((await answers()).at(-1), /not today/);

    const schema = {
      type: 'object',
      required: ['size', 'count'],
      properties: {
        size: { enum: ['small', 'large'], title: 'Size' },
        count: { type: 'integer', minimum: 1, title: 'How many' },
        gift: { type: 'boolean', title: 'As a gift' },
        note: { type: 'string', maxLength: 80, title: 'Note' },
      },
    };
    await write(perform({ do: 'ask', kind: 'form', title: 'Your order', schema }));
    await is('asking');
    await page.getByRole('button', { name: 'Answer' }).click();
    await page.waitForTimeout(300);
    assert.equal(await page.locator('.ask').count(), 1, 'what is required is filled in first');
    await page.getByLabel('Size').selectOption('large');
    await page.getByLabel('How many').fill('3');
    await page.getByLabel('As a gift').check();
    await page.getByRole('button', { name: 'Answer' }).click();
    await is('idle');
    for (const part of [/"?size"?\W+large/, /"?count"?\W+3/, /"?gift"?\W+true/]) assert.match((await answers()).at(-1), part);

    // What has no simple form is JSON.
    await write(perform({ do: 'ask', kind: 'form', title: 'A list', schema: { type: 'array', items: { type: 'integer' } } }));
    await is('asking');
    await page.getByLabel('Answer, as JSON').fill('[1, 2');
    await page.getByRole('button', { name: 'Answer' }).click();
    assert.match(await page.locator('.ask .wrong').innerText(), /not JSON/);
    await page.getByLabel('Answer, as JSON').fill('[1, 2]');
    await page.getByRole('button', { name: 'Answer' }).click();
    await is('idle');
    assert.match((await answers()).at(-1), /1,\s*2/);

    // A question that is not answered can be skipped, and a run that waits can be stopped.
    await write(perform({ do: 'ask', kind: 'form', title: 'Anything?', schema: { type: 'string' } }, { do: 'say', text: 'Well then.' }));
    await is('asking');
    await page.getByRole('button', { name: 'Skip' }).click();
    await is('idle');
    assert.equal((await answers()).at(-1), 'Well then.');
    await write(perform({ do: 'ask', kind: 'confirmation', title: 'Really?' }, { do: 'say', text: 'Never said.' }));
    await is('asking');
    await page.getByRole('button', { name: 'Stop' }).click();
    await is('idle');
    assert.equal(await page.locator('.ask').count(), 0);
    assert.equal((await answers()).at(-1), 'Well then.');
    assert.equal(await page.locator('.problem').count(), 0);
  },

  async reloads() {
    await open();
    await write('long please');
    for (const characters of [30, 150, 300]) {
      const before = await some(characters);
      await page.reload();
      await is('busy');
      const after = await some(before.length);
      assert.ok(after.startsWith(before) && more.long.startsWith(after), `${before}\n${after}`);
    }
    await is('idle');
    assert.deepEqual(await answers(), [more.long]);
    assert.deepEqual(await own(), ['long please']);
    // A second tab has the same thread by its address.
    const other = await context.newPage();
    await other.goto(page.url());
    await other.waitForFunction(() => document.querySelectorAll('#log .assistant').length === 1);
    assert.equal(await other.locator('#log .assistant > .text').innerText(), more.long);
    await page.reload();
    await is('idle');
    assert.deepEqual(await answers(), [more.long]);

    // Two that write at once: the one that is too late hears so, has its words back, and sees the answer of the other.
    await write('long again');
    await some(30);
    await other.fill('#text', 'me too');
    await other.press('#text', 'Enter');
    await other.locator('.problem').waitFor();
    assert.match(await other.locator('.problem').innerText(), /was not sent[^]*thread_busy[^]*still under way/);
    assert.equal(await other.inputValue('#text'), 'me too');
    await is('idle');
    await other.waitForFunction(() => document.body.dataset.state === 'idle');
    await other.waitForFunction((long) => document.querySelector('#log').innerText.split(long).length === 3, more.long);
    assert.deepEqual(await other.locator('#log .user > .text').allInnerTexts(), ['long please', 'long again']);
  },

  async dies() {
    await open();
    await write('long please');
    await some(100);
    await tell('kill');
    await page.waitForFunction(() => /Connecting again/.test(document.getElementById('status').textContent));
    // What was seen stays, and so does what is written meanwhile.
    assert.ok((await some(100)).length >= 100);
    await page.fill('#text', 'and then');
    console.log('start');
    await is('idle');
    assert.deepEqual(await answers(), [more.long]);
    assert.deepEqual(await own(), ['long please']);
    assert.equal(await page.inputValue('#text'), 'and then');
    assert.equal(await page.locator('#status').innerText(), '');
    await page.reload();
    await is('idle');
    assert.deepEqual(await answers(), [more.long]);

    // What is sent while the host is away arrives when it is back, once.
    await tell('kill');
    await write('short');
    await page.waitForFunction(() => /Connecting again/.test(document.getElementById('status').textContent));
    assert.equal(await page.locator('#log .unsent').innerText(), 'short');
    console.log('start');
    await is('idle');
    assert.deepEqual(await answers(), [more.long, 'You said: short']);
    assert.deepEqual(await own(), ['long please', 'short']);
    assert.equal(await page.locator('#log .unsent').count(), 0);
  },

  async markup() {
    await open();
    await say('markup please');
    assert.deepEqual(await answers(), [more.markup]);
    await say(more.markup);
    assert.deepEqual(await answers(), [more.markup, `You said: ${more.markup}`]);
    assert.equal((await own()).at(-1), more.markup);
    await page.reload();
    await is('idle');
    assert.deepEqual(await answers(), [more.markup, `You said: ${more.markup}`]);
    assert.equal(await page.locator('#log img, #log b, #log script').count(), 0);
    assert.equal(await page.title(), 'Agent Host');
    const { headers } = await page.evaluate(async () => ({ headers: [...(await fetch('/')).headers] }));
    assert.match(Object.fromEntries(headers)['content-security-policy'], /default-src 'none'; script-src 'self'/);
  },

  async ends() {
    await open();
    await write('long please');
    await some(60);
    await page.getByRole('button', { name: 'Stop' }).click();
    await is('idle');
    assert.equal(await page.locator('.note.end').innerText(), 'Stopped');
    const [stopped] = await answers();
    assert.ok(stopped.length < more.long.length && more.long.startsWith(stopped), stopped);
    await say('short');
    assert.equal((await answers()).at(-1), 'You said: short');

    await say('fail please');
    const problem = page.locator('.problem');
    assert.match(await problem.innerText(), /The answer failed[^]*the model broke[^]*Ask again/);
    await problem.getByRole('button', { name: 'Ask again' }).click();
    await page.waitForFunction(() => document.querySelectorAll('.problem').length === 2);
    await is('idle');

    // What is refused goes back to where it was written.
    await page.fill('#text', 'x'.repeat(300_000));
    await page.press('#text', 'Enter');
    await page.waitForFunction(() => document.querySelectorAll('.problem').length === 3);
    await is('idle');
    assert.match(await problem.last().innerText(), /was not sent[^]*Send less text/);
    assert.equal((await page.inputValue('#text')).length, 300_000);
  },

  async threads() {
    await open();
    await say('one');
    const first = page.url();
    await page.getByRole('button', { name: 'New thread' }).click();
    await is('idle');
    assert.deepEqual(await answers(), []);
    assert.notEqual(page.url(), first);
    await say('two');
    await page.goBack();
    await page.waitForFunction(() => document.querySelector('#log .user')?.textContent === 'one');
    await is('idle');
    assert.deepEqual(await answers(), ['You said: one']);
    await page.goForward();
    await page.waitForFunction(() => document.querySelector('#log .user')?.textContent === 'two');
    await is('idle');
    // Without a fragment, a tab goes on where it was.
    await page.goto(`${url}/`);
    await page.waitForFunction(() => document.querySelector('#log .user')?.textContent === 'two');
    await page.selectOption('#agent', 'stage');
    await is('idle');
    assert.deepEqual(await own(), []);

    await page.setViewportSize({ width: 360, height: 640 });
    await page.emulateMedia({ colorScheme: 'dark' });
    await say('w'.repeat(500));
    const width = await page.evaluate(() => document.scrollingElement.scrollWidth);
    assert.ok(width <= 360, `the page is ${width} wide`);
    const ground = await page.evaluate(() => getComputedStyle(document.documentElement).backgroundColor);
    assert.ok(ground.match(/\d+/g).every((part) => Number(part) < 64), ground);
    const nameless = await page.evaluate(() => {
      const controls = [...document.querySelectorAll('button, select, textarea, input:not([aria-hidden])')];
      return controls.filter((it) => !it.innerText?.trim() && !it.textContent.trim() && !it.labels?.length && !it.ariaLabel).map((it) => it.outerHTML);
    });
    assert.deepEqual(nameless, []);
    // Everything can be done from the keyboard.
    await page.fill('#text', 'by keys');
    await page.press('#text', 'Shift+Enter');
    await page.keyboard.type('only');
    await page.keyboard.press('Enter');
    await is('idle');
    await page.waitForFunction(() => document.querySelectorAll('#log .user').length === 2);
    assert.equal((await own()).at(-1), 'by keys\nonly');
  },

  async keys() {
    await page.goto(`${url}/#agent=agent`);
    const dialog = page.locator('#key');
    await dialog.waitFor();
    await dialog.getByLabel('Key').fill('ahk_wrong');
    await dialog.getByRole('button').click();
    await page.waitForFunction(() => /does not take the key/.test(document.querySelector('#key[open] .why')?.textContent));
    await dialog.getByLabel('Key').fill(more.key);
    await page.keyboard.press('Enter');
    await page.waitForFunction(() => document.getElementById('agent').value === 'agent');
    await is('idle');
    await say('hello');
    assert.deepEqual(await answers(), ['You said: hello']);

    await page.setInputFiles('#file', { name: 'red.png', mimeType: 'image/png', buffer: Buffer.from(PNG, 'base64') });
    await page.locator('#picture img[src]').waitFor();
    await say('what is this?');
    const picture = () => page.waitForFunction(() => document.querySelector('#log .user img')?.naturalWidth === 10);
    await picture();
    // Not asked for again in this tab; the picture now comes from the host, with the key.
    await page.reload();
    await is('idle');
    assert.ok(!(await dialog.isVisible()));
    await picture();
    assert.equal(await page.locator('#log .user img').count(), 1);
    assert.ok(!page.url().includes(more.key) && !said.some((text) => text.includes(more.key)));
    // Another tab has to ask.
    const other = await (await browser.newContext()).newPage();
    await other.goto(page.url());
    await other.locator('#key').waitFor();
  },

  // The page of the description, which is another page.
  async docs() {
    await page.goto(`${url}/docs`);
    const operation = page.locator('#operations-events-events_accept');
    await operation.locator('.opblock-summary-control').click();
    await operation.getByText('x-problem-codes').first().waitFor();
    assert.ok((await page.locator('.opblock').count()) > 80);
    assert.match(await operation.innerText(), /message\.received/);
  },

  // The page of the task board, which is another page (example-runners/task-board).
  async board() {
    const card = (title) => page.locator('article', { hasText: title });
    const opened = async (title, approval) => {
      await page.fill('[name=title]', title);
      if (approval) await page.check('[name=approval]');
      await page.click('button:text-is("Open")');
      await card(title).waitFor();
      assert.equal(await page.inputValue('[name=title]'), '', 'the form is empty again');
    };
    await page.goto(url);
    await page.locator('[name=agent][value=echoing-agent]').waitFor();
    const markup = '<b>bold</b>';
    const long = `A title with a word of a hundred letters ${'letter'.repeat(17)}`;
    await page.fill('[name=text]', 'so many words '.repeat(20));
    await opened(`${markup} ${long}`);
    await card(long).locator('.state.done').waitFor();
    assert.equal(await page.locator('article b').count(), 0, 'markup is text');
    await opened('begins later', true);
    await card('begins later').locator('.state.needs-approval').waitFor();
    await card(long).locator('button:text-is("Record")').click();
    const record = card(long).locator('pre', { hasText: 'run.completed' });
    await record.waitFor();

    // What did not change stays where it is, with the open record.
    const place = await record.evaluate((record) => { record.focus(); record.scrollTop = 50; return record.scrollTop; });
    await card('begins later').locator('button:text-is("Approve")').evaluate((button) => button.click());
    await card('begins later').locator('.state.done').waitFor();
    assert.deepEqual(await record.evaluate((record) => [record === document.activeElement, record.scrollTop]), [true, place]);
    assert.equal(place, 50);

    // A refusal stays until the next request.
    await page.evaluate(() => post('/runs/nothing/cancel'));
    assert.match(await page.locator('#refused').innerText(), /not an id/);
    for (const width of [320, 700, 1600]) {
      await page.setViewportSize({ width, height: 700 });
      const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      assert.ok(over <= 0, `${over} pixels too wide at ${width}`);
      assert.ok(await page.locator('button:text-is("Open")').isVisible());
    }
  },
};

const patience = setTimeout(() => {
  console.log('the scenario takes too long');
  process.exit(1);
}, 140 * SECONDS);
try {
  await SCENARIOS[scenario]();
  assert.deepEqual(problems, []);
} catch (error) {
  console.log(error.stack);
  console.log([...problems, ...said].join('\n'));
  console.log(await page.locator('body').innerText().catch(() => ''));
  process.exitCode = 1;
}
clearTimeout(patience);
await browser.close();
if (!process.exitCode) console.log('done');
process.exit();
