//! The index of transcripts.

use std::{
    ops::Bound,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::{Mutex, RwLock};
use tantivy::{
    IndexWriter, Order, Score, Searcher, TantivyDocument, TantivyError, Term,
    collector::TopDocs,
    query::{BooleanQuery, ConstScoreQuery, Occur, Query, RangeQuery, TermQuery, TermSetQuery},
    schema::{FAST, Field, INDEXED, IndexRecordOption, STRING, Schema},
};

use super::{
    SearchError,
    open::{self, OpenedIndex},
    query::{WeightedField, text_query},
};

/// Bytes of an item that are searched; the rest is ignored. A message has a page or two, larger texts are artifacts.
const MAX_ITEM_BYTES: usize = 256 * 1024;
/// More hits than any interface gives.
const MAX_HITS: usize = 1_000;

/// A full-text index of transcripts, one for all conversations.
///
/// The index is a cache: its content is in the ledger too, its folder may be deleted while no host uses it, and
/// [`TranscriptIndex::indexed`] says where filling it continues. A damaged index, or one of another version, is emptied: at
/// opening silently, later with [`SearchError::Damaged`].
///
/// All methods read or write files: call them where blocking is allowed.
pub struct TranscriptIndex {
    dir: PathBuf,
    fields: Fields,
    opened: RwLock<Arc<OpenedIndex>>,
    /// Made at the first addition. The holder of the lock is the only one that changes the index in this process.
    writer: Mutex<Option<IndexWriter<TantivyDocument>>>,
}

/// An item of a transcript, as it is indexed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TranscriptDoc {
    /// Number in the transcript of its conversation, from 1.
    pub seq: u64,
    /// Searched text.
    pub text: String,
    /// Role of the author.
    pub role: String,
    /// Kind of the item.
    pub event_type: String,
    /// Unix milliseconds.
    pub created_at: u64,
}

/// Filters of a search. An empty list matches all items.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TranscriptFilter {
    /// Said by one of these.
    pub roles: Vec<String>,
    /// Of one of these kinds.
    pub event_types: Vec<String>,
    /// Earliest time, in Unix ms.
    pub since: Option<u64>,
    /// Latest time, in Unix ms.
    pub until: Option<u64>,
}

#[derive(Clone, Copy)]
struct Fields {
    /// Conversation and number of the item: what replaces it.
    key: Field,
    conversation: Field,
    text: Field,
    role: Field,
    event_type: Field,
    seq: Field,
    created_at: Field,
}

const SEQ: &str = "seq";

impl Fields {
    fn schema() -> (Schema, Self) {
        let mut schema = Schema::builder();
        let fields = Self {
            key: schema.add_text_field("key", STRING),
            conversation: schema.add_text_field("conversation", STRING),
            text: schema.add_text_field("text", open::analyzed()),
            role: schema.add_text_field("role", STRING),
            event_type: schema.add_text_field("event_type", STRING),
            seq: schema.add_u64_field(SEQ, FAST),
            created_at: schema.add_u64_field("created_at", FAST | INDEXED),
        };
        (schema.build(), fields)
    }
}

impl TranscriptIndex {
    /// Opens the index in `dir`, or makes it. An unreadable index, or one of another version, is emptied.
    ///
    /// # Errors
    /// Fails if the folder cannot be used, or another process holds an unreadable index.
    pub fn open(dir: &Path) -> Result<Self, SearchError> {
        let (schema, fields) = Fields::schema();
        let opened = match open_checked(dir, &schema) {
            Ok(opened) => opened,
            Err(error) if open::is_damage(&error) => {
                tracing::warn!(dir = %dir.display(), %error, "the index of transcripts is damaged or of another version, and is rebuilt");
                open::wipe(dir).and_then(|()| open::open(dir, schema)).map_err(|error| SearchError::of(dir, &error))?
            }
            Err(error) => return Err(SearchError::of(dir, &error)),
        };
        Ok(Self { dir: dir.to_owned(), fields, opened: RwLock::new(Arc::new(opened)), writer: Mutex::new(None) })
    }

