//! A block: consecutive events and small blobs of their commits, compressed together.
//!
//! What a commit writes repeats itself: envelopes differ in little, and an answer stands in the effect that gave it and
//! in the message that shows it. Together they cost little more than what is new. A commit writes blocks of its own; small
//! ones are merged later ([`crate::merge`]). A block can be written again in its own place with some of its content gone. It is
//! stored as one frame.
//!
//! ```text
//! events, blobs, per event: length, resource, workspace, session, task, further links, each; per blob: length; bytes …
//! ```
//!
//! Numbers are of seven bits a byte, lowest first. A resource is its distance from the event's position; a link is
//! one more than that, or zero for none. Up to format 3 there were no further links, and no number of them.

use std::collections::BTreeSet;
use std::sync::Arc;

use domain::{Links, Position};
use engine::port::StoredEvent;

use crate::codec;

/// How much content shares a block. Reading one event decompresses its block.
const CONTENT_BYTES_MAX: usize = 64 * 1024;

/// Consecutive events, with blobs of their commits.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Block {
    /// The events, ascending without a hole.
    pub(crate) events: Vec<StoredEvent>,
    /// The blobs, in the order of their numbers.
    pub(crate) blobs: Vec<Vec<u8>>,
}

impl Block {
    /// Divides what a commit writes into blocks: events first, blobs where there is room.
    pub(crate) fn divide(events: &[StoredEvent], blobs: Vec<Vec<u8>>) -> Vec<Self> {
        let mut blocks: Vec<Self> = Vec::new();
        let mut room = 0;
        let mut next = |len: usize, blocks: &mut Vec<Self>| {
            if room < len || blocks.is_empty() {
                blocks.push(Self::default());
                room = CONTENT_BYTES_MAX;
            }
            room = room.saturating_sub(len);
        };
        for event in events {
            next(event.bytes.len(), &mut blocks);
            if let Some(block) = blocks.last_mut() {
                block.events.push(event.clone());
            }
        }
        for blob in blobs {
            next(blob.len(), &mut blocks);
            if let Some(block) = blocks.last_mut() {
                block.blobs.push(blob);
            }
        }
        blocks
    }

    /// Returns what its events belong to, each once.
    pub(crate) fn links(&self) -> BTreeSet<Position> {
        let events = self.events.iter();
        events.flat_map(|event| event.links.keys()).collect()
    }

    /// Returns the content.
    pub(crate) fn content(&self) -> Vec<u8> {
        let bytes: usize = self.events.iter().map(|event| event.bytes.len()).sum();
        let blobs: usize = self.blobs.iter().map(Vec::len).sum();
        let mut content = Vec::with_capacity(16 + 16 * self.events.len() + bytes + blobs);
        put(&mut content, self.events.len() as u64);
        put(&mut content, self.blobs.len() as u64);
        for event in &self.events {
            let distance = |to: Position| event.position.0.wrapping_sub(to.0);
            let link = |to: Option<Position>| to.map_or(0, |to| distance(to).wrapping_add(1));
            put(&mut content, event.bytes.len() as u64);
            put(&mut content, distance(event.resource));
            put(&mut content, link(event.links.workspace));
            put(&mut content, link(event.links.session));
            put(&mut content, link(event.links.task));
            put(&mut content, event.links.further.len() as u64);
            for further in &event.links.further {
                put(&mut content, link(Some(*further)));
            }
        }
        for blob in &self.blobs {
            put(&mut content, blob.len() as u64);
        }
        for event in &self.events {
            content.extend_from_slice(&event.bytes);
        }
        for blob in &self.blobs {
            content.extend_from_slice(blob);
        }
        content
    }

    /// Reads the stored bytes of the block whose first event has a position, or says what is wrong with them.
    pub(crate) fn decode(first: Position, stored: &[u8]) -> Result<Self, String> {
        let content = codec::decompress(stored)?;
        Self::read(first, &content, Shape::Now)
            .ok_or_else(|| "its lengths do not fit its content".to_owned())
    }

