// Headless Chromium for the scripts that play a person.

import { join } from 'node:path';
import { pathToFileURL } from 'node:url';

/** Starts the browser `executablePath` with the Playwright that is installed in `modules`. */
export async function launch(modules, executablePath) {
  const { chromium } = await import(pathToFileURL(join(modules, 'playwright-core', 'index.mjs')));
  return chromium.launch({
    executablePath,
    args: [
      '--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
      '--disable-component-update', '--disable-sync',
    ],
  });
}
