//! Plain text into a query.

use std::collections::HashMap;

use tantivy::{
    Term,
    query::{BooleanQuery, BoostQuery, Occur, PhraseQuery, Query, TermQuery},
    schema::{Field, IndexRecordOption},
};

use super::analyzer::{TermKind, analyze};

/// Bytes of a query that count; the rest is ignored. A question is shorter, and a pasted book costs no more.
pub const MAX_QUERY_BYTES: usize = 8 * 1024;
/// A query has so many different terms at most, the first ones: each is a list that is walked.
pub const MAX_QUERY_TERMS: usize = 128;
/// Longer queries are not looked for word by word in their order: they are no phrases.
const MAX_PHRASE_TERMS: usize = 8;
/// Weight of a phrase, added to that of its words.
const PHRASE_WEIGHT: f32 = 1.0;

/// A field, and how much a term counts that is found in it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WeightedField {
    pub(crate) field: Field,
    pub(crate) weight: f32,
}

/// The query for `text` in `fields`, of which the first is the text itself; `None` if the text has no word.
///
/// A document matches with any of the terms; more and rarer terms score higher (BM25), and terms in the same order score
/// higher still.
pub(crate) fn text_query(text: &str, fields: &[WeightedField]) -> Option<Box<dyn Query>> {
    let end = (0..=text.len().min(MAX_QUERY_BYTES)).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default();
    let analyzed = analyze(text.get(..end).unwrap_or_default());
    let mut weights: Vec<(&str, f32)> = Vec::new();
    let mut seen: HashMap<&str, usize> = HashMap::new();
    for term in &analyzed {
        let weight = match term.kind {
            TermKind::Word => 1.0,
            TermKind::Letter => 0.5,
            TermKind::Pair => 0.3,
            TermKind::Inner => continue,
        };
        match seen.get(term.text.as_str()) {
            Some(at) => {
                if let Some((_, known)) = weights.get_mut(*at) {
                    *known = known.max(weight);
                }
            }
            None if weights.len() < MAX_QUERY_TERMS => {
                seen.insert(&term.text, weights.len());
                weights.push((&term.text, weight));
            }
            None => {}
        }
    }
    let mut clauses: Vec<(Occur, Box<dyn Query>)> = Vec::with_capacity(weights.len() * fields.len() + 1);
    for WeightedField { field, weight } in fields {
        for (term, of_term) in &weights {
            let query = TermQuery::new(Term::from_field_text(*field, term), IndexRecordOption::WithFreqs);
            clauses.push((Occur::Should, boosted(Box::new(query), weight * of_term)));
        }
    }
    let words: Vec<_> = analyzed.iter().filter(|t| t.kind == TermKind::Word).collect();
    if let (2..=MAX_PHRASE_TERMS, Some(first), Some(WeightedField { field, .. })) = (words.len(), words.first(), fields.first()) {
        let from = first.position;
        let terms = words.iter().map(|t| (t.position - from, Term::from_field_text(*field, &t.text))).collect();
        clauses.push((Occur::Should, boosted(Box::new(PhraseQuery::new_with_offset(terms)), PHRASE_WEIGHT)));
    }
    (!clauses.is_empty()).then(|| Box::new(BooleanQuery::new(clauses)) as Box<dyn Query>)
}

#[allow(clippy::float_cmp, reason = "the weight of an ordinary word is the constant 1, not computed")]
fn boosted(query: Box<dyn Query>, weight: f32) -> Box<dyn Query> {
    if weight == 1.0 { query } else { Box::new(BoostQuery::new(query, weight)) }
}
