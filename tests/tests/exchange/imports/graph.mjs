// A capture of LangGraph for JavaScript, of a model that follows a script.
import { StateGraph, START, END, MessagesAnnotation, MemorySaver, interrupt, Command } from '@langchain/langgraph'
import { ToolNode } from '@langchain/langgraph/prebuilt'
import { FakeStreamingChatModel } from '@langchain/core/utils/testing'
import { AIMessage, AIMessageChunk, HumanMessage } from '@langchain/core/messages'
import { BaseChatModel } from '@langchain/core/language_models/chat_models'
import { tool } from '@langchain/core/tools'
import { z } from 'zod'
import { writeFileSync } from 'node:fs'
class Scripted extends BaseChatModel {
  constructor(...turns) {
    super({})
    this.turns = turns
    this.n = 0
  }
  _llmType() {
    return 'scripted'
  }
  async _generate(_m, _o, rm) {
    const message = this.turns[this.n++]
    return { generations: [{ text: String(message.content), message }] }
  }
  async *_streamResponseChunks(_m, _o, rm) {
    const m = this.turns[this.n++]
    for (const p of String(m.content).match(/.{1,6}/g) ?? []) {
      const c = { text: p, message: new AIMessageChunk({ id: m.id, content: p }), generationInfo: {} }
      yield c
      await rm?.handleLLMNewToken(p, undefined, undefined, undefined, undefined, { chunk: c })
    }
    yield {
      text: '',
      message: new AIMessageChunk({
        id: m.id,
        content: '',
        tool_call_chunks: (m.tool_calls ?? []).map((c, index) => ({
          index,
          id: c.id,
          name: c.name,
          args: JSON.stringify(c.args),
          type: 'tool_call_chunk',
        })),
        usage_metadata: m.usage_metadata,
      }),
      generationInfo: {},
    }
  }
}
const usage_metadata = { input_tokens: 11, output_tokens: 7, total_tokens: 18 }
const weather = tool(
  async ({ city }) => {
    if (city === 'Atlantis') throw new Error('no such city')
    await new Promise((r) => setTimeout(r, city === 'Oslo' ? 30 : 1))
    return JSON.stringify({ city, sky: 'clear' })
  },
  { name: 'weather', description: 'w', schema: z.object({ city: z.string() }) },
)
const book = tool(async ({ pages }) => 'page '.repeat(pages), {
  name: 'book',
  description: 'b',
  schema: z.object({ pages: z.number() }),
})
const model = new Scripted(
  new AIMessage({
    id: 'm1',
    content: 'Let me look.',
    tool_calls: [
      ['c1', 'weather', { city: 'Oslo' }],
      ['c2', 'weather', { city: 'Rome' }],
      ['c3', 'weather', { city: 'Atlantis' }],
      ['c5', 'book', { pages: 20000 }],
    ].map(([id, name, args]) => ({ id, name, args, type: 'tool_call' })),
    usage_metadata,
  }),
  new AIMessage({ id: 'm2', content: 'Clear in both.', usage_metadata }),
)
const app = new StateGraph(MessagesAnnotation)
  .addNode('agent', async (s) => ({ messages: [await model.invoke(s.messages)] }))
  .addNode('tools', new ToolNode([weather, book]))
  .addNode('approve', async () => ({
    messages: [new AIMessage({ id: 'm9', content: 'answered ' + interrupt({ question: 'Send it?', amount: 5 }) })],
  }))
  .addEdge(START, 'agent')
  .addConditionalEdges('agent', (s) => (s.messages.at(-1).tool_calls?.length ? 'tools' : 'approve'), [
    'tools',
    'approve',
  ])
  .addEdge('tools', 'agent')
  .addEdge('approve', END)
  .compile({ checkpointer: new MemorySaver() })
const cfg = { configurable: { thread_id: 't' }, streamMode: ['tasks', 'messages', 'updates', 'custom'] }
const rows = []
for await (const row of await app.stream({ messages: [new HumanMessage({ id: 'u1', content: 'go' })] }, cfg))
  rows.push(row)
for await (const row of await app.stream(new Command({ resume: 'yes' }), cfg)) rows.push(row)
writeFileSync('lg-js.jsonl', rows.map((r) => JSON.stringify(r) + '\n').join(''))
