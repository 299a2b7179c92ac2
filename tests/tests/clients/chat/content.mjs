// Markdown, markup and files of messages.

import assert from 'node:assert/strict';

import { answers, is, more, open, own, page, PNG, problems, say, url, write } from './page.mjs';

export const CONTENT = {
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
    const policy = Object.fromEntries(headers)['content-security-policy'];
    assert.match(policy, /default-src 'none'; script-src 'self'; style-src 'self';.*require-trusted-types-for 'script'/);
    assert.ok(!policy.includes('unsafe'), policy);
  },

  async markdown() {
    await open();
    await write('markdown please');
    // What is whole is drawn while the rest comes, and keeps its elements.
    await page.locator('#log .markdown h1').waitFor();
    await page.evaluate(() => (document.querySelector('#log .markdown h1').isFirst = true));
    await is('idle');
    const answer = page.locator('#log .assistant > .text');
    const shown = async () => {
      assert.equal(await answer.locator('h1').innerText(), 'The plan');
      assert.equal(await answer.locator('strong').innerText(), 'two');
      const manual = answer.getByRole('link', { name: 'the manual' });
      assert.deepEqual(
        await manual.evaluate((link) => [link.href, link.target, link.rel]),
        ['https://example.com/manual', '_blank', 'noopener noreferrer'],
      );
      assert.deepEqual(await answer.locator('ol > li').evaluateAll((items) => items.map((item) => item.firstChild.textContent.trim())), ['First', 'Second']);
      assert.equal(await answer.locator('ol ul > li').innerText(), 'inner');
      assert.deepEqual(await answer.locator('td').allInnerTexts(), ['a', '10']);
      assert.equal(await answer.locator('td.align-right').innerText(), '10');
      assert.equal(await answer.locator('.code .bar span').innerText(), 'rust');
      assert.match(await answer.locator('pre').innerText(), /let less = 1 < 2;/);
    };
    await shown();
    assert.ok(await page.evaluate(() => document.querySelector('#log .markdown h1').isFirst), 'the heading was drawn once');
    const copied = () => page.evaluate(() => navigator.clipboard.readText());
    await answer.locator('.code').getByRole('button', { name: 'Copy' }).click();
    await answer.getByRole('button', { name: 'Copied' }).waitFor();
    assert.equal(await copied(), 'fn main() {\n    let less = 1 < 2;\n}');
    await page.locator('#log .assistant > .message-actions').getByRole('button', { name: 'Copy' }).click();
    await page.locator('.message-actions').getByRole('button', { name: 'Copied' }).waitFor();
    assert.equal((await copied()).trim(), more.markdown.trim());
    await page.reload();
    await is('idle');
    await shown();
  },

  async attacks() {
    await open();
    const asked = [];
    page.on('request', (request) => asked.push(request.url()));
    await say('attack please');
    const dead = async () => {
      const answer = page.locator('#log .assistant > .text');
      assert.match(await answer.innerText(), /onerror/, 'markup is shown as text');
      assert.equal(await answer.locator('script, img, svg, style, iframe, form, input, object').count(), 0);
      const attributes = await answer.evaluate((element) => {
        const all = [...element.querySelectorAll('*')].flatMap((node) => [...node.attributes]);
        return all.map(({ name, value }) => [name, value]);
      });
      for (const [name, value] of attributes) {
        assert.ok(['href', 'class', 'target', 'rel', 'tabindex', 'type', 'start'].includes(name), `${name}=${value}`);
        if (name === 'class') assert.ok(/^(language-\S+|align-\w+|code|bar|table|quiet)$/.test(value), `a class of the page: ${value}`);
      }
      const links = answer.locator('a');
      const addresses = await links.evaluateAll((all) => all.map((link) => link.protocol));
      assert.ok(addresses.length >= 2 && addresses.every((protocol) => protocol === 'https:'), addresses.join());
      // Whatever can be clicked is clicked, where it leads to nowhere else.
      await answer.evaluate((element) => element.querySelectorAll('*:not(a)').forEach((node) => node.dispatchEvent(new MouseEvent('click'))));
      assert.ok(await answer.isVisible());
    };
    await dead();
    await page.reload();
    await is('idle');
    await dead();
    await page.waitForTimeout(300);
    assert.equal(await page.title(), 'Agent Host');
    assert.ok(asked.length && asked.every((address) => new URL(address).origin === url), asked.join('\n'));
    // An element that is made around the sanitizer is refused by the browser.
    assert.equal(
      await page.evaluate(() => {
        try {
          document.querySelector('#about').innerHTML = '<b>made</b>';
          return 'made';
        } catch (error) {
          return error.name;
        }
      }),
      'TypeError',
    );
    assert.ok(problems.length <= 1, problems.join('\n'));
    problems.length = 0;
  },

  async files() {
    await open();
    await page.setInputFiles('#file', [
      { name: 'red.png', mimeType: 'image/png', buffer: Buffer.from(PNG, 'base64') },
      { name: 'notes.txt', mimeType: 'text/plain', buffer: Buffer.from('some notes') },
      { name: 'gone.txt', mimeType: 'text/plain', buffer: Buffer.from('removed') },
    ]);
    await page.getByRole('button', { name: 'Remove gone.txt' }).click();
    assert.equal(await page.locator('#attachments li').count(), 2);
    await say('two files');
    assert.ok(!(await page.locator('#attachments').isVisible()));
    const shown = async () => {
      await page.waitForFunction(() => document.querySelector('#log .user img')?.naturalWidth === 10);
      assert.equal(await page.locator('#log .user img').count(), 1);
      await page.getByRole('button', { name: 'Save notes.txt' }).waitFor();
    };
    await shown();
    await page.reload();
    await is('idle');
    await shown();
    const saving = page.waitForEvent('download');
    await page.getByRole('button', { name: 'Save notes.txt' }).click();
    assert.equal((await saving).suggestedFilename(), 'notes.txt');
    // They stay with a message that is changed.
    await page.locator('#log .user').hover();
    await page.locator('#log .user').getByRole('button', { name: 'Edit' }).click();
    assert.equal(await page.inputValue('#text'), 'two files');
    await say('both files');
    assert.deepEqual(await own(), ['both files']);
    await shown();
    assert.equal(await page.locator('.problem').count(), 0);
  },
};
