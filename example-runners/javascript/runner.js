// A runner in JavaScript: repeats what it is told, word by word, and counts the turns of the conversation.

import { write } from 'agent-host:runner/log@1.0.0';
import { emit } from 'agent-host:runner/results@1.0.0';
import * as state from 'agent-host:runner/state@1.0.0';

const MESSAGE = 'm0';

export const runner = {
  listRunners() {
    // What the runner can do, and what it may be granted: each import of the world is declared here.
    const capabilities = { streaming: true, toolCalling: false, knowledgeRetrieval: false, multimodalInput: false,
      eventContext: false, platformApi: false, interrupt: false, steering: false, statefulSession: false, selfManagedContext: true };
    const permissions = { models: [], tools: [], knowledgeBases: [], history: [], events: [], artifacts: [], state: ['conversation'],
      storage: [], runs: [], platformActions: [], interactions: false, httpHosts: [] };
    const context = { ownership: 'self-managed', bootstrap: 'none', maxInlineEvents: 0, maxInlineBytes: 0,
      supportsHistoryPull: false, supportsHistorySearch: false, supportsArtifactPull: false, ownsCompaction: false,
      wantsStaticContextRefs: false };
    return [{ name: 'default', author: 'acme', plugin: 'javascript', version: '1.0.0', label: [['en', 'JavaScript']],
      description: [['en', 'Repeats what it is told, and counts.']], capabilities, permissions, context, configSchema: [],
      metadata: '{}' }];
  },

  run(_name, context) {
    if (!context.input.text) {
      throw { code: 'acme.no_text', message: 'say something', retryable: false, details: undefined };
    }
    const turn = JSON.parse(state.get('conversation', 'turns') ?? '0') + 1;
    state.set('conversation', 'turns', JSON.stringify(turn));
    const text = `${turn}: ${context.input.text}`;
    for (const word of text.split(' ')) {
      emit([{ tag: 'message-delta', val: { messageId: MESSAGE, role: 'assistant', text: `${word} ` } }]);
    }
    const message = { role: 'assistant', content: [{ tag: 'text', val: text }], name: undefined, toolCalls: [], toolCallId: undefined };
    emit([{ tag: 'message-completed', val: { messageId: MESSAGE, message } }]);
    write('info', `turn ${turn}`);
    return { finishReason: 'stop', message: undefined, usage: undefined, metadata: undefined };
  },
};
