//! Frames of new events: rendered once, delivered by every stream that wants them.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use domain::Position;
use engine::{Engine, Frame};

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
    /// Returns the text of an event in a stream; none when content must be read for it first, which
    /// [`Frames::render_with`] does.
    pub(crate) fn render(&self, frame: &Frame) -> Option<Bytes> {
        let bytes = &frame.event.bytes;
        let render = || {
            let is_whole = !wire::may_keep_beside(bytes);
            is_whole.then(|| Bytes::from(wire::frame(bytes, frame.replayed)))
        };
        // Events from before a stream opened are marked as such: theirs are not shared.
        if frame.replayed {
            return render();
        }
        // Rendered under the lock, so that readers who come together render it once.
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.get_or_render(frame.event.position, render)
    }

    /// Returns the text of an event with the content that it keeps beside itself.
    pub(crate) async fn render_with(&self, engine: &Engine, frame: &Frame) -> Bytes {
        if let Some(bytes) = self.render(frame) {
            return bytes;
        }
        let event = &frame.event;
        // A stream goes on without the content: the event says where it is.
        let content = engine.expansion(event).await.unwrap_or_else(|refused| {
            tracing::warn!(%refused, "content of an event could not be read for a stream");
            Vec::new()
        });
        let render = || {
            let text = wire::expanded_frame(&event.bytes, frame.replayed, &content);
            Some(Bytes::from(text))
        };
        let rendered = match frame.replayed {
            true => render(),
            false => {
                let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
                recent.get_or_render(event.position, render)
            }
        };
        rendered.unwrap_or_default()
    }
}

impl Recent {
    fn get_or_render(
        &mut self,
        position: Position,
        render: impl FnOnce() -> Option<Bytes>,
    ) -> Option<Bytes> {
        match self
            .frames
            .binary_search_by_key(&position, |(known, _)| *known)
        {
            Ok(place) => self
                .frames
                .get(place)
                .map_or_else(render, |(_, bytes)| Some(bytes.clone())),
            Err(place) => {
                let bytes = render()?;
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
                Some(bytes)
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
            Some(Bytes::from_static(b"frame"))
        };
        for _ in 0..1_000 {
            assert_eq!(recent.get_or_render(Position(7), render).unwrap(), "frame");
        }
        assert_eq!(rendered.get(), 1);
        recent.get_or_render(Position(8), render);
        recent.get_or_render(Position(7), render);
        assert_eq!(rendered.get(), 2);
    }

    #[test]
    fn what_is_kept_is_bounded_and_stays_in_order() {
        let mut recent = Recent::default();
        let large = || Some(Bytes::from(vec![b'x'; BYTES_MAX / 4]));
        for position in [1, 2, 3, 4, 5, 3, 1, 9, 8] {
            assert_eq!(
                recent
                    .get_or_render(Position(position), large)
                    .unwrap()
                    .len(),
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
        let whole =
            recent.get_or_render(Position(10), || Some(Bytes::from(vec![0; BYTES_MAX + 1])));
        assert_eq!(whole.unwrap().len(), BYTES_MAX + 1);
        assert_eq!(recent.frames.len(), 4);
    }
}
