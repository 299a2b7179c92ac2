//! The index of one knowledge base.
//!
//! A document is one record and its passages, all written in one commit. The list of documents is read from the index
//! itself, so no second list can differ.

use std::{
    collections::HashMap,
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json, json};
use tantivy::{
    DocAddress, DocId, IndexWriter, Score, Searcher, SegmentOrdinal, SegmentReader, TantivyDocument, TantivyError, Term,
    collector::{Collector, SegmentCollector, TopDocs},
    index::SegmentId,
    query::Query,
    schema::{FAST, Field, STORED, STRING, Schema, Value},
};

use super::{error::KnowledgeError, passages::Passage, report::DocumentInfo, vectors::SegmentVectors};
use crate::search::{
    SearchError,
    open::{self, OpenedIndex},
};

const DOCUMENT: &str = "document";
const PASSAGE: &str = "passage";
const HEADING: &str = "heading";

/// The record of a document, besides its passages.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct DocumentRecord {
    pub(crate) id: String,
    pub(crate) path: String,
    pub(crate) source: PathBuf,
    pub(crate) title: String,
    pub(crate) media_type: String,
    pub(crate) modified_at: u64,
    pub(crate) added_at: u64,
    pub(crate) bytes: u64,
    pub(crate) passages: u64,
    pub(crate) embedding: Option<String>,
    /// Of the content of the file, and of all that decides what is made of it.
    pub(crate) fingerprint: String,
    /// As it was given with the addition.
    pub(crate) metadata: Map<String, Json>,
}

/// Keys of metadata that the host sets.
pub(crate) const RESERVED: [&str; 9] =
    ["path", "title", "media_type", "modified_at", "heading", "passage", "passages", "retrieval", "degraded"];

impl DocumentRecord {
    /// The metadata for guests and for filters.
    pub(crate) fn metadata_for_guests(&self) -> Map<String, Json> {
        let mut metadata_for_guests = self.metadata.clone();
        metadata_for_guests.insert("path".into(), json!(self.path));
        metadata_for_guests.insert("title".into(), json!(self.title));
        metadata_for_guests.insert("media_type".into(), json!(self.media_type));
        metadata_for_guests.insert("modified_at".into(), json!(self.modified_at));
        metadata_for_guests.insert("passages".into(), json!(self.passages));
        metadata_for_guests
    }

