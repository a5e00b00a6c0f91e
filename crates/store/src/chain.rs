//! Chains: how blocks are stored, and what the blocks of one Task have in common stored once.
//!
//! A Task writes many small commits: each piece of an answer as it streams, and then the whole answer. A block that holds
//! events of one Task alone is therefore compressed by the blocks of that Task before it, as far as the writer still
//! knows them. Its envelopes then cost some dozen bytes, and text that was streamed costs nothing when it is told again.
//!
//! ```text
//! zstd(content) with the dictionary                              a block that stands alone, and may begin a chain
//! 1, distance to the block it continues, codec::compress_after   a block that continues a chain
//! ```
//!
//! The block that is continued is the one before it in the chain, by the number of its first event. To read a block, those
//! before it are read: a chain is no longer than what a block alone may be. Of the blocks of a Task, those of a chain
//! are within [`BLOCKS_MAX`] of its first, so that whoever changes one finds those that must be written again.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use domain::Position;

use crate::block::{Block, number, put};
use crate::codec;

/// What a block begins with that continues another. No frame begins so.
const CONTINUES: u8 = 1;

/// A block with more content stands alone: it has enough in itself, and whoever reads what follows need not read it.
const BLOCK_BYTES_MAX: usize = 32 * 1024;
/// How much content a chain may have. Reading one event decompresses its chain up to there.
const CONTENT_BYTES_MAX: usize = 128 * 1024;
/// From here on a chain ends with the next block of several events: a piece of something is an event alone, and what
/// tells the whole should still find the pieces.
const CONTENT_BYTES_ENOUGH: usize = 32 * 1024;
/// How many blocks of its Task a chain may span.
pub(crate) const BLOCKS_MAX: usize = 128;

/// How many chains the writer keeps.
const KEPT_MAX: usize = 128;

