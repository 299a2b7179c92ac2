// The browser of a scenario, and what a person does in it. The argument of the script is JSON: see browser.rs.

import { createInterface } from 'node:readline';

import { launch } from '../browser.mjs';

export const { scenario, url, playwright, chromium, more } = JSON.parse(process.argv[2]);
export const SECONDS = 1000;
const input = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

export const browser = await launch(playwright, chromium);
export const context = await browser.newContext({ viewport: { width: 1000, height: 800 }, permissions: ['clipboard-read', 'clipboard-write'] });
// Other tabs too: a busy machine draws slowly.
context.setDefaultTimeout(60 * SECONDS);
export const page = await context.newPage();
export const problems = [];
export const said = [];
page.on('pageerror', (error) => problems.push(`${error.stack}`));
page.on('console', (message) => {
  said.push(message.text());
  // A policy that is broken is a mistake of the page, whatever the page makes of it.
  if (message.text().includes('Content Security Policy')) problems.push(message.text());
});

/** Tells the test, and waits until it answers. */
export async function tell(word) {
  console.log(word);
  await input.next();
}

/** Waits until the page is in this state, and has drawn it. */
export async function is(state) {
  await page.waitForFunction((state) => document.body.dataset.state === state, state);
  await page.evaluate(() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn))));
}

export const answers = () => page.locator('#log .assistant > .text').allInnerTexts();
export const own = () => page.locator('#log .user > .text').allInnerTexts();

export async function open(agent = 'agent') {
  await page.goto(`${url}/#agent=${agent}`);
  await page.waitForFunction((agent) => document.getElementById('agent').value === agent, agent);
  await is('idle');
}

/** Sends a text. The page is busy from then on, until something has come of it. */
export async function write(text) {
  await page.fill('#text', text);
  await page.press('#text', 'Enter');
}

export async function say(text) {
  await write(text);
  await is('idle');
}

export const perform = (...script) => JSON.stringify(script);

/** Waits until so much of the last answer is there, and gives it. */
export async function some(characters) {
  const last = page.locator('#log .assistant > .text').last();
  for (const began = Date.now(); Date.now() - began < 60 * SECONDS; await page.waitForTimeout(20)) {
    const text = (await last.count()) ? await last.textContent() : '';
    if (text.length >= characters) return text;
  }
  throw new Error(`the answer does not come to ${characters} characters`);
}

/** A red picture of 10 by 10. */
export const PNG = 'iVBORw0KGgoAAAANSUhEUgAAAAoAAAAKCAYAAACNMs+9AAAAFUlEQVR42mNk+M9Qz0AEYBxVSF+FABJADveWkH6oAAAAAElFTkSuQmCC';
