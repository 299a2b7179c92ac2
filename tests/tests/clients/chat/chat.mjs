// Plays one scenario in a browser. Ends with `done` on the standard output.

import assert from 'node:assert/strict';

import { ANSWERS } from './answers.mjs';
import { CONTENT } from './content.mjs';
import { OTHERS } from './others.mjs';
import { browser, page, problems, said, scenario, SECONDS } from './page.mjs';
import { THREADS } from './threads.mjs';

const SCENARIOS = { ...ANSWERS, ...CONTENT, ...OTHERS, ...THREADS };

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
