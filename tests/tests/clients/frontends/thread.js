// The messages that the host has of a thread, oldest first, as AG-UI has them.

export async function stored(agentUrl, threadId) {
  const messages = [];
  for (let page; !page || page.hasMore; ) {
    const before = page ? `&before=${encodeURIComponent(page.before)}` : '';
    const answer = await fetch(`${agentUrl}/threads/${threadId}?limit=100${before}`);
    if (answer.status === 404) return [];
    page = await answer.json();
    messages.unshift(...page.messages);
  }
  return messages;
}
