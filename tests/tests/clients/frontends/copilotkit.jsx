// A page as the documentation of CopilotKit has it, with an agent that the page names itself: its chat, what the page shows as
// context, a tool that a person uses, and suggestions.

import { HttpAgent } from '@ag-ui/client';
import {
  CopilotChat, CopilotKitProvider, useAgent, useAgentContext, useConfigureSuggestions, useCopilotKit, useHumanInTheLoop,
} from '@copilotkit/react-core/v2';
import { useMemo } from 'react';
import { createRoot } from 'react-dom/client';
import { z } from 'zod';

import { stored } from './thread.js';

const query = new URLSearchParams(location.search);
const [agentUrl, threadId] = [query.get('agent'), query.get('thread')];
const initialMessages = await stored(agentUrl, threadId);

/** Runs the agent on the messages before this one. */
function useAgain() {
  const { agent } = useAgent({ agentId: 'default' });
  const { copilotkit } = useCopilotKit();
  return async (before, ...more) => {
    const at = agent.messages.findIndex(({ id }) => id === before);
    agent.setMessages([...agent.messages.slice(0, at), ...more]);
    await copilotkit.runAgent({ agent });
  };
}

function Page() {
  const again = useAgain();
  // The query never changes, and so the hooks do not.
  if (query.has('context')) useAgentContext({ description: 'The page', value: 'The page shows order 4711.' });
  useConfigureSuggestions(query.has('suggestions') ? { instructions: 'Suggest two.', available: 'after-first-message' } : null);
  useHumanInTheLoop({
    name: 'pick_color',
    description: 'Lets the person pick a color.',
    parameters: z.object({}),
    render: ({ name }) => <i className="tool">{name}</i>,
  });
  return (
    <CopilotChat
      threadId={threadId}
      attachments={{ enabled: true, accept: 'image/*', maxSize: 32 << 20 }}
      messageView={{
        assistantMessage: { onRegenerate: (message) => again(message.id) },
        userMessage: {
          onEditMessage: ({ message }) => again(message.id, { ...message, content: prompt('The message') }),
        },
      }}
    />
  );
}

function App() {
  const agents = useMemo(() => ({ default: new HttpAgent({ url: `${agentUrl}/run`, threadId, initialMessages }) }), []);
  const onError = ({ error, code }) => console.log(`CopilotKit says: ${code} ${error.message}`);
  return <CopilotKitProvider agents__unsafe_dev_only={agents} onError={onError}><Page /></CopilotKitProvider>;
}

createRoot(document.getElementById('page')).render(<App />);
