// Captures of the OpenAI Agents SDK for JavaScript, of a model that follows a script.
import { Agent, run, tool, handoff, Usage, setTracingDisabled } from '@openai/agents'
import { z } from 'zod'
import { writeFileSync } from 'node:fs'
setTracingDisabled(true)
class Scripted {
  constructor(...turns) {
    this.turns = turns
    this.n = 0
  }
  async getResponse() {
    throw new Error('streamed only')
  }
  async *getStreamedResponse() {
    const output = this.turns[this.n++]
    yield { type: 'response_started' }
    for (const item of output)
      if (item.type === 'message')
        for (const piece of item.content[0].text.match(/.{1,6}/g)) yield { type: 'output_text_delta', delta: piece }
    yield {
      type: 'response_done',
      response: {
        id: 'resp_' + this.n,
        usage: { requests: 1, inputTokens: 11, outputTokens: 7, totalTokens: 18 },
        output,
      },
    }
  }
}
const msg = (id, text) => ({
  type: 'message',
  id,
  role: 'assistant',
  status: 'completed',
  content: [{ type: 'output_text', text }],
})
const call = (id, name, args) => ({
  type: 'function_call',
  id: 'fc_' + id,
  callId: id,
  name,
  status: 'completed',
  arguments: JSON.stringify(args),
})
const weather = tool({
  name: 'weather',
  description: 'w',
  parameters: z.object({ city: z.string() }),
  execute: async ({ city }) => {
    if (city === 'Atlantis') throw new Error('no such city')
    await new Promise((r) => setTimeout(r, city === 'Oslo' ? 30 : 1))
    return { city, sky: 'clear' }
  },
})
const book = tool({
  name: 'book',
  description: 'b',
  parameters: z.object({ pages: z.number() }),
  execute: async ({ pages }) => 'page '.repeat(pages),
})
const pay = tool({
  name: 'pay',
  description: 'p',
  parameters: z.object({ amount: z.number() }),
  needsApproval: true,
  execute: async ({ amount }) => 'paid ' + amount,
})
const save = (name, parts) => writeFileSync(`${name}.jsonl`, parts.map((p) => JSON.stringify(p) + '\n').join(''))
const record = async (stream, out) => {
  for await (const e of stream) out.push(JSON.parse(JSON.stringify(e)))
  await stream.completed
  return stream
}
{
  const clerk = new Agent({ name: 'Clerk', model: new Scripted([msg('m2', 'Clear in both.')]) })
  const desk = new Agent({
    name: 'Desk',
    model: new Scripted(
      [
        msg('m1', 'Let me look.'),
        call('c1', 'weather', { city: 'Oslo' }),
        call('c2', 'weather', { city: 'Rome' }),
        call('c3', 'weather', { city: 'Atlantis' }),
        call('c5', 'book', { pages: 20000 }),
      ],
      [call('h1', 'transfer_to_Clerk', {})],
    ),
    tools: [weather, book],
    handoffs: [clerk],
  })
  const out = []
  await record(await run(desk, 'go', { stream: true }), out)
  save('oa-js', out)
}
{
  const desk = new Agent({
    name: 'Desk',
    model: new Scripted([call('p1', 'pay', { amount: 5 }), call('p2', 'pay', { amount: 6 })], [msg('m3', 'Done.')]),
    tools: [pay],
  })
  const out = []
  let s = await record(await run(desk, 'go', { stream: true }), out)
  const state = s.state
  const [a, b] = s.interruptions
  state.approve(a)
  state.reject(b)
  s = await record(await run(desk, state, { stream: true }), out)
  save('oa-js-approval', out)
}
