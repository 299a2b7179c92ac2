//! Streams of events.

use agent_host_protocol::sse::{EventReader, EventTooLarge};

type Events = Vec<(Vec<u8>, Vec<u8>)>;

fn read(pieces: &[&[u8]], max_bytes: usize) -> Result<Events, EventTooLarge> {
    let (mut reader, mut events) = (EventReader::new(max_bytes), Vec::new());
    for piece in pieces {
        reader.push(piece, |event| {
            assert!(event.data.len() <= max_bytes, "an event is larger than the bound");
            events.push((event.id.to_vec(), event.data.to_vec()));
            Ok::<_, EventTooLarge>(())
        })?;
    }
    Ok(events)
}

/// Server-sent events: the places at which a stream is cut do not change what is read.
pub(crate) fn event_stream(data: &[u8]) {
    let [cut, max, stream @ ..] = data else { return };
    let max_bytes = usize::from(*max) * 16;
    let whole = read(&[stream], max_bytes);
    let pieces: Vec<_> = stream.chunks(usize::from(*cut) + 1).collect();
    assert_eq!(read(&pieces, max_bytes).ok(), whole.as_ref().ok().cloned(), "cut into pieces, the stream reads otherwise");
    if let Ok(events) = whole {
        assert!(
            events.iter().map(|(_, data)| data.len()).sum::<usize>() <= stream.len(),
            "events have more bytes than the stream"
        );
    }
}
