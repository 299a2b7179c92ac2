//! Vectors of passages: kept in the index, laid out flat beside it for the search.
//!
//! The index has the vector of each passage as stored bytes, so a commit has passages and vectors or neither. To compare
//! one with all, they are copied once for each segment of the index into a file that is mapped. Segments never change, so
//! neither do these files; each can be deleted at any time and is made again.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use tantivy::{
    DocAddress, DocId, Searcher, TantivyDocument,
    directory::{Directory, MmapDirectory, OwnedBytes},
    schema::{Field, Value},
};

/// Marks the files, and their version.
const MAGIC: &[u8; 8] = b"AHVECT01";
/// More dimensions than any model has.
pub(crate) const MAX_DIMENSIONS: usize = 16_384;
/// Sums that are computed side by side.
const LANES: usize = 16;

/// A vector of length 1; none where it has no direction, or a value that is no number.
pub(crate) fn normalized(mut vector: Vec<f32>) -> Option<Vec<f32>> {
    let length = vector.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>().sqrt();
    if vector.len() > MAX_DIMENSIONS || !length.is_finite() || length == 0.0 {
        return None;
    }
    for x in &mut vector {
        *x = (f64::from(*x) / length) as f32;
    }
    Some(vector)
}

/// As it is stored.
pub(crate) fn to_bytes(vector: &[f32]) -> Vec<u8> {
    vector.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// The vectors of one segment, by their dimensions.
pub(crate) struct SegmentVectors {
    groups: Vec<Group>,
}

struct Group {
    dimensions: usize,
    documents: OwnedBytes,
    rows: OwnedBytes,
}

impl SegmentVectors {
    /// All passages with a vector as long as `query`, and how near they are to it.
    pub(crate) fn scan(&self, query: &[f32], mut found: impl FnMut(DocId, f32)) {
        for group in self.groups.iter().filter(|group| group.dimensions == query.len()) {
            let (documents, _) = group.documents.as_slice().as_chunks::<4>();
            for (document, row) in documents.iter().zip(group.rows.as_slice().chunks_exact(query.len() * 4)) {
                found(DocId::from_le_bytes(*document), dot(row, query));
            }
        }
    }

    /// The vectors of a segment; read from their file if it exists.
    pub(crate) fn load(
        dir: &Path,
        searcher: &Searcher,
        segment: u32,
        field: Field,
        documents: &[DocId],
    ) -> tantivy::Result<Self> {
        let name = PathBuf::from(format!("{}.vectors", searcher.segment_reader(segment).segment_id().uuid_string()));
        fs::create_dir_all(dir)?;
        let mapped = MmapDirectory::open(dir)?;
        if let Some(vectors) = Self::read(&mapped, &name)? {
            return Ok(vectors);
        }
        let mut groups: BTreeMap<usize, (Vec<u8>, Vec<u8>)> = BTreeMap::new();
        for document in documents {
            let stored: TantivyDocument = searcher.doc(DocAddress::new(segment, *document))?;
            if let Some(vector) = stored.get_first(field).and_then(|value| value.as_bytes())
                && !vector.is_empty()
                && vector.len().is_multiple_of(4)
            {
                let (ids, rows) = groups.entry(vector.len() / 4).or_default();
                ids.extend_from_slice(&document.to_le_bytes());
                rows.extend_from_slice(vector);
            }
        }
        let mut file = MAGIC.to_vec();
        file.extend_from_slice(&(groups.len() as u64).to_le_bytes());
        for (dimensions, (ids, rows)) in &groups {
            file.extend_from_slice(&(*dimensions as u64).to_le_bytes());
            file.extend_from_slice(&(ids.len() as u64 / 4).to_le_bytes());
            file.extend_from_slice(ids);
            file.extend_from_slice(rows);
        }
        // Whole or not at all: two processes may do this at once.
        mapped.atomic_write(&name, &file)?;
        drop(file);
        Self::read(&mapped, &name)?.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData).into())
    }

    /// None where there is no file, or not a whole one.
    fn read(dir: &MmapDirectory, name: &Path) -> tantivy::Result<Option<Self>> {
        if !dir.exists(name)? {
            return Ok(None);
        }
        let file = dir.open_read(name)?.read_bytes()?;
        Ok(Self::parse(file))
    }

    fn parse(file: OwnedBytes) -> Option<Self> {
        let mut at = 0_usize;
        let mut take = |bytes: usize| {
            let end = at.checked_add(bytes).filter(|end| *end <= file.len())?;
            let part = file.slice(at..end);
            at = end;
            Some(part)
        };
        if take(MAGIC.len())?.as_slice() != MAGIC {
            return None;
        }
        let number = |take: &mut dyn FnMut(usize) -> Option<OwnedBytes>| {
            let part = take(8)?;
            usize::try_from(u64::from_le_bytes(part.as_slice().try_into().ok()?)).ok()
        };
        let mut groups = Vec::new();
        for _ in 0..number(&mut take)? {
            let dimensions = number(&mut take)?;
            let count = number(&mut take)?;
            let documents = take(count.checked_mul(4)?)?;
            let rows = take(count.checked_mul(dimensions)?.checked_mul(4)?)?;
            if dimensions == 0 {
                return None;
            }
            groups.push(Group { dimensions, documents, rows });
        }
        (at == file.len()).then_some(Self { groups })
    }
}

