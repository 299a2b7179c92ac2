// A page as the documentation of assistant-ui has it: its primitives over `useAgUiRuntime`, and nothing for this host but the
// address of the agent and the thread that it had before.

import { HttpAgent } from '@ag-ui/client';
import {
  ActionBarPrimitive, AssistantRuntimeProvider, AttachmentPrimitive, ComposerPrimitive, ExportedMessageRepository, MessagePrimitive,
  SimpleImageAttachmentAdapter, ThreadPrimitive, useAssistantInstructions, useAssistantTool,
} from '@assistant-ui/react';
import { useAgUiRuntime } from '@assistant-ui/react-ag-ui';
import { useMemo } from 'react';
import { createRoot } from 'react-dom/client';

import { stored } from './thread.js';

const query = new URLSearchParams(location.search);
const [agentUrl, threadId] = [query.get('agent'), query.get('thread')];

/** A message of AG-UI as assistant-ui takes it. */
function shown({ id, role, content, toolCalls = [] }) {
  const texts = typeof content === 'string' ? [{ type: 'text', text: content }] : (content ?? []).filter(({ type }) => type === 'text');
  const calls = toolCalls.map(({ id, function: { name, arguments: args } }) => ({
    type: 'tool-call', toolCallId: id, toolName: name, args: JSON.parse(args), argsText: args,
  }));
  return { id, role, content: [...texts, ...calls] };
}

const history = {
  async load() {
    const messages = await stored(agentUrl, threadId);
    return ExportedMessageRepository.fromArray(messages.filter(({ role }) => role === 'user' || role === 'assistant').map(shown));
  },
  async append() {},
};

function UserMessage() {
  return (
    <MessagePrimitive.Root className="user">
      <MessagePrimitive.Attachments components={{ Image: () => <span className="picture">picture</span> }} />
      <span className="text"><MessagePrimitive.Parts /></span>
      <ActionBarPrimitive.Root><ActionBarPrimitive.Edit className="edit">Edit</ActionBarPrimitive.Edit></ActionBarPrimitive.Root>
    </MessagePrimitive.Root>
  );
}

function EditComposer() {
  return (
    <ComposerPrimitive.Root className="editing">
      <ComposerPrimitive.Input />
      <ComposerPrimitive.Send className="save">Save</ComposerPrimitive.Send>
    </ComposerPrimitive.Root>
  );
}

function AssistantMessage() {
  return (
    <MessagePrimitive.Root className="assistant">
      <span className="text"><MessagePrimitive.Parts components={{ tools: { Fallback: ({ toolName }) => <i className="tool">{toolName}</i> } }} /></span>
      <MessagePrimitive.Error><span className="error">error</span></MessagePrimitive.Error>
      <ActionBarPrimitive.Root hideWhenRunning>
        <ActionBarPrimitive.Reload className="reload">Again</ActionBarPrimitive.Reload>
      </ActionBarPrimitive.Root>
    </MessagePrimitive.Root>
  );
}

function Page() {
  useAssistantInstructions({ instruction: 'The page shows order 4711.', disabled: !query.has('context') });
  // A tool of the page, which a person uses: it has no result until then.
  useAssistantTool({
    toolName: 'pick_color',
    type: 'human',
    description: 'Lets the person pick a color.',
    parameters: { type: 'object', properties: {}, additionalProperties: false },
  });
  return (
    <ThreadPrimitive.Root>
      <ThreadPrimitive.Viewport>
        <ThreadPrimitive.Messages components={{ UserMessage, AssistantMessage, EditComposer }} />
      </ThreadPrimitive.Viewport>
      <ThreadPrimitive.If running><div id="running" /></ThreadPrimitive.If>
      <ComposerPrimitive.Root id="composer">
        <ComposerPrimitive.Attachments components={{ Attachment: () => <AttachmentPrimitive.Root className="attached"><AttachmentPrimitive.Name /></AttachmentPrimitive.Root> }} />
        <ComposerPrimitive.AddAttachment id="attach">Attach</ComposerPrimitive.AddAttachment>
        <ComposerPrimitive.Input id="text" />
        <ComposerPrimitive.Send id="send">Send</ComposerPrimitive.Send>
        <ComposerPrimitive.Cancel id="stop">Stop</ComposerPrimitive.Cancel>
      </ComposerPrimitive.Root>
    </ThreadPrimitive.Root>
  );
}

function App() {
  const agent = useMemo(() => new HttpAgent({ url: `${agentUrl}/run`, threadId }), []);
  const adapters = useMemo(() => ({ attachments: new SimpleImageAttachmentAdapter(), history }), []);
  const runtime = useAgUiRuntime({ agent, adapters, onError: (error) => console.log(`the runtime says: ${error.message}`) });
  return <AssistantRuntimeProvider runtime={runtime}><Page /></AssistantRuntimeProvider>;
}

createRoot(document.getElementById('page')).render(<App />);
