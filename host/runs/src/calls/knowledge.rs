//! `knowledge`.

use agent_host_protocol::{ApiError, context::KnowledgeBaseResource, knowledge::KnowledgeHit, manifest::KnowledgeOperation};
use agent_host_sandbox::{KnowledgeCalls, parse_json};
use futures_util::future::BoxFuture;

use super::{RunCalls, granted, not_found, not_granted, top_k, within};
use crate::execution::call::Call;

/// The configuration key that lists the knowledge bases of a binding.
const POLICY: &str = "resources.kb_ids";

/// A question, and what narrows it.
const MAX_QUERY_BYTES: usize = 32 * 1024;

impl KnowledgeCalls for RunCalls {
    fn knowledge_list(&mut self) -> BoxFuture<'_, Result<Vec<KnowledgeBaseResource>, ApiError>> {
        Box::pin(async move {
            let run = &*self.run;
            let grant = &run.terms.grant;
            let allowed = || granted(&grant.permissions.knowledge_bases, &KnowledgeOperation::List, "knowledge.list");
            let effect = async |()| Ok(self.services.knowledge_resources(grant));
            let digest = run.journal.digest(&());
            run.pass(Call::read("knowledge.list", digest), allowed, effect).await.outcome
        })
    }

    fn knowledge_retrieve(
        &mut self,
        kb_id: String,
        query: String,
        at_most: u32,
        filters: Option<String>,
    ) -> BoxFuture<'_, Result<Vec<KnowledgeHit>, ApiError>> {
        Box::pin(async move {
            let run = &*self.run;
            let grant = &run.terms.grant;
            let digest = run.journal.digest(&(&kb_id, &query, at_most, &filters));
            let bytes = query.len() + filters.as_ref().map_or(0, String::len);
            let allowed = || {
                granted(&grant.permissions.knowledge_bases, &KnowledgeOperation::Retrieve, "knowledge.retrieve")?;
                if !self.services.has_knowledge_base(&kb_id) {
                    return Err(not_found("knowledge base", &kb_id));
                }
                if !grant.knowledge_bases.contains(&kb_id) {
                    return Err(not_granted("knowledge base", &kb_id, POLICY));
                }
                top_k(at_most, run.limits.retrieve_top_k)?;
                within("a query", bytes, MAX_QUERY_BYTES)
            };
            let effect = async |()| {
                let filters = filters.as_deref().map(|text| parse_json("`filters`", text)).transpose()?;
                self.services.knowledge.retrieve(&kb_id, &query, at_most, filters.as_ref(), run.deadline.at()).await
            };
            let call = Call::read("knowledge.retrieve", digest).resource(kb_id.as_str()).bytes(bytes);
            run.pass(call, allowed, effect).await.outcome
        })
    }
}