/// How a block is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stored<'a> {
    /// By itself.
    Alone(&'a [u8]),
    /// After the block with a number.
    After(u64, &'a [u8]),
}

impl<'a> Stored<'a> {
    /// Reads how the block with a number is stored.
    pub(crate) fn of(number_of_block: u64, bytes: &'a [u8]) -> Self {
        let continued = bytes.split_first().and_then(|(mark, mut rest)| {
            let distance = (*mark == CONTINUES).then(|| number(&mut rest))??;
            let before = number_of_block.checked_sub(distance)?;
            (distance > 0).then_some(Stored::After(before, rest))
        });
        continued.unwrap_or(Stored::Alone(bytes))
    }
}

/// Blocks of which each but the first continues the one before it, with their content.
#[derive(Debug, Clone)]
pub(crate) struct Chain {
    /// The number of each and where its content ends.
    blocks: Vec<(u64, usize)>,
    /// A zero, and the content of each: without the zero it might begin as a dictionary does.
    content: Vec<u8>,
}

impl Chain {
    /// Begins with a block that stands alone.
    pub(crate) fn new(number: u64, content: &[u8]) -> Self {
        let content = [&[0], content].concat();
        let blocks = vec![(number, content.len())];
        Self { blocks, content }
    }

    /// Returns the stored form of content that continues the chain, and adds it.
    pub(crate) fn add(&mut self, number: u64, content: &[u8]) -> io::Result<Vec<u8>> {
        let mut stored = vec![CONTINUES];
        put(&mut stored, number.wrapping_sub(self.last()));
        stored.extend(codec::compress_after(&self.content, content)?);
        self.content.extend_from_slice(content);
        self.blocks.push((number, self.content.len()));
        Ok(stored)
    }

    /// Adds a block by its frame, or says what is wrong with it.
    pub(crate) fn read(&mut self, number: u64, frame: &[u8]) -> Result<(), String> {
        codec::decompress_after(&mut self.content, frame)?;
        self.blocks.push((number, self.content.len()));
        Ok(())
    }

    /// Returns the number of the last block.
    pub(crate) fn last(&self) -> u64 {
        self.blocks.last().map_or(0, |(number, _)| *number)
    }

    /// Returns how many blocks there are.
    pub(crate) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Returns the content of the last block.
    pub(crate) fn last_content(&self) -> &[u8] {
        let before = match self.blocks.as_slice() {
            [.., (_, end), _] => *end,
            _ => 1,
        };
        self.content.get(before..).unwrap_or_default()
    }

    /// Forgets what follows a block; false when it is not in the chain.
    pub(crate) fn cut_after(&mut self, number: u64) -> bool {
        let Ok(at) = self.blocks.binary_search_by_key(&number, |block| block.0) else {
            return false;
        };
        self.blocks.truncate(at + 1);
        self.content
            .truncate(self.blocks.last().map_or(0, |(_, end)| *end));
        true
    }
}

/// The chain of a Task that is being written.
#[derive(Debug)]
struct Growing {
    chain: Chain,
    /// How many blocks with events of the Task there are from its first on, its own and others.
    span: usize,
}

/// The chains that the writer may continue, by Task.
#[derive(Debug, Default)]
pub(crate) struct Chains {
    growing: BTreeMap<Position, Growing>,
    /// Those that the transaction under way changed.
    changed: BTreeSet<Position>,
}

impl Chains {
    /// Returns the stored form of the next block of the log.
    pub(crate) fn encode(&mut self, number: u64, block: &Block) -> io::Result<Vec<u8>> {
        let content = block.content();
        let Some(task) = block.task() else {
            self.pass(block);
            return codec::compress(&content);
        };
        if content.len() > BLOCK_BYTES_MAX {
            self.pass(block);
            return codec::compress(&content);
        }
        self.changed.insert(task);
        if let Some(growing) = self.growing.get_mut(&task)
            && growing.span < BLOCKS_MAX
            && growing.chain.content.len() + content.len() <= CONTENT_BYTES_MAX
        {
            growing.span += 1;
            let stored = growing.chain.add(number, &content)?;
            let is_enough = growing.chain.content.len() >= CONTENT_BYTES_ENOUGH;
            if is_enough && block.events.len() > 1 {
                self.growing.remove(&task);
            }
            return Ok(stored);
        }
        let chain = Chain::new(number, &content);
        self.growing.insert(task, Growing { chain, span: 1 });
        codec::compress(&content)
    }

    /// Notes that there is a block that is in no chain, whatever Tasks its events are of.
    fn pass(&mut self, block: &Block) {
        let tasks = block.events.iter().filter_map(|event| event.links.task);
        for task in tasks.collect::<BTreeSet<_>>() {
            if let Some(growing) = self.growing.get_mut(&task) {
                self.changed.insert(task);
                growing.span += 1;
            }
        }
    }

    /// Takes over what the transaction wrote, and forgets the chains that nobody continued for longest.
    pub(crate) fn commit(&mut self) {
        self.changed.clear();
        while self.growing.len() > KEPT_MAX {
            let chains = self.growing.iter();
            let oldest = chains.min_by_key(|(_, growing)| growing.chain.last());
            let Some(task) = oldest.map(|(task, _)| *task) else {
                break;
            };
            self.growing.remove(&task);
        }
    }

    /// Forgets the chains that the transaction changed: what it wrote is not there.
    pub(crate) fn roll_back(&mut self) {
        for task in std::mem::take(&mut self.changed) {
            self.growing.remove(&task);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use domain::Links;
    use engine::port::StoredEvent;

    fn block(number: u64, tasks: &[Option<u64>], len: usize) -> Block {
        let event = |(task, position): (&Option<u64>, u64)| StoredEvent {
            position: Position(position),
            links: Links {
                task: task.map(Position),
                ..Links::default()
            },
            resource: Position(1),
            bytes: vec![b'x'; len].into(),
        };
        Block {
            events: tasks.iter().zip(number..).map(event).collect(),
            blobs: vec![],
        }
    }

    /// Encodes blocks, each of this many events, and returns which block each continues.
    fn continued(blocks: &[(&[Option<u64>], usize)]) -> Vec<Option<u64>> {
        let mut chains = Chains::default();
        let mut number = 1;
        let mut continued = Vec::new();
        for (tasks, len) in blocks {
            let stored = chains.encode(number, &block(number, tasks, *len)).unwrap();
            continued.push(match Stored::of(number, &stored) {
                Stored::After(before, _) => Some(before),
                Stored::Alone(_) => None,
            });
            chains.commit();
            number += tasks.len() as u64;
        }
        continued
    }

    const A: Option<u64> = Some(1_000);
    const B: Option<u64> = Some(2_000);

    #[test]
    fn a_block_continues_the_last_of_its_task() {
        let blocks: &[(&[_], _)] = &[
            (&[A], 9),
            (&[B], 9),
            (&[A], 9),
            (&[A, A], 9),
            (&[B], 9),
            (&[A], 9),
        ];
        assert_eq!(
            continued(blocks),
            [None, None, Some(1), Some(3), Some(2), Some(4)]
        );
    }

    #[test]
    fn what_is_not_of_one_task_alone_and_what_is_large_stands_alone_and_ends_no_chain() {
        let blocks: &[(&[_], _)] = &[
            (&[A], 9),
            (&[A, B], 9),
            (&[None], 9),
            (&[A, None], 9),
            (&[A], 33_000),
            (&[A], 9),
        ];
        assert_eq!(continued(blocks), [None, None, None, None, None, Some(1)]);
    }

    #[test]
    fn a_chain_ends_with_a_whole_that_comes_after_enough_and_before_it_is_too_long() {
        // Pieces go on up to the limit; what holds several events ends it before.
        let pieces = vec![(&[A][..], 20_000); 8];
        let ends = continued(&pieces)
            .iter()
            .position(|before| before.is_none());
        assert_eq!(ends, Some(0));
        let alone = |blocks: &[(&[Option<u64>], usize)]| -> Vec<usize> {
            let continued = continued(blocks);
            let alone = continued
                .iter()
                .enumerate()
                .filter(|(_, before)| before.is_none());
            alone.map(|(at, _)| at).collect()
        };
        assert_eq!(alone(&pieces), [0, 6]);
        let mut whole = pieces;
        whole[2] = (&[A, A], 9);
        assert_eq!(alone(&whole), [0, 3]);
        let many = vec![(&[A][..], 9); 2 * BLOCKS_MAX + 1];
        assert_eq!(alone(&many), [0, BLOCKS_MAX, 2 * BLOCKS_MAX]);
        // Those of a chain are not far from its first among the blocks of the Task, its own or not.
        let mut mixed = many;
        mixed[1..BLOCKS_MAX].fill((&[A, B], 9));
        let expected: Vec<usize> = (0..=BLOCKS_MAX).chain([2 * BLOCKS_MAX]).collect();
        assert_eq!(alone(&mixed), expected);
    }

    #[test]
    fn the_writer_keeps_the_chains_that_were_continued_last() {
        let tasks: Vec<[Option<u64>; 1]> =
            (0..=KEPT_MAX as u64).map(|at| [Some(1_000 + at)]).collect();
        let mut blocks: Vec<(&[Option<u64>], usize)> =
            tasks.iter().map(|task| (&task[..], 9)).collect();
        // The first is continued before the last comes, so that the second is the oldest.
        blocks.insert(KEPT_MAX, (&tasks[0], 9));
        blocks.push((&tasks[0], 9));
        blocks.push((&tasks[1], 9));
        let continued = continued(&blocks);
        assert_eq!(continued[KEPT_MAX], Some(1));
        assert_eq!(continued[KEPT_MAX + 2..], [Some(KEPT_MAX as u64 + 1), None]);
    }
}
