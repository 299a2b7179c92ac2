// The client of the official SDK plays a scenario and prints what it has seen, as JSON.
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [modules, scenario, settings] = process.argv.slice(2);
const { url, token, program } = JSON.parse(settings);
const load = (path) => import(pathToFileURL(join(modules, "@modelcontextprotocol/sdk/dist/esm", path)).href);
const { Client } = await load("client/index.js");
const { StreamableHTTPClientTransport } = await load("client/streamableHttp.js");
const { StdioClientTransport } = await load("client/stdio.js");
const { ElicitRequestSchema } = await load("types.js");

const connect = async (capabilities = {}) => {
  const client = new Client({ name: "tests", version: "1.0.0" }, { capabilities });
  const requestInit = { headers: { Authorization: `Bearer ${token}` } };
  const transport = new StreamableHTTPClientTransport(new URL(url), { requestInit });
  await client.connect(transport);
  return { client, transport };
};

const failure = async (promise) => {
  try {
    return { result: await promise };
  } catch (error) {
    return { code: error.code, message: error.message, data: error.data };
  }
};

const scenarios = {
  async run() {
    const { client, transport } = await connect();
    const tools = (await client.listTools()).tools.map((tool) => tool.name);
    const sum = await client.callTool({ name: "a__add", arguments: { a: 2, b: 3 } });
    const progress = [];
    await client.callTool({ name: "a__wait", arguments: { ms: 400 } }, undefined, { onprogress: (said) => progress.push(said) });
    const asked = await client.callTool({ name: "ask_user", arguments: { title: "Which colour?" } });
    const created = await client.callTool({ name: "artifact_create", arguments: { media_type: "text/plain", text: "kept by the client" } });
    const link = created.content.find((block) => block.type === "resource_link");
    const read = (await client.readResource({ uri: link.uri })).contents[0].text;
    const unknown = await failure(client.callTool({ name: "nonsense", arguments: {} }));
    const refused = await client.callTool({ name: "state_get", arguments: { scope: "runner" } });
    const server = client.getServerVersion();
    await transport.terminateSession();
    await client.close();
    return { server, tools, sum, progress, asked, read, unknown, refused };
  },

  async bridge() {
    const client = new Client({ name: "tests", version: "1.0.0" });
    const env = { AGENT_HOST_MCP_URL: url, AGENT_HOST_MCP_TOKEN: token };
    await client.connect(new StdioClientTransport({ command: program, args: ["mcp-bridge"], env }));
    const tools = (await client.listTools()).tools.map((tool) => tool.name);
    const sum = await client.callTool({ name: "a__add", arguments: { a: 2, b: 3 } });
    await client.close();
    return { tools, sum };
  },

  async agents() {
    const { client } = await connect({ elicitation: {} });
    const asked = [];
    const answers = [
      { action: "accept", content: { approved: true } },
      { action: "accept", content: { colour: "blue" } },
      { action: "decline" },
    ];
    client.setRequestHandler(ElicitRequestSchema, (request) => {
      asked.push(request.params);
      return answers.shift() ?? { action: "cancel" };
    });
    const call = (name, args, options) => client.callTool({ name, arguments: args }, undefined, options);
    const tools = (await client.listTools()).tools.map((tool) => tool.name);
    const progress = [];
    const echo = await call("echo", { text: "hello" });
    await call("steps", { text: "say one; sleep 300; say two" }, { onprogress: (said) => progress.push(said) });
    const colour = JSON.stringify({ type: "object", properties: { colour: { type: "string" } }, required: ["colour"] });
    const text = `ask confirmation - Shall_I?;; ask form - Which? ${colour};; ask form - And?`;
    const answered = await call("asks", { text });
    const questions = asked.slice();
    const closed = await call("asks", { text: "ask confirmation - Again?" });
    const made = await call("steps", { text: "create; write abc 3; finish; say done" });
    const link = made.content.find((block) => block.type === "resource_link");
    const read = (await client.readResource({ uri: link.uri })).contents[0].text;
    // A call that is given up once it has begun.
    const abort = new AbortController();
    const calling = call("steps", { text: "say begun; sleep 60000", conversation: "to-be-cancelled" }, {
      signal: abort.signal,
      onprogress: () => abort.abort("enough"),
    });
    await failure(calling);
    const runs = await fetch(new URL("/api/v1/runs?limit=1", url), { headers: { Authorization: `Bearer ${token}` } });
    const cancelled = (await runs.json()).items[0].run_id;
    await client.close();
    const { client: plain } = await connect();
    const silent = await plain.callTool({ name: "asks", arguments: { text: "ask confirmation - Silent?" } });
    await plain.close();
    return { tools, progress, echo, asked: questions, answered, closed, read, cancelled, silent };
  },
};

console.log(JSON.stringify(await scenarios[scenario]()));
process.exit(0);
