//! Opening an index of tantivy.

use std::{fs, io, path::Path};

use tantivy::{
    Index, IndexReader, IndexWriter, ReloadPolicy, TantivyDocument, TantivyError,
    directory::{Directory, INDEX_WRITER_LOCK, MmapDirectory},
    schema::{IndexRecordOption, Schema, TextFieldIndexing, TextOptions},
    tokenizer::{TextAnalyzer, TokenizerManager},
};

use super::{ANALYZER, Analyzer};

/// Memory of a writer before it writes a segment. One thread is enough: splitting documents into passages takes longer.
const WRITER_BYTES: usize = 64 * 1024 * 1024;
/// Blocks of stored documents that stay unpacked for each segment.
const STORE_BLOCKS: usize = 32;

/// An open index.
pub(crate) struct OpenedIndex {
    pub(crate) index: Index,
    pub(crate) reader: IndexReader,
}

/// Opens an index, or makes one. An index of another schema is an error.
pub(crate) fn open(dir: &Path, schema: Schema) -> tantivy::Result<OpenedIndex> {
    fs::create_dir_all(dir)?;
    let tokenizers = TokenizerManager::default();
    tokenizers.register(ANALYZER, TextAnalyzer::from(Analyzer));
    let index = Index::builder().schema(schema).tokenizers(tokenizers).open_or_create(MmapDirectory::open(dir)?)?;
    let reader =
        index.reader_builder().reload_policy(ReloadPolicy::Manual).doc_store_cache_num_blocks(STORE_BLOCKS).try_into()?;
    Ok(OpenedIndex { index, reader })
}

/// The one writer of an index; `LockBusy` while there is another, here or in another process.
pub(crate) fn writer(index: &Index) -> tantivy::Result<IndexWriter<TantivyDocument>> {
    index.writer_with_num_threads(1, WRITER_BYTES)
}

/// Empties a folder, unless somebody writes to the index in it.
pub(crate) fn wipe(dir: &Path) -> tantivy::Result<()> {
    fs::create_dir_all(dir)?;
    let _lock =
        MmapDirectory::open(dir)?.acquire_lock(&INDEX_WRITER_LOCK).map_err(|error| TantivyError::LockFailure(error, None))?;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let removed = if entry.file_type()?.is_dir() { fs::remove_dir_all(entry.path()) } else { fs::remove_file(entry.path()) };
        removed.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })?;
    }
    Ok(())
}

/// True if an error means that the files were damaged.
pub(crate) fn is_damage(error: &TantivyError) -> bool {
    match error {
        TantivyError::DataCorruption(_)
        | TantivyError::OpenReadError(_)
        | TantivyError::SchemaError(_)
        | TantivyError::IncompatibleIndex(_)
        | TantivyError::DeserializeError(_)
        | TantivyError::FieldNotFound(_)
        | TantivyError::InternalError(_) => true,
        TantivyError::IoError(error) => {
            matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof | io::ErrorKind::NotFound)
        }
        _ => false,
    }
}

/// Text that is cut into terms by our analyzer.
pub(crate) fn analyzed() -> TextOptions {
    TextOptions::default().set_indexing_options(
        TextFieldIndexing::default().set_tokenizer(ANALYZER).set_index_option(IndexRecordOption::WithFreqsAndPositions),
    )
}
