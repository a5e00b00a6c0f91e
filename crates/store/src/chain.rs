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

    /// Notes that there is a block with events of several Tasks.
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
