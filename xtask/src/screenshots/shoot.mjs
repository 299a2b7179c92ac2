// Takes pictures of the chat page. The argument is JSON: `playwright` (node_modules), `chromium`, `url`, and the folder `out`.

import { join } from 'node:path';
import { pathToFileURL } from 'node:url';

const { playwright, chromium: executablePath, url, out } = JSON.parse(process.argv[2]);
const { chromium } = await import(pathToFileURL(join(playwright, 'playwright-core', 'index.mjs')));

const PICTURES = [
  { name: 'chat-desktop-light', width: 1120, height: 780, colorScheme: 'light' },
  { name: 'chat-desktop-dark', width: 1120, height: 780, colorScheme: 'dark' },
  { name: 'chat-phone-light', width: 390, height: 760, colorScheme: 'light' },
  { name: 'chat-phone-dark', width: 390, height: 760, colorScheme: 'dark' },
];
const QUESTION = 'What does a run do while it waits?';
const EARLIER = ['Plan the release of Friday', 'Why was invoice 4711 refused?', 'Summarize the incident of last night'];

const browser = await chromium.launch({ executablePath, args: ['--headless', '--no-sandbox', '--disable-gpu', '--hide-scrollbars'] });
const idle = (page) => page.waitForFunction(() => document.body.dataset.state === 'idle');

async function say(page, text) {
  await page.goto(`${url}/#${new URLSearchParams({ agent: 'local-agent', thread: crypto.randomUUID() })}`);
  await page.reload();
  await idle(page);
  await page.fill('#text', text);
  await page.press('#text', 'Enter');
  await page.locator('#log .assistant').waitFor();
  await idle(page);
}

const first = await browser.newPage();
first.setDefaultTimeout(60_000);
for (const text of [...EARLIER, QUESTION]) await say(first, text);
const address = first.url();
for (const { name, width, height, colorScheme } of PICTURES) {
  const page = await browser.newPage({ viewport: { width, height }, colorScheme, locale: 'en-GB' });
  page.setDefaultTimeout(60_000);
  await page.goto(address);
  await page.locator('#log table').waitFor();
  await page.locator('#thread-list a').nth(EARLIER.length).waitFor({ state: 'attached' });
  await idle(page);
  await page.evaluate(() => document.activeElement.blur());
  await page.waitForTimeout(300);
  await page.screenshot({ path: join(out, `${name}.png`) });
}
await browser.close();