    /// Reads the content of the block whose first event has a position; none when its lengths do not fit.
    pub(crate) fn read(first: Position, content: &[u8], shape: Shape) -> Option<Self> {
        let mut rest = content;
        let events = number(&mut rest)?;
        let blobs = number(&mut rest)?;
        let mut heads = Vec::new();
        for position in (first.0..).take(usize::try_from(events).ok()?) {
            let len = number(&mut rest)?;
            let resource = Position(position.wrapping_sub(number(&mut rest)?));
            let mut link = || {
                let distance = number(&mut rest)?;
                let to = position.wrapping_sub(distance.wrapping_sub(1));
                Some((distance > 0).then_some(Position(to)))
            };
            let mut links = Links {
                workspace: link()?,
                session: link()?,
                task: link()?,
                further: Box::default(),
            };
            if shape == Shape::Now {
                let mut further = Vec::new();
                for _ in 0..number(&mut rest)? {
                    let distance = number(&mut rest)?.checked_sub(1)?;
                    further.push(Position(position.wrapping_sub(distance)));
                }
                links.further = further.into();
            }
            heads.push((Position(position), resource, links, len));
        }
        let mut lens = Vec::new();
        for _ in 0..blobs {
            lens.push(number(&mut rest)?);
        }
        let mut block = Self::default();
        for (position, resource, links, len) in heads {
            let bytes: Arc<[u8]> = take(&mut rest, len)?.into();
            block.events.push(StoredEvent {
                position,
                links,
                resource,
                bytes,
            });
        }
        for len in lens {
            block.blobs.push(take(&mut rest, len)?.to_vec());
        }
        rest.is_empty().then_some(block)
    }
}

/// How the content of a block is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// As this program writes it.
    Now,
    /// As formats 2 and 3 did.
    Before4,
}

fn take<'a>(rest: &mut &'a [u8], len: u64) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(usize::try_from(len).ok()?)?;
    *rest = left;
    Some(taken)
}

pub(crate) fn put(content: &mut Vec<u8>, mut number: u64) {
    while number > 0x7f {
        content.push(0x80 | (number & 0x7f) as u8);
        number >>= 7;
    }
    content.push(number as u8);
}

pub(crate) fn number(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let (byte, left) = rest.split_first()?;
        *rest = left;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type AnyLinks = ([Option<u64>; 3], Vec<u64>);

    fn event(position: u64, resource: u64, links: &AnyLinks, bytes: &[u8]) -> StoredEvent {
        let [workspace, session, task] = links.0.map(|link| link.map(Position));
        StoredEvent {
            position: Position(position),
            resource: Position(resource),
            links: Links {
                workspace,
                session,
                task,
                further: links.1.iter().copied().map(Position).collect(),
            },
            bytes: bytes.into(),
        }
    }

    proptest! {
        #[test]
        fn blocks_come_back(
            first in 1..u64::MAX / 2,
            events in proptest::collection::vec(
                (any::<u64>(), any::<AnyLinks>(), proptest::collection::vec(any::<u8>(), 0..200)),
                0..20,
            ),
            blobs in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..200), 0..5),
        ) {
            let events = events.iter().zip(first..);
            let events = events.map(|((resource, links, bytes), at)| event(at, *resource, links, bytes));
            // A link to 2^64 - 1 from position 0 cannot be told from none; there is no such position.
            let block = Block { events: events.collect(), blobs };
            prop_assume!(block.events.iter().all(|event| {
                event.links.keys().all(|link| event.position.0.wrapping_sub(link.0) != u64::MAX)
            }));
            let stored = codec::compress(&block.content()).unwrap();
            prop_assert_eq!(Block::decode(Position(first), &stored).unwrap(), block);
        }

        #[test]
        fn content_that_is_no_block_is_refused(content in proptest::collection::vec(any::<u8>(), 0..60)) {
            // Whatever it makes of it, it does not panic or take more than there is.
            let _ = Block::read(Position(1), &content, Shape::Now);
            let _ = Block::read(Position(1), &content, Shape::Before4);
        }
    }

    #[test]
    fn a_commit_is_divided_by_size_and_every_item_is_in_one_block() {
        let big = vec![7; 40 * 1024];
        let events: Vec<StoredEvent> = (1..=3)
            .map(|at| event(at, at, &Default::default(), &big))
            .collect();
        let huge = vec![8; CONTENT_BYTES_MAX * 2];
        let blocks = Block::divide(&events, vec![vec![1; 10], huge.clone(), vec![2; 10]]);
        let shape: Vec<_> = blocks
            .iter()
            .map(|block| (block.events.len(), block.blobs.len()))
            .collect();
        assert_eq!(shape, [(1, 0), (1, 0), (1, 1), (0, 1), (0, 1)]);
        assert!(Block::divide(&[], vec![]).is_empty());
    }
}
