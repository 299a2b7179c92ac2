// What an answer shows, and how it ends.

import assert from 'node:assert/strict';

import { answers, browser, is, more, open, own, page, perform, PNG, said, say, some, tell, url, write } from './page.mjs';

export const ANSWERS = {
  async streams() {
    await open();
    // Two agents with the same name are told apart by their ids.
    const names = await page.locator('#agent option').allInnerTexts();
    assert.equal(new Set(names).size, 3, names.join());
    assert.match(names.join(), /\(stage\)[^]*\(second-stage\)/);
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

  // A host of `agent-host init`.
  async begins() {
    await open();
    await say('hello there');
    assert.ok((await answers()).at(-1).includes(more.answer), (await answers()).join('\n'));
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

  async ends() {
    await open();
    await write('slow please');
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
    const asked = await own();
    await problem.evaluate((shown) => (shown.dataset.before = 'yes'));
    await problem.getByRole('button', { name: 'Ask again' }).click();
    await page.waitForFunction(() => document.querySelector('.problem:not([data-before])'));
    await is('idle');
    assert.equal(await problem.count(), 1, 'the answer that failed has left');
    assert.deepEqual(await own(), asked);

    // What is refused goes back to where it was written.
    await page.fill('#text', 'x'.repeat(300_000));
    await page.press('#text', 'Enter');
    await page.waitForFunction(() => document.querySelectorAll('.problem').length === 2);
    await is('idle');
    assert.match(await problem.last().innerText(), /was not sent[^]*Send less text/);
    assert.equal((await page.inputValue('#text')).length, 300_000);
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
    await page.locator('#attachments img[src]').waitFor();
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
};