    pub(crate) fn info(&self) -> DocumentInfo {
        DocumentInfo {
            id: self.id.clone(),
            path: self.path.clone(),
            source: self.source.clone(),
            title: self.title.clone(),
            media_type: self.media_type.clone(),
            modified_at: self.modified_at,
            added_at: self.added_at,
            bytes: self.bytes,
            passages: self.passages,
            embedding: self.embedding.clone(),
            metadata: self.metadata_for_guests(),
        }
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Fields {
    id: Field,
    /// The beginning of the id as a number: joins passages and records.
    document: Field,
    /// From 1; 0 is the record of the document.
    passage: Field,
    record: Field,
    pub(crate) text: Field,
    /// Title and headings.
    pub(crate) context: Field,
    heading: Field,
    vector: Field,
}

impl Fields {
    fn schema() -> (Schema, Self) {
        let mut schema = Schema::builder();
        let fields = Self {
            id: schema.add_text_field("id", STRING),
            document: schema.add_u64_field(DOCUMENT, FAST),
            passage: schema.add_u64_field(PASSAGE, FAST),
            record: schema.add_text_field("record", STORED),
            text: schema.add_text_field("text", open::analyzed().set_stored()),
            context: schema.add_text_field("context", open::analyzed()),
            heading: schema.add_text_field(HEADING, tantivy::schema::TextOptions::default().set_stored().set_fast("raw")),
            vector: schema.add_bytes_field("vector", STORED),
        };
        (schema.build(), fields)
    }
}

/// The number of a document.
fn key(id: &str) -> u64 {
    u64::from_str_radix(id.get(..16).unwrap_or_default(), 16).unwrap_or_default()
}

/// The index of one knowledge base. Readers never wait for a writer.
pub(crate) struct Store {
    dir: PathBuf,
    pub(crate) fields: Fields,
    opened: OpenedIndex,
    seen: Mutex<Option<LoadedSnapshot>>,
}

struct LoadedSnapshot {
    /// `meta.json`: a commit of any process changes it.
    meta: Vec<u8>,
    snapshot: Arc<Snapshot>,
}

/// A committed state.
pub(crate) struct Snapshot {
    pub(crate) searcher: Searcher,
    segments: Vec<Arc<SegmentData>>,
    /// The documents of the whole snapshot, by [`key`].
    documents: HashMap<u64, Arc<DocumentRecord>>,
    vectors: PathBuf,
    fields: Fields,
}

/// Cached values of a segment. Segments do not change, apart from deletions.
struct SegmentData {
    id: SegmentId,
    documents: Vec<u64>,
    passages: Vec<u32>,
    records: Vec<(DocId, u64, Arc<DocumentRecord>)>,
    vectors: OnceLock<Arc<SegmentVectors>>,
}

/// The selected passages, by segment and number in it.
pub(crate) type SelectedPassages = Arc<Vec<Vec<bool>>>;

/// The predicate that selects a passage, by its headings and its number.
pub(crate) type OfPassage<'a> = dyn Fn(&str, u32) -> bool + 'a;

/// A passage as it is stored.
pub(crate) struct StoredPassage {
    pub(crate) document: Arc<DocumentRecord>,
    pub(crate) number: u32,
    pub(crate) text: String,
    pub(crate) heading: String,
}

impl Store {
    /// Opens the index in `dir`, or makes it.
    pub(crate) fn open(dir: &Path) -> Result<Self, KnowledgeError> {
        let (schema, fields) = Fields::schema();
        let opened = catch_unwind(AssertUnwindSafe(|| open::open(dir, schema)))
            .unwrap_or_else(|_| Err(TantivyError::InternalError("it cannot be opened".into())))
            .map_err(|error| failure(dir, &error))?;
        Ok(Self { dir: dir.to_owned(), fields, opened, seen: Mutex::new(None) })
    }

    /// The present committed state, by whatever process.
    pub(crate) fn snapshot(&self) -> Result<Arc<Snapshot>, KnowledgeError> {
        let mut seen = self.seen.lock();
        let meta = fs::read(self.dir.join("meta.json")).map_err(|error| failure(&self.dir, &error.into()))?;
        if let Some(seen) = seen.as_ref().filter(|seen| seen.meta == meta) {
            return Ok(seen.snapshot.clone());
        }
        let old = seen.as_ref().map(|seen| seen.snapshot.clone());
        let snapshot = catch_unwind(AssertUnwindSafe(|| {
            self.opened.reader.reload()?;
            Snapshot::new(self.opened.reader.searcher(), self.fields, self.dir.join("vectors"), old.as_deref())
        }))
        .unwrap_or_else(|_| Err(TantivyError::InternalError("it cannot be read".into())))
        .map_err(|error| failure(&self.dir, &error))?;
        let snapshot = Arc::new(snapshot);
        *seen = Some(LoadedSnapshot { meta, snapshot: snapshot.clone() });
        Ok(snapshot)
    }

    /// The writer, of which there is one at a time on the whole machine.
    pub(crate) fn writer(self: Arc<Self>) -> Result<Writer, KnowledgeError> {
        let inner = open::writer(&self.opened.index).map_err(|error| failure(&self.dir, &error))?;
        Ok(Writer { store: self, inner })
    }

    /// Converts an error of reading this index.
    pub(crate) fn failure(&self, error: &TantivyError) -> KnowledgeError {
        failure(&self.dir, error)
    }
}

fn failure(dir: &Path, error: &TantivyError) -> KnowledgeError {
    if open::is_damage(error) {
        KnowledgeError::Unreadable { path: dir.to_owned(), reason: error.to_string() }
    } else {
        SearchError::of(dir, error).into()
    }
}

/// A change of an index. No change is visible before [`Writer::commit`]; dropping the writer before discards all changes.
pub(crate) struct Writer {
    store: Arc<Store>,
    inner: IndexWriter<TantivyDocument>,
}

impl Writer {
    /// Puts a document in the place of the one with its id.
    pub(crate) fn put(
        &self,
        record: &DocumentRecord,
        passages: &[Passage],
        vectors: Option<&[Option<Vec<f32>>]>,
    ) -> Result<(), KnowledgeError> {
        let fields = self.store.fields;
        let failed = |error: TantivyError| self.store.failure(&error);
        self.delete(&record.id);
        let number = key(&record.id);
        for (index, passage) in passages.iter().enumerate() {
            let mut document = TantivyDocument::new();
            document.add_text(fields.id, &record.id);
            document.add_u64(fields.document, number);
            document.add_u64(fields.passage, index as u64 + 1);
            document.add_text(fields.text, &passage.text);
            document.add_text(fields.context, format!("{}\n{}", record.title, passage.heading));
            document.add_text(fields.heading, &passage.heading);
            if let Some(Some(vector)) = vectors.and_then(|vectors| vectors.get(index)) {
                document.add_bytes(fields.vector, &super::vectors::to_bytes(vector));
            }
            self.inner.add_document(document).map_err(failed)?;
        }
        let text = serde_json::to_string(record).map_err(|error| KnowledgeError::Internal(error.to_string()))?;
        let mut document = TantivyDocument::new();
        document.add_text(fields.id, &record.id);
        document.add_u64(fields.document, number);
        document.add_u64(fields.passage, 0);
        document.add_text(fields.record, text);
        self.inner.add_document(document).map_err(failed)?;
        Ok(())
    }

    /// Removes a document.
    pub(crate) fn delete(&self, id: &str) {
        self.inner.delete_term(Term::from_field_text(self.store.fields.id, id));
    }

    /// Makes everything since the last commit durable and found, all or nothing.
    pub(crate) fn commit(&mut self) -> Result<(), KnowledgeError> {
        self.inner.commit().map(drop).map_err(|error| self.store.failure(&error))
    }

    /// Waits for background work, and cleans up.
    pub(crate) fn finish(self) -> Result<(), KnowledgeError> {
        let Self { store, inner } = self;
        inner.wait_merging_threads().map_err(|error| store.failure(&error))?;
        let living = store.opened.index.searchable_segment_ids().map_err(|error| store.failure(&error))?;
        let living: Vec<_> = living.iter().map(SegmentId::uuid_string).collect();
        super::vectors::sweep(&store.dir.join("vectors"), &living);
        Ok(())
    }
}

impl Snapshot {
    fn new(searcher: Searcher, fields: Fields, vectors: PathBuf, old: Option<&Self>) -> tantivy::Result<Self> {
        let mut segments = Vec::new();
        let mut documents = HashMap::new();
        for (ord, reader) in (0..).zip(searcher.segment_readers()) {
            let known = old.and_then(|old| old.segments.iter().find(|data| data.id == reader.segment_id()));
            let data = match known {
                Some(data) => data.clone(),
                None => Arc::new(SegmentData::read(&searcher, ord, reader, fields)?),
            };
            let alive = data.records.iter().filter(|(doc, ..)| !reader.is_deleted(*doc));
            documents.extend(alive.map(|(_, key, record)| (*key, record.clone())));
            segments.push(data);
        }
        Ok(Self { searcher, segments, documents, vectors, fields })
    }

    pub(crate) fn documents(&self) -> impl Iterator<Item = &Arc<DocumentRecord>> {
        self.documents.values()
    }

    pub(crate) fn document(&self, id: &str) -> Option<&Arc<DocumentRecord>> {
        self.documents.get(&key(id)).filter(|record| record.id == id)
    }

    pub(crate) fn document_count(&self) -> u64 {
        self.documents.len() as u64
    }

    pub(crate) fn passage_count(&self) -> u64 {
        self.documents.values().map(|record| record.passages).sum()
    }

    /// The passages whose document and place fit. `of_passage` is asked with heading and number where it is given.
    pub(crate) fn allowed(
        &self,
        of_document: impl Fn(&DocumentRecord) -> bool,
        of_passage: Option<&OfPassage<'_>>,
    ) -> tantivy::Result<SelectedPassages> {
        let fitting: HashMap<u64, bool> = self.documents.iter().map(|(key, record)| (*key, of_document(record))).collect();
        let mut allowed = Vec::with_capacity(self.segments.len());
        for (data, reader) in self.segments.iter().zip(self.searcher.segment_readers()) {
            let mut fits: Vec<bool> =
                data.documents.iter().map(|document| fitting.get(document).copied().unwrap_or_default()).collect();
            if let Some(of_passage) = of_passage {
                let headings = reader.fast_fields().str(HEADING)?;
                let mut heading = String::new();
                for ((doc, fits), number) in (0..).zip(&mut fits).zip(&data.passages).filter(|((_, fits), _)| **fits) {
                    heading.clear();
                    if let Some(headings) = &headings
                        && let Some(ord) = headings.ords().first(doc)
                    {
                        headings.ord_to_str(ord, &mut heading)?;
                    }
                    *fits = of_passage(&heading, *number);
                }
            }
            allowed.push(fits);
        }
        Ok(Arc::new(allowed))
    }

    /// The best passages for a query, best first.
    pub(crate) fn search(
        &self,
        query: &dyn Query,
        allowed: Option<&SelectedPassages>,
        limit: usize,
    ) -> tantivy::Result<Vec<(Score, DocAddress)>> {
        let top = TopDocs::with_limit(limit).order_by_score();
        match allowed {
            None => self.searcher.search(query, &top),
            Some(allowed) => self.searcher.search(query, &PassageFilter { allowed: allowed.clone(), inner: top }),
        }
    }

    /// The passages nearest to a vector of length 1 that a model of this name made, nearest first.
    pub(crate) fn nearest(
        &self,
        vector: &[f32],
        model: &str,
        allowed: Option<&SelectedPassages>,
        limit: usize,
    ) -> tantivy::Result<Vec<(Score, DocAddress)>> {
        let mut best: Vec<(Score, DocAddress)> = Vec::with_capacity(limit + 1);
        for (ord, (data, reader)) in (0..).zip(self.segments.iter().zip(self.searcher.segment_readers())) {
            if !data.records.iter().any(|(_, _, record)| record.embedding.is_some()) && !self.has_vectors_of(data) {
                continue;
            }
            let vectors = match data.vectors.get() {
                Some(vectors) => vectors.clone(),
                None => {
                    let passages: Vec<DocId> =
                        (0..).zip(&data.passages).filter(|(_, number)| **number > 0).map(|(doc, _)| doc).collect();
                    let loaded = SegmentVectors::load(&self.vectors, &self.searcher, ord, self.fields.vector, &passages)?;
                    data.vectors.get_or_init(|| Arc::new(loaded)).clone()
                }
            };
            let allowed = allowed.and_then(|allowed| allowed.get(ord as usize));
            vectors.scan(vector, |doc, score| {
                let worst = if best.len() < limit { f32::NEG_INFINITY } else { best.last().map_or(0.0, |(score, _)| *score) };
                if score <= worst || reader.is_deleted(doc) {
                    return;
                }
                if allowed.is_some_and(|allowed| !allowed.get(doc as usize).copied().unwrap_or_default()) {
                    return;
                }
                let record = data.documents.get(doc as usize).and_then(|key| self.documents.get(key));
                if record.and_then(|record| record.embedding.as_deref()) != Some(model) {
                    return;
                }
                let at = best.partition_point(|(known, _)| *known >= score);
                best.insert(at, (score, DocAddress::new(ord, doc)));
                best.truncate(limit);
            });
        }
        Ok(best)
    }

    /// True if a passage of the segment belongs to a document whose record, perhaps in another segment, has embeddings.
    fn has_vectors_of(&self, data: &SegmentData) -> bool {
        data.documents.iter().any(|key| self.documents.get(key).is_some_and(|record| record.embedding.is_some()))
    }

    /// A passage.
    pub(crate) fn passage(&self, at: DocAddress) -> tantivy::Result<Option<StoredPassage>> {
        let Some(data) = self.segments.get(at.segment_ord as usize) else { return Ok(None) };
        let document = data.documents.get(at.doc_id as usize).and_then(|key| self.documents.get(key));
        let (Some(document), Some(number)) = (document, data.passages.get(at.doc_id as usize)) else { return Ok(None) };
        let stored: TantivyDocument = self.searcher.doc(at)?;
        let text = |field| stored.get_first(field).and_then(|value| value.as_str()).unwrap_or_default().to_owned();
        Ok(Some(StoredPassage {
            document: document.clone(),
            number: *number,
            text: text(self.fields.text),
            heading: text(self.fields.heading),
        }))
    }
}

impl SegmentData {
    fn read(searcher: &Searcher, ord: SegmentOrdinal, reader: &SegmentReader, fields: Fields) -> tantivy::Result<Self> {
        let column = |name| -> tantivy::Result<Vec<u64>> {
            let column = reader.fast_fields().u64(name)?;
            Ok((0..reader.max_doc()).map(|doc| column.first(doc).unwrap_or_default()).collect())
        };
        let documents = column(DOCUMENT)?;
        let passages: Vec<u32> = column(PASSAGE)?.into_iter().map(|number| u32::try_from(number).unwrap_or(u32::MAX)).collect();
        let mut records = Vec::new();
        for (doc, key) in (0..).zip(&documents).zip(&passages).filter(|(_, number)| **number == 0).map(|(record, _)| record) {
            if reader.is_deleted(doc) {
                continue;
            }
            let stored: TantivyDocument = searcher.doc(DocAddress::new(ord, doc))?;
            let text = stored.get_first(fields.record).and_then(|value| value.as_str()).unwrap_or_default();
            let record = serde_json::from_str(text)
                .map_err(|error| tantivy::error::DataCorruption::comment_only(format!("the record of a document: {error}")))?;
            records.push((doc, *key, Arc::new(record)));
        }
        Ok(Self { id: reader.segment_id(), documents, passages, records, vectors: OnceLock::new() })
    }
}

/// Lets only allowed passages through.
struct PassageFilter<C> {
    allowed: SelectedPassages,
    inner: C,
}

struct FilteredSegment<S> {
    allowed: SelectedPassages,
    segment: usize,
    inner: S,
}

impl<C: Collector> Collector for PassageFilter<C> {
    type Fruit = C::Fruit;
    type Child = FilteredSegment<C::Child>;

    fn for_segment(&self, segment: SegmentOrdinal, reader: &SegmentReader) -> tantivy::Result<Self::Child> {
        let inner = self.inner.for_segment(segment, reader)?;
        Ok(FilteredSegment { allowed: self.allowed.clone(), segment: segment as usize, inner })
    }

    fn requires_scoring(&self) -> bool {
        self.inner.requires_scoring()
    }

    fn merge_fruits(&self, fruits: Vec<<C::Child as SegmentCollector>::Fruit>) -> tantivy::Result<C::Fruit> {
        self.inner.merge_fruits(fruits)
    }
}

impl<S: SegmentCollector> SegmentCollector for FilteredSegment<S> {
    type Fruit = S::Fruit;

    fn collect(&mut self, doc: DocId, score: Score) {
        if self.allowed.get(self.segment).and_then(|fits| fits.get(doc as usize)).copied().unwrap_or_default() {
            self.inner.collect(doc, score);
        }
    }

    fn harvest(self) -> S::Fruit {
        self.inner.harvest()
    }
}