    /// The highest `seq` of a conversation that is in it; 0 for none.
    ///
    /// # Errors
    /// [`SearchError::Damaged`] where it had to be emptied, and others where its folder cannot be used.
    pub fn indexed(&self, conversation: &str) -> Result<u64, SearchError> {
        self.read(|searcher| highest(searcher, self.fields, conversation))
    }

    /// Adds items. The items are durable and searchable when this function returns. An item with an existing `seq` replaces
    /// it, so a repeated call is harmless. Concurrent calls are serialized.
    ///
    /// # Errors
    /// As [`TranscriptIndex::indexed`]; then none of the items is in it.
    pub fn add(&self, conversation: &str, items: &[TranscriptDoc]) -> Result<(), SearchError> {
        if items.is_empty() {
            return Ok(());
        }
        self.write(|writer, searcher| {
            let mut last = highest(searcher, self.fields, conversation)?;
            for item in items {
                let key = format!("{conversation}\0{}", item.seq);
                if item.seq <= last {
                    writer.delete_term(Term::from_field_text(self.fields.key, &key));
                }
                last = last.max(item.seq);
                writer.add_document(self.document(conversation, &key, item))?;
            }
            Ok(())
        })
    }

    /// Changes the index; the change is durable and seen when this returns.
    fn write(
        &self,
        change: impl FnOnce(&mut IndexWriter<TantivyDocument>, &Searcher) -> tantivy::Result<()>,
    ) -> Result<(), SearchError> {
        let mut writer = self.writer.lock();
        let opened = self.opened.read().clone();
        let done = catch_unwind(AssertUnwindSafe(|| {
            let writer = match &mut *writer {
                Some(writer) => writer,
                none => none.insert(open::writer(&opened.index)?),
            };
            // Another process may have written since.
            opened.reader.reload()?;
            change(writer, &opened.reader.searcher())?;
            writer.commit()?;
            opened.reader.reload()
        }));
        let failure = match done {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => Failure::Error(error),
            Err(panic) => Failure::panic(&panic),
        };
        // Uncommitted items of the writer are dropped too.
        *writer = None;
        Err(self.failed(failure, &mut writer))
    }

    /// Removes all items of a conversation. Searches no longer find them when this function returns; their disk space is
    /// freed at the next merge of the index.
    ///
    /// # Errors
    /// As [`TranscriptIndex::indexed`]; an index that was emptied has none of them either.
    pub fn forget(&self, conversation: &str) -> Result<(), SearchError> {
        if self.indexed(conversation)? == 0 {
            return Ok(());
        }
        let term = Term::from_field_text(self.fields.conversation, conversation);
        self.write(|writer, _| {
            writer.delete_term(term);
            Ok(())
        })
    }

    /// The `seq` of the items that fit best, best first and the newest of equals first, and how well.
    ///
    /// `query` is plain text: nothing in it is an operator.
    ///
    /// # Errors
    /// As [`TranscriptIndex::indexed`].
    pub fn search(
        &self,
        conversation: &str,
        query: &str,
        filter: &TranscriptFilter,
        top_k: usize,
    ) -> Result<Vec<(u64, f32)>, SearchError> {
        let Some(text) = text_query(query, &[WeightedField { field: self.fields.text, weight: 1.0 }]) else {
            return Ok(Vec::new());
        };
        if top_k == 0 {
            return Ok(Vec::new());
        }
        let mut clauses = vec![(Occur::Must, text), (Occur::Must, self.only(self.fields.conversation, [conversation]))];
        for (field, allowed) in [(self.fields.role, &filter.roles), (self.fields.event_type, &filter.event_types)] {
            if !allowed.is_empty() {
                clauses.push((Occur::Must, self.only(field, allowed.iter().map(String::as_str))));
            }
        }
        if filter.since.is_some() || filter.until.is_some() {
            let bound = |time: Option<u64>| {
                time.map_or(Bound::Unbounded, |time| Bound::Included(Term::from_field_u64(self.fields.created_at, time)))
            };
            let range = RangeQuery::new(bound(filter.since), bound(filter.until));
            clauses.push((Occur::Must, Box::new(ConstScoreQuery::new(Box::new(range), 0.0))));
        }
        let query = BooleanQuery::new(clauses);
        let mut hits = self.read(|searcher| {
            let top: Vec<(Score, _)> = searcher.search(&query, &TopDocs::with_limit(top_k.min(MAX_HITS)).order_by_score())?;
            top.into_iter()
                .map(|(score, at)| {
                    let seq = searcher.segment_reader(at.segment_ord).fast_fields().u64(SEQ)?.first(at.doc_id);
                    Ok((seq.unwrap_or_default(), score))
                })
                .collect::<tantivy::Result<Vec<_>>>()
        })?;
        hits.sort_by(|(seq_a, a), (seq_b, b)| b.total_cmp(a).then(seq_b.cmp(seq_a)));
        Ok(hits)
    }

