// A runner that may invoke models, and answers every event with nothing.
export const runner = {
  listRunners() {
    const permissions = { models: ['invoke'], tools: [], knowledgeBases: [], history: [], events: [], artifacts: [], state: [],
      storage: [], runs: [], platformActions: [], interactions: false, httpHosts: [] };
    const capabilities = { streaming: false, toolCalling: false, knowledgeRetrieval: false, multimodalInput: false,
      eventContext: false, platformApi: false, interrupt: false, steering: false, statefulSession: false, selfManagedContext: false };
    const context = { ownership: 'self-managed', bootstrap: 'none', maxInlineEvents: 0, maxInlineBytes: 0,
      supportsHistoryPull: false, supportsHistorySearch: false, supportsArtifactPull: false, ownsCompaction: false,
      wantsStaticContextRefs: false };
    return [{ name: 'default', author: 'test', plugin: 'js', version: '1.0.0', label: [['en', 'JS']], description: undefined,
      capabilities, permissions, context, configSchema: [], metadata: '{}' }];
  },
  run() {
    return { finishReason: 'stop', message: undefined, usage: undefined, metadata: undefined };
  },
};