/// Removes the files of segments that are no more.
pub(crate) fn sweep(dir: &Path, living: &[String]) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        if !living.iter().any(|segment| segment == stem)
            && let Err(error) = fs::remove_file(&path)
        {
            tracing::debug!(path = %path.display(), %error, "a file of vectors stays");
        }
    }
}

/// The sum of the products. Written so that the compiler computes [`LANES`] at once.
fn dot(row: &[u8], query: &[f32]) -> f32 {
    let (row, _) = row.as_chunks::<4>();
    let (rows, row_rest) = row.as_chunks::<LANES>();
    let (queries, query_rest) = query.as_chunks::<LANES>();
    let mut sums = [0.0_f32; LANES];
    for (row, query) in rows.iter().zip(queries) {
        for ((sum, a), b) in sums.iter_mut().zip(row).zip(query) {
            *sum += f32::from_le_bytes(*a) * b;
        }
    }
    let rest: f32 = row_rest.iter().zip(query_rest).map(|(a, b)| f32::from_le_bytes(*a) * b).sum();
    sums.iter().sum::<f32>() + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_product_is_that_of_the_plain_sum() {
        for dimensions in [1, 3, 15, 16, 17, 100, 1024] {
            let a: Vec<f32> = (0..dimensions).map(|i| (i as f32).sin()).collect();
            let b: Vec<f32> = (0..dimensions).map(|i| (i as f32).cos()).collect();
            let plain: f32 = a.iter().zip(&b).map(|(a, b)| a * b).sum();
            assert!((dot(&to_bytes(&a), &b) - plain).abs() < 1e-3, "{dimensions}");
        }
    }

    #[test]
    fn vectors_without_a_direction_are_none() {
        assert_eq!(normalized(vec![3.0, 4.0]), Some(vec![0.6, 0.8]));
        assert!(normalized(vec![1e-30, 1e30]).is_some());
        for none in [vec![], vec![0.0, 0.0], vec![f32::NAN, 1.0], vec![f32::INFINITY], vec![1.0; MAX_DIMENSIONS + 1]] {
            assert_eq!(normalized(none), None);
        }
    }

    #[test]
    fn a_file_that_is_not_whole_is_none() {
        let mut file = MAGIC.to_vec();
        file.extend_from_slice(&1_u64.to_le_bytes());
        file.extend_from_slice(&2_u64.to_le_bytes());
        file.extend_from_slice(&1_u64.to_le_bytes());
        file.extend_from_slice(&7_u32.to_le_bytes());
        file.extend_from_slice(&to_bytes(&[0.6, 0.8]));
        let whole = SegmentVectors::parse(OwnedBytes::new(file.clone())).unwrap();
        let mut found = Vec::new();
        whole.scan(&[0.6, 0.8], |document, score| found.push((document, score)));
        whole.scan(&[1.0, 0.0, 0.0], |_, _| panic!("of other dimensions"));
        assert!(found.len() == 1 && found[0].0 == 7 && (found[0].1 - 1.0).abs() < 1e-6);
        for end in 0..file.len() {
            assert!(SegmentVectors::parse(OwnedBytes::new(file[..end].to_vec())).is_none(), "{end}");
        }
        let mut huge = file.clone();
        huge[24..32].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(SegmentVectors::parse(OwnedBytes::new(huge)).is_none());
    }
}
