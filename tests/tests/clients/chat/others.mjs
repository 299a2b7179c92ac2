// Other pages: the description of the API, and the task board.

import assert from 'node:assert/strict';

import { page, url } from './page.mjs';

export const OTHERS = {
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
