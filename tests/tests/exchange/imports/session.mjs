// A capture of a session of the Model Context Protocol, as both sides send it.
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js'
import { Client } from '@modelcontextprotocol/sdk/client/index.js'
import { InMemoryTransport } from '@modelcontextprotocol/sdk/inMemory.js'
import { ElicitRequestSchema } from '@modelcontextprotocol/sdk/types.js'
import { z } from 'zod'
import { writeFileSync } from 'node:fs'
const server = new McpServer({ name: 'desk', version: '1.0.0' })
server.registerTool('weather', { inputSchema: { city: z.string() } }, async ({ city }, extra) => {
  if (city === 'Atlantis') throw new Error('no such city')
  if (extra._meta?.progressToken !== undefined)
    await extra.sendNotification({
      method: 'notifications/progress',
      params: { progressToken: extra._meta.progressToken, progress: 1, total: 2, message: 'looking' },
    })
  await new Promise((r) => setTimeout(r, city === 'Oslo' ? 30 : 1))
  return {
    content: [{ type: 'text', text: JSON.stringify({ city, sky: 'clear' }) }],
    structuredContent: { city, sky: 'clear' },
  }
})
server.registerTool('book', { inputSchema: { pages: z.number() } }, async ({ pages }) => ({
  content: [{ type: 'text', text: 'page '.repeat(pages) }],
}))
server.registerTool('pay', { inputSchema: { amount: z.number() } }, async ({ amount }) => {
  const a = await server.server.elicitInput({
    mode: 'form',
    message: 'Pay ' + amount + '?',
    requestedSchema: { type: 'object', properties: { ok: { type: 'boolean' } } },
  })
  return { content: [{ type: 'text', text: a.action }] }
})
const [a, b] = InMemoryTransport.createLinkedPair()
const lines = []
for (const t of [a, b]) {
  const send = t.send.bind(t)
  t.send = async (m, o) => {
    lines.push(m)
    return send(m, o)
  }
}
const client = new Client({ name: 'test', version: '1.0.0' }, { capabilities: { elicitation: { form: {} } } })
client.setRequestHandler(ElicitRequestSchema, async (r) =>
  r.params.message.includes('5') ? { action: 'accept', content: { ok: true } } : { action: 'decline' },
)
await server.connect(b)
await client.connect(a)
await client.listTools()
await Promise.all([
  client.callTool({ name: 'weather', arguments: { city: 'Oslo' } }, undefined, { onprogress: () => {} }),
  client.callTool({ name: 'weather', arguments: { city: 'Rome' } }),
  client.callTool({ name: 'weather', arguments: { city: 'Atlantis' } }),
  client.callTool({ name: 'nosuch', arguments: {} }).catch(() => {}),
])
await client.callTool({ name: 'book', arguments: { pages: 20000 } })
await client.callTool({ name: 'pay', arguments: { amount: 5 } })
await client.callTool({ name: 'pay', arguments: { amount: 6 } })
await client.request({ method: 'tools/call', params: {} }, z.any()).catch(() => {})
writeFileSync('mcp-js.jsonl', lines.map((m) => JSON.stringify(m) + '\n').join(''))
process.exit(0)
