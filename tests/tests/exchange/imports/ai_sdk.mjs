// Captures of the AI SDK: the whole stream and the UI message stream, of a model that follows a script.
import { streamText, tool, stepCountIs, convertToModelMessages } from 'ai'
import { MockLanguageModelV4, convertArrayToReadableStream } from 'ai/test'
import { z } from 'zod'
import { writeFileSync } from 'node:fs'
const usage = {
  inputTokens: { total: 11, noCache: 11, cacheRead: 0, cacheWrite: 0 },
  outputTokens: { total: 7, text: 5, reasoning: 2 },
}
const finish = (reason) => ({ type: 'finish', finishReason: { unified: reason, raw: reason }, usage })
const call = (id, name, input) => ({ type: 'tool-call', toolCallId: id, toolName: name, input: JSON.stringify(input) })
const model = (...steps) => {
  let n = 0
  return new MockLanguageModelV4({
    doStream: async () => ({
      stream: convertArrayToReadableStream([
        { type: 'stream-start', warnings: [] },
        { type: 'response-metadata', id: 'resp_' + n, modelId: 'scripted-1', timestamp: new Date(0) },
        ...steps[n++],
      ]),
    }),
  })
}
const text = (id, ...pieces) => [
  { type: 'text-start', id },
  ...pieces.map((delta) => ({ type: 'text-delta', id, delta })),
  { type: 'text-end', id },
]
const tools = {
  weather: tool({
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => {
      if (city === 'Atlantis') throw new Error('no such city')
      await new Promise((r) => setTimeout(r, city === 'Oslo' ? 30 : 1))
      return { city, sky: 'clear' }
    },
  }),
  book: tool({ inputSchema: z.object({ pages: z.number() }), execute: async ({ pages }) => 'page '.repeat(pages) }),
  pay: tool({
    inputSchema: z.object({ amount: z.number() }),
    execute: async ({ amount }) => ({ paid: amount }),
    needsApproval: true,
  }),
}
const lines = async (stream) => {
  const out = []
  for await (const part of stream) out.push(part)
  return out
}
const save = (name, parts) => writeFileSync(`${name}.jsonl`, parts.map((p) => JSON.stringify(p) + '\n').join(''))
const run = (m, messages, extra = {}) =>
  streamText({ model: m, messages, tools, stopWhen: stepCountIs(5), onError: () => {}, ...extra })
const ask = [{ role: 'user', content: 'go' }]
const big = () =>
  model(
    [
      { type: 'reasoning-start', id: 'r' },
      { type: 'reasoning-delta', id: 'r', delta: 'two cities' },
      { type: 'reasoning-end', id: 'r' },
      ...text('0', 'Let me ', 'look.'),
      { type: 'tool-input-start', id: 'c1', toolName: 'weather' },
      { type: 'tool-input-delta', id: 'c1', delta: '{"city":' },
      { type: 'tool-input-delta', id: 'c1', delta: '"Oslo"}' },
      { type: 'tool-input-end', id: 'c1' },
      call('c1', 'weather', { city: 'Oslo' }),
      call('c2', 'weather', { city: 'Rome' }),
      call('c3', 'weather', { city: 'Atlantis' }),
      call('c4', 'nosuch', { a: 1 }),
      call('c5', 'book', { pages: 20000 }),
      finish('tool-calls'),
    ],
    [...text('0', 'Clear ', 'in both.'), finish('stop')],
  )
save('ai-full', await lines(run(big(), ask).fullStream))
save('ai-ui', await lines(run(big(), ask).toUIMessageStream()))
{
  // approval
  const m = model([call('p1', 'pay', { amount: 5 }), call('p2', 'pay', { amount: 6 }), finish('tool-calls')])
  const r = run(m, ask)
  const [full, ui] = [
    await lines(r.fullStream),
    await lines(
      run(
        model([call('p1', 'pay', { amount: 5 }), call('p2', 'pay', { amount: 6 }), finish('tool-calls')]),
        ask,
      ).toUIMessageStream(),
    ),
  ]
  const msgs = (await r.response).messages
  const req = full.filter((p) => p.type === 'tool-approval-request')
  const messages = [
    ...ask,
    ...msgs,
    {
      role: 'tool',
      content: req.map((q, i) => ({
        type: 'tool-approval-response',
        approvalId: q.approvalId,
        approved: i === 0,
        reason: i ? 'too much' : undefined,
      })),
    },
  ]
  const after = () => model([...text('0', 'Done.'), finish('stop')])
  save('ai-approval-full', [...full, ...(await lines(run(after(), messages).fullStream))])
  save('ai-approval-ui', [...ui, ...(await lines(run(after(), messages).toUIMessageStream()))])
}
save(
  'ai-error',
  await lines(
    run(
      new MockLanguageModelV4({
        doStream: async () => {
          throw new Error('model down')
        },
      }),
      ask,
      { maxRetries: 0 },
    ).toUIMessageStream(),
  ),
)
