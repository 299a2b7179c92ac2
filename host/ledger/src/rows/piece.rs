//! Pieces of a row: bytes behind their length (u32, big-endian).

/// Appends a piece.
pub(crate) fn put_piece(bytes: &mut Vec<u8>, piece: &[u8]) {
    put_piece_with(bytes, |bytes| bytes.extend_from_slice(piece));
}

/// Appends a piece that `write` appends in place. An operation is bounded, so its length fits.
pub(crate) fn put_piece_with(bytes: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let start = bytes.len();
    bytes.extend_from_slice(&[0; 4]);
    write(bytes);
    let len = u32::try_from(bytes.len() - start - 4).unwrap_or(u32::MAX);
    if let Some(place) = bytes.get_mut(start..start + 4) {
        place.copy_from_slice(&len.to_be_bytes());
    }
}

/// Takes a piece off the front; gives the bytes behind it as well.
pub(crate) fn take_piece(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(usize::try_from(u32::from_be_bytes(*len)).ok()?)
}
