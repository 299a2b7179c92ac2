// Threads: reloads, branches, pages, and other tabs.

import assert from 'node:assert/strict';

import { answers, context, is, more, open, own, page, say, some, url, write } from './page.mjs';

export const THREADS = {
  async reloads() {
    await open();
    await write('slow please');
    for (const characters of [30, 150, 300]) {
      const before = await some(characters);
      await page.reload();
      await is('busy');
      const after = await some(before.length);
      assert.ok(after.startsWith(before) && more.long.startsWith(after), `${before}\n${after}`);
    }
    await is('idle');
    assert.deepEqual(await answers(), [more.long]);
    assert.deepEqual(await own(), ['slow please']);
    // A second tab has the same thread by its address.
    const other = await context.newPage();
    await other.goto(page.url());
    await other.waitForFunction(() => document.querySelectorAll('#log .assistant').length === 1);
    assert.equal(await other.locator('#log .assistant > .text').innerText(), more.long);
    await page.reload();
    await is('idle');
    assert.deepEqual(await answers(), [more.long]);

    // Two that write at once: the one that is too late hears so, has its words back, and sees the answer of the other.
    await other.evaluate(() => {
      // A tab that nobody sees does not follow.
      Object.defineProperty(document, 'hidden', { value: true });
      document.dispatchEvent(new Event('visibilitychange'));
    });
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
    assert.deepEqual(await other.locator('#log .user > .text').allInnerTexts(), ['slow please', 'long again']);
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
    // The list has the first words of each, newest first, and leads back.
    await page.waitForFunction(() => document.querySelector('#thread-list a[aria-current=page] span')?.textContent === 'two');
    assert.deepEqual((await page.locator('#thread-list a span').allInnerTexts()).slice(0, 2), ['two', 'one']);
    await page.fill('#search', 'ON');
    await page.waitForFunction(() => document.querySelectorAll('#thread-list a').length === 1);
    await page.fill('#search', '');
    await page.waitForFunction(() => document.querySelectorAll('#thread-list a').length === 2);
    await page.locator('#thread-list a', { hasText: 'one' }).click();
    await page.waitForFunction(() => document.querySelector('#log .user > .text')?.textContent === 'one');
    await page.goBack();
    await page.waitForFunction(() => document.querySelector('#log .user > .text')?.textContent === 'two');
    await page.goBack();
    await page.waitForFunction(() => document.querySelector('#log .user > .text')?.textContent === 'one');
    await is('idle');
    assert.deepEqual(await answers(), ['You said: one']);
    await page.goForward();
    await page.waitForFunction(() => document.querySelector('#log .user > .text')?.textContent === 'two');
    await is('idle');
    // Without a fragment, a tab goes on where it was.
    await page.goto(`${url}/`);
    await page.waitForFunction(() => document.querySelector('#log .user > .text')?.textContent === 'two');
    await page.selectOption('#agent', 'stage');
    await is('idle');
    assert.deepEqual(await own(), []);

    await page.setViewportSize({ width: 360, height: 640 });
    await page.emulateMedia({ colorScheme: 'dark' });
    await say('w'.repeat(500));
    const width = await page.evaluate(() => document.scrollingElement.scrollWidth);
    assert.ok(width <= 360, `the page is ${width} wide`);
    // The list leaves a page without room for it.
    await page.locator('#thread-list').waitFor({ state: 'hidden' });
    await page.getByRole('button', { name: 'Threads' }).click();
    await page.locator('#search').waitFor();
    await page.keyboard.press('Escape');
    await page.locator('#thread-list').waitFor({ state: 'hidden' });
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

  async branches() {
    await open();
    await say('one');
    await say('two');
    const runs = async () => {
      const thread = new URLSearchParams(new URL(page.url()).hash.slice(1)).get('thread');
      return page.evaluate(async (thread) => (await (await fetch(`/api/v1/runs?conversation_id=${thread}`)).json()).items.length, thread);
    };
    assert.equal(await runs(), 2);
    const users = page.locator('#log .user');
    await users.first().hover();
    await users.first().getByRole('button', { name: 'Copy' }).click();
    await users.first().getByRole('button', { name: 'Copied' }).waitFor();
    assert.equal(await page.evaluate(() => navigator.clipboard.readText()), 'one');

    // The last answer is asked for again, and takes the place of the first.
    assert.equal(await page.getByRole('button', { name: 'Regenerate' }).count(), 1, 'of the last answer alone');
    await page.getByRole('button', { name: 'Regenerate' }).click();
    // The page may have been busy for a shorter time than between two looks.
    for (let looks = 0; (await runs()) < 3; looks += 1) {
      assert.ok(looks < 200, 'no third run');
      await page.waitForTimeout(50);
    }
    await is('idle');
    assert.equal(await runs(), 3);
    assert.deepEqual(await own(), ['one', 'two']);
    assert.deepEqual(await answers(), ['You said: one', 'You said: two']);

    // A change that is given up leaves the draft and the thread as they were.
    await page.fill('#text', 'a draft');
    await users.first().hover();
    await users.first().getByRole('button', { name: 'Edit' }).click();
    assert.equal(await page.inputValue('#text'), 'one');
    await page.keyboard.press('Escape');
    assert.equal(await page.inputValue('#text'), 'a draft');
    assert.ok(!(await page.locator('#editing').isVisible()));
    await page.fill('#text', '');

    // A changed message has another answer, and what followed has left the thread.
    await users.first().hover();
    await users.first().getByRole('button', { name: 'Edit' }).click();
    await say('one, better');
    const changed = async () => {
      assert.deepEqual(await own(), ['one, better']);
      assert.deepEqual(await answers(), ['You said: one, better']);
    };
    await changed();
    assert.equal(await runs(), 4);
    await page.reload();
    await is('idle');
    await changed();
    await say('three');
    assert.deepEqual(await own(), ['one, better', 'three']);
    assert.equal(await page.locator('.problem').count(), 0);
  },

  async earlier() {
    await open();
    const thread = new URLSearchParams(new URL(page.url()).hash.slice(1)).get('thread');
    for (let turn = 0; turn < 60; turn++) {
      const response = await fetch(`${url}/agents/agent/run`, {
        method: 'POST',
        headers: { 'Content-Type': 'application/json' },
        body: JSON.stringify({
          threadId: thread, runId: `run-${turn}`, protocolVersion: '1.0', state: {}, tools: [], context: [], forwardedProps: {},
          messages: [{ id: `message-${turn}`, role: 'user', content: `turn ${turn}` }],
        }),
      });
      assert.match(await response.text(), /RUN_FINISHED/);
    }
    await page.reload();
    await is('idle');
    const all = Array.from({ length: 60 }, (_, turn) => `turn ${turn}`);
    const first = (await own())[0];
    assert.ok((await own()).length < 60, 'the newest are shown first');
    await page.evaluate(() => scrollTo(0, 0));
    await page.getByRole('button', { name: 'Show earlier messages' }).click();
    await page.waitForFunction((first) => document.querySelector('#log .user > .text').textContent !== first, first);
    for (let pages = 0; pages < 5 && (await page.locator('#earlier').isVisible()); pages++) {
      const before = (await own()).length;
      await page.locator('#earlier').click();
      await page.waitForFunction((before) => document.querySelectorAll('#log .user').length > before, before);
      await page.evaluate(() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn))));
    }
    assert.deepEqual(await own(), all);
    // They stay when the thread goes on.
    await say('one more');
    assert.deepEqual(await own(), [...all, 'one more']);
    assert.equal((await answers()).length, 61);
  },

  async follows() {
    await open();
    assert.equal(await page.evaluate(() => document.activeElement.id), 'text');
    await say('one');
    const other = await context.newPage();
    await other.goto(page.url());
    await other.waitForFunction(() => document.querySelectorAll('#log .assistant').length === 1 && document.body.dataset.state === 'idle');
    // What is said in one tab comes in the other while it is said.
    await write('slow please');
    await other.waitForFunction((long) => {
      const last = [...document.querySelectorAll('#log .assistant > .text')].at(-1).textContent;
      return last.length > 20 && long.startsWith(last) && last !== long;
    }, more.long);
    // It is stopped from there, by a key.
    await other.bringToFront();
    await other.keyboard.press('Escape');
    await other.waitForFunction(() => document.body.dataset.state === 'idle');
    await is('idle');
    const [, stopped] = await answers();
    assert.ok(stopped.length < more.long.length && more.long.startsWith(stopped), stopped);
    assert.equal(await page.locator('.note.end').innerText(), 'Stopped');
    assert.deepEqual(await other.locator('#log .user > .text').allInnerTexts(), ['one', 'slow please']);
    // And the other way round, a change too.
    await other.fill('#text', 'two');
    await other.press('#text', 'Enter');
    await page.waitForFunction(() => [...document.querySelectorAll('#log .assistant > .text')].at(-1).textContent === 'You said: two');
    await other.waitForFunction(() => document.body.dataset.state === 'idle');
    await other.locator('#log .user').first().hover();
    await other.locator('#log .user').first().getByRole('button', { name: 'Edit' }).click();
    await other.fill('#text', 'anew');
    await other.press('#text', 'Enter');
    await page.waitForFunction(() => document.querySelector('#log').innerText.includes('You said: anew'));
    await is('idle');
    assert.deepEqual(await own(), ['anew']);
    assert.equal(await page.evaluate(() => document.activeElement.id), 'text');
    // The list of threads has both tabs' thread, by its first words.
    await page.locator('#thread-list a[aria-current=page]', { hasText: 'anew' }).waitFor();
  },
};
