// Server-sent events of a response.

/** Nothing has come for so long, not even a keep-alive comment (one every 15 s): the connection is dead. */
const SILENCE_MS = 45_000;

/** A connection that ended before its run did. */
export class Broken extends Error {}

/** The events of a response. Throws `Broken` where the connection breaks. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  try {
    for (;;) {
      const { done, value } = await orBroken(reader.read());
      if (done) return;
      const frames = (text + value).split('\n\n');
      text = frames.pop();
      for (const frame of frames) {
        const event = parsed(frame);
        if (event) yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** The result of a read. Throws `Broken` where the read fails or takes too long. */
async function orBroken(read) {
  let timer;
  const silence = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Broken('nothing came for too long')), SILENCE_MS);
  });
  try {
    return await Promise.race([read, silence]);
  } catch (error) {
    throw error instanceof Broken || error.name === 'AbortError' ? error : new Broken(error.message);
  } finally {
    clearTimeout(timer);
  }
}

/** The event of one frame; none where it is a comment. */
function parsed(frame) {
  const data = [];
  for (const line of frame.split('\n')) {
    if (line.startsWith('data:')) data.push(line.slice(line[5] === ' ' ? 6 : 5));
  }
  return data.length ? JSON.parse(data.join('\n')) : null;
}
