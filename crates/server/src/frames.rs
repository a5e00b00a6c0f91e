//! Frames of new events: rendered once, delivered by every stream that wants them.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use domain::Position;
use engine::Frame;

/// How many bytes of rendered frames are kept. A reader that is further behind renders for itself.
const BYTES_MAX: usize = 1024 * 1024;

/// The newest live frames, in the order of their events.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    recent: Mutex<Recent>,
}

#[derive(Debug, Default)]
struct Recent {
    frames: VecDeque<(Position, Bytes)>,
    bytes: usize,
}

impl Frames {
    /// Returns the text of an event in a stream.
    pub(crate) fn render(&self, frame: &Frame) -> Bytes {
        let render = || Bytes::from(wire::frame(&frame.event.bytes, frame.replayed));
        // Events from before a stream opened are marked as such: theirs are not shared.
        if frame.replayed {
            return render();
        }
        // Rendered under the lock, so that readers who come together render it once.
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.get_or_render(frame.event.position, render)
    }
}

impl Recent {
    fn get_or_render(&mut self, position: Position, render: impl FnOnce() -> Bytes) -> Bytes {
        match self
            .frames
            .binary_search_by_key(&position, |(known, _)| *known)
        {
            Ok(place) => self
                .frames
                .get(place)
                .map_or_else(render, |(_, bytes)| bytes.clone()),
            Err(place) => {
                let bytes = render();
                // Only the newest are kept in order; whoever asks for an older one is alone with it.
                if place == self.frames.len() && bytes.len() <= BYTES_MAX {
                    self.bytes += bytes.len();
                    self.frames.push_back((position, bytes.clone()));
                    while self.bytes > BYTES_MAX
                        && let Some((_, oldest)) = self.frames.pop_front()
                    {
                        self.bytes -= oldest.len();
                    }
                }
                bytes
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_frame_is_rendered_once_however_many_readers_ask() {
        let mut recent = Recent::default();
        let rendered = Cell::new(0);
        let render = || {
            rendered.set(rendered.get() + 1);
            Bytes::from_static(b"frame")
        };
        for _ in 0..1_000 {
            assert_eq!(recent.get_or_render(Position(7), render), "frame");
        }
        assert_eq!(rendered.get(), 1);
        recent.get_or_render(Position(8), render);
        recent.get_or_render(Position(7), render);
        assert_eq!(rendered.get(), 2);
    }

    #[test]
    fn what_is_kept_is_bounded_and_stays_in_order() {
        let mut recent = Recent::default();
        let large = || Bytes::from(vec![b'x'; BYTES_MAX / 4]);
        for position in [1, 2, 3, 4, 5, 3, 1, 9, 8] {
            assert_eq!(
                recent.get_or_render(Position(position), large).len(),
                BYTES_MAX / 4
            );
            assert!(recent.bytes <= BYTES_MAX);
        }
        let kept: Vec<u64> = recent
            .frames
            .iter()
            .map(|(position, _)| position.0)
            .collect();
        assert_eq!(kept, [3, 4, 5, 9]);
        let whole = recent.get_or_render(Position(10), || Bytes::from(vec![0; BYTES_MAX + 1]));
        assert_eq!(whole.len(), BYTES_MAX + 1);
        assert_eq!(recent.frames.len(), 4);
    }
}
