// Plays scenarios with the stock client and prints what it made of them, as JSON.
//
//   node harness.mjs NODE_MODULES SCENARIOS.json OUTPUT.json
//
// A scenario: {"url", "threadId", "state"?, "accept"?, "turns": [...]}. All turns are of one agent, as in one page. A turn:
// {"runId", "say"? (a text or parts), "messageId"?, "add"? (messages as they are), "props"?, "tools"?, "context"?, "resume"?,
//  "answers"? (texts for the calls without results, in order), "resumeAll"? (for each interrupt), "headers"?, "url"?,
//  "fresh"? (another page: no memory), "keep"? (the first so many messages), "rewrite"? (text of the last one), "cancelOn"? {"type", "url"}, "abortOn"? (type), "setState"?}.

import { readFileSync, writeFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [modules, scenarios, output] = process.argv.slice(2);

// What a dropped connection leaves behind (ag-ui#2510) would end the process.
const unhandled = [];
process.on("unhandledRejection", (reason) => unhandled.push(String(reason)));

// Loud clients are noticed: what they warn of is a fault of the server.
const said = [];
for (const level of ["warn", "error", "log", "info", "debug"]) {
  console[level] = (...words) => said.push(`${level}: ${words.map(text).join(" ")}`);
}
function text(word) {
  if (word instanceof Error) return `${word.name}: ${word.message}`;
  return typeof word === "string" ? word : JSON.stringify(word);
}

const { HttpAgent } = await import(pathToFileURL(`${modules}/@ag-ui/client/dist/index.mjs`));

class Agent extends HttpAgent {
  requestInit(input) {
    const init = super.requestInit(input);
    if (this.accept) init.headers.Accept = this.accept;
    return init;
  }
}

function open(scenario, turn, before) {
  const agent = new Agent({
    url: turn.url ?? scenario.url,
    threadId: scenario.threadId,
    initialState: before?.state ?? scenario.state ?? {},
  });
  agent.accept = scenario.accept;
  return agent;
}

async function play(scenario) {
  let agent;
  const turns = [];
  for (const turn of scenario.turns) {
    if (!agent || turn.fresh) agent = open(scenario, turn, undefined);
    agent.url = turn.url ?? scenario.url;
    agent.headers = turn.headers ?? {};
    turns.push(await take(agent, turn));
  }
  return { name: scenario.name, turns };
}

async function take(agent, turn) {
  if (turn.setState !== undefined) agent.setState(turn.setState);
  if (turn.keep !== undefined) agent.setMessages(agent.messages.slice(0, turn.keep));
  if (turn.rewrite !== undefined) {
    agent.setMessages(agent.messages.map((m, n, all) => (n === all.length - 1 ? { ...m, content: turn.rewrite } : m)));
  }
  if (turn.say !== undefined) {
    agent.addMessage({ id: turn.messageId ?? `${turn.runId}-user`, role: "user", content: turn.say });
  }
  for (const message of turn.add ?? []) agent.addMessage(message);
  if (turn.answers) {
    const answered = new Set(agent.messages.filter((m) => m.role === "tool").map((m) => m.toolCallId));
    const open = agent.messages.flatMap((m) => m.toolCalls ?? []).filter((call) => !answered.has(call.id));
    turn.answers.forEach((content, n) => {
      if (open[n]) agent.addMessage({ id: `${turn.runId}-answer-${n}`, role: "tool", toolCallId: open[n].id, content });
    });
  }
  const resume =
    turn.resume ?? (turn.resumeAll ? agent.pendingInterrupts.map((i) => ({ interruptId: i.id, ...turn.resumeAll })) : undefined);
  const interruptsBefore = structuredClone(agent.pendingInterrupts ?? []);
  const events = [];
  const from = said.length;
  let error, result;
  let cancelled;
  const subscriber = {
    onEvent: ({ event }) => {
      events.push(structuredClone(event));
      if (turn.cancelOn && !cancelled && event.type === turn.cancelOn.type) {
        cancelled = fetch(turn.cancelOn.url, { method: "POST" }).then((answer) => answer.status);
      }
      if (turn.abortOn === event.type) agent.abortRun();
    },
  };
  const parameters = {
    runId: turn.runId,
    tools: turn.tools ?? [],
    context: turn.context ?? [],
    forwardedProps: turn.props ?? {},
  };
  if (resume) parameters.resume = resume;
  try {
    result = (await agent.runAgent(parameters, subscriber)).result;
  } catch (caught) {
    error = { name: caught?.name, message: String(caught?.message ?? caught), status: caught?.status, payload: caught?.payload };
  }
  return {
    events,
    error,
    result,
    cancelStatus: await cancelled,
    interruptsBefore,
    messages: structuredClone(agent.messages),
    state: structuredClone(agent.state),
    interrupts: structuredClone(agent.pendingInterrupts ?? []),
    said: said.slice(from),
  };
}

const played = [];
for (const scenario of JSON.parse(readFileSync(scenarios, "utf8"))) played.push(await play(scenario));
// What was left behind is seen after the turn in which it happened.
await new Promise((resolve) => setTimeout(resolve, 20));
writeFileSync(output, JSON.stringify({ played, unhandled }));
process.exit(0);