    fn document(&self, conversation: &str, key: &str, item: &TranscriptDoc) -> TantivyDocument {
        let end = (0..=item.text.len().min(MAX_ITEM_BYTES)).rev().find(|at| item.text.is_char_boundary(*at));
        let mut document = TantivyDocument::new();
        document.add_text(self.fields.key, key);
        document.add_text(self.fields.conversation, conversation);
        document.add_text(self.fields.text, item.text.get(..end.unwrap_or_default()).unwrap_or_default());
        document.add_text(self.fields.role, &item.role);
        document.add_text(self.fields.event_type, &item.event_type);
        document.add_u64(self.fields.seq, item.seq);
        document.add_u64(self.fields.created_at, item.created_at);
        document
    }

    /// Items that have one of the values in a field, without an influence on the order.
    fn only<'a>(&self, field: Field, values: impl IntoIterator<Item = &'a str>) -> Box<dyn Query> {
        let terms = TermSetQuery::new(values.into_iter().map(|value| Term::from_field_text(field, value)));
        Box::new(ConstScoreQuery::new(Box::new(terms), 0.0))
    }

    fn read<T>(&self, read: impl FnOnce(&Searcher) -> tantivy::Result<T>) -> Result<T, SearchError> {
        let searcher = self.opened.read().reader.searcher();
        // Files that changed behind its back make tantivy panic as well as fail.
        let failure = match catch_unwind(AssertUnwindSafe(|| read(&searcher))) {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => Failure::Error(error),
            Err(panic) => Failure::panic(&panic),
        };
        drop(searcher);
        Err(self.failed(failure, &mut self.writer.lock()))
    }

    /// The error that is reported; the index is emptied where it cannot be read.
    fn failed(&self, failure: Failure, writer: &mut Option<IndexWriter<TantivyDocument>>) -> SearchError {
        let reason = match failure {
            Failure::Error(error) if !open::is_damage(&error) => return SearchError::of(&self.dir, &error),
            Failure::Error(error) => error.to_string(),
            Failure::Panic(reason) => reason,
        };
        *writer = None;
        match open::wipe(&self.dir).and_then(|()| open::open(&self.dir, Fields::schema().0)) {
            Ok(opened) => {
                *self.opened.write() = Arc::new(opened);
                tracing::warn!(dir = %self.dir.display(), reason, "the index of transcripts was damaged, and is rebuilt");
                SearchError::Damaged { path: self.dir.clone(), reason }
            }
            Err(error) => SearchError::of(&self.dir, &error),
        }
    }
}

enum Failure {
    Error(TantivyError),
    Panic(String),
}

impl Failure {
    fn panic(panic: &Box<dyn std::any::Any + Send>) -> Self {
        let text = panic.downcast_ref::<String>().cloned();
        Self::Panic(text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_default())
    }
}

/// Tantivy panics on some damages where it could fail.
fn open_checked(dir: &Path, schema: &Schema) -> tantivy::Result<OpenedIndex> {
    catch_unwind(AssertUnwindSafe(|| open::open(dir, schema.clone())))
        .unwrap_or_else(|_| Err(TantivyError::InternalError("it could not be opened".into())))
}

fn highest(searcher: &Searcher, fields: Fields, conversation: &str) -> tantivy::Result<u64> {
    let query = TermQuery::new(Term::from_field_text(fields.conversation, conversation), IndexRecordOption::Basic);
    let top: Vec<(Option<u64>, _)> = searcher.search(&query, &TopDocs::with_limit(1).order_by_u64_field(SEQ, Order::Desc))?;
    Ok(top.first().and_then(|(seq, _)| *seq).unwrap_or_default())
}
