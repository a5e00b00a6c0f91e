//! Reading blocks, and writing them again: a connection, and the chains that it read last.
//!
//! Everyone who reads a block comes through here. What is kept are contents that a block may continue, never an answer: the
//! block that is asked for is decompressed from what is stored now, and its checksum tells when that does not fit what is
//! kept, because the log was pruned meanwhile. Then its chain is read again.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::{Deref, DerefMut};

use domain::Position;
use engine::port::StoreFault;
use rusqlite::Connection;

use crate::block::Block;
use crate::chain::{BLOCKS_MAX, Chain, Stored};
use crate::codec;
use crate::fault::fault;
use crate::row::sql;
use crate::rows::Table;

/// How many chains are kept: that many Tasks may take turns in the log before reading it reads a chain twice.
const KEPT_MAX: usize = 16;

/// Why a block cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Damage {
    /// It is damaged; the text says how.
    Own(String),
    /// It continues a block that is not there or cannot be read.
    Before(u64),
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Damage::Own(problem) => f.write_str(problem),
            Damage::Before(number) => {
                write!(
                    f,
                    "it continues block {number}, which is damaged or missing"
                )
            }
        }
    }
}

/// A connection through which blocks are read.
#[derive(Debug)]
pub(crate) struct Blocks {
    connection: Connection,
    kept: RefCell<Kept>,
}

impl Deref for Blocks {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}

impl DerefMut for Blocks {
    fn deref_mut(&mut self) -> &mut Connection {
        &mut self.connection
    }
}

impl Blocks {
    pub(crate) fn new(connection: Connection) -> Self {
        Self {
            connection,
            kept: RefCell::default(),
        }
    }

    /// Reads a block whose stored bytes are at hand. What it continues is read in the transaction under way.
    pub(crate) fn decode(
        &self,
        table: Table,
        number: u64,
        bytes: &[u8],
    ) -> Result<Result<Block, Damage>, StoreFault> {
        let misfit = || Damage::Own("its lengths do not fit its content".to_owned());
        let read = |content: &[u8]| Block::read(Position(number), content).ok_or_else(misfit);
        if table == Table::Packs {
            let content = codec::decompress(bytes).map_err(Damage::Own);
            return Ok(content.and_then(|content| read(&content)));
        }
        let mut kept = self.kept.borrow_mut();
        let chain = match self.chain(&mut kept, number, bytes)? {
            Ok(chain) => chain,
            Err(damage) => return Ok(Err(damage)),
        };
        let block = read(chain.last_content());
        kept.put(chain);
        Ok(block)
    }

    /// Reads a block; none when there is no such block.
    pub(crate) fn read(
        &self,
        table: Table,
        number: u64,
    ) -> Result<Option<Result<Block, Damage>>, StoreFault> {
        let bytes = table.bytes(self, number)?;
        bytes
            .map(|bytes| self.decode(table, number, &bytes))
            .transpose()
    }

    /// Reads a block that must be there.
    ///
    /// # Errors
    /// It is damaged or missing; or the database fails.
    pub(crate) fn sound(&self, table: Table, number: u64) -> Result<Block, StoreFault> {
        match self.read(table, number)? {
            Some(Ok(block)) => Ok(block),
            Some(Err(damage)) => Err(damaged(number, &damage)),
            None => Err(damaged(number, &Damage::Own("it is missing".to_owned()))),
        }
    }

    /// Changes blocks in their places, and writes those again that continue one of them, in the transaction under way.
    pub(crate) fn rewrite(
        &self,
        table: Table,
        numbers: impl IntoIterator<Item = u64>,
        mut change: impl FnMut(u64, &mut Block) -> Result<(), StoreFault>,
    ) -> Result<(), StoreFault> {
        let numbers: BTreeSet<u64> = numbers.into_iter().collect();
        let mut done = BTreeSet::new();
        for number in &numbers {
            if done.contains(number) {
                continue;
            }
            let mut chain: Option<Chain> = None;
            for (number, mut block) in self.whole_chain(table, *number)? {
                if numbers.contains(&number) {
                    change(number, &mut block)?;
                }
                done.insert(number);
                let content = block.content();
                let stored = match &mut chain {
                    Some(chain) => chain.add(number, &content),
                    None => {
                        chain = Some(Chain::new(number, &content));
                        codec::compress(&content)
                    }
                };
                let stored = stored.map_err(|error| StoreFault::new(error.to_string()))?;
                table.replace(self, number, &stored).map_err(fault)?;
            }
        }
        *self.kept.borrow_mut() = Kept::default();
        Ok(())
    }

    /// Reads all blocks of the chain that a block is in, in their order.
    fn whole_chain(&self, table: Table, number: u64) -> Result<Vec<(u64, Block)>, StoreFault> {
        if table == Table::Packs {
            return Ok(vec![(number, self.sound(table, number)?)]);
        }
        let mut first = number;
        while let Some(before) = self.before(first)? {
            first = before;
        }
        let block = self.sound(table, first)?;
        let following = match block.task() {
            Some(task) => self.following(task, first)?,
            None => Vec::new(),
        };
        let mut chain = vec![(first, block)];
        let mut last = first;
        for next in following {
            if self.before(next)? == Some(last) {
                last = next;
                chain.push((next, self.sound(table, next)?));
            }
        }
        if chain.iter().any(|(known, _)| *known == number) {
            return Ok(chain);
        }
        let lost = "it is not among the blocks of its task".to_owned();
        Err(damaged(number, &Damage::Own(lost)))
    }

    /// Returns the block that a block continues.
    fn before(&self, number: u64) -> Result<Option<u64>, StoreFault> {
        let bytes = Table::Events.bytes(self, number)?.unwrap_or_default();
        Ok(match Stored::of(number, &bytes) {
            Stored::After(before, _) => Some(before),
            Stored::Alone(_) => None,
        })
    }

    /// Returns the blocks with events of a Task that may be in the chain that begins with one of them.
    fn following(&self, task: Position, first: u64) -> Result<Vec<u64>, StoreFault> {
        let read = || {
            self.prepare_cached(
                "SELECT first FROM event_links WHERE link = ?1 AND first > ?2 ORDER BY first LIMIT ?3",
            )?
            .query_map([sql(task.0), sql(first), sql(BLOCKS_MAX as u64)], |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()
        };
        read().map_err(fault)
    }

    /// Reads the chain of which a block with the given bytes is the last so far.
    fn chain(
        &self,
        kept: &mut Kept,
        number: u64,
        bytes: &[u8],
    ) -> Result<Result<Chain, Damage>, StoreFault> {
        let before = match Stored::of(number, bytes) {
            Stored::Alone(frame) => {
                let content = codec::decompress(frame).map_err(Damage::Own);
                return Ok(content.map(|content| Chain::new(number, &content)));
            }
            Stored::After(before, _) => before,
        };
        let chain = self.continued(kept, before, number, bytes)?;
        if chain.is_ok() {
            return Ok(chain);
        }
        // Whether it is damaged or what was kept is old, reading it again will tell.
        self.continued(&mut Kept::default(), before, number, bytes)
    }

    /// Reads the chain of a block that continues another, from what is kept of it on.
    fn continued(
        &self,
        kept: &mut Kept,
        mut before: u64,
        number: u64,
        bytes: &[u8],
    ) -> Result<Result<Chain, Damage>, StoreFault> {
        let mut waiting = vec![(number, bytes.to_vec())];
        let mut chain = loop {
            if let Some(chain) = kept.take(before) {
                break chain;
            }
            let bytes = Table::Events.bytes(self, before)?.unwrap_or_default();
            match Stored::of(before, &bytes) {
                Stored::Alone(frame) => match codec::decompress(frame) {
                    Ok(content) => break Chain::new(before, &content),
                    Err(_) => return Ok(Err(Damage::Before(before))),
                },
                // No chain is that long: the distances are damaged.
                Stored::After(..) if waiting.len() >= BLOCKS_MAX => {
                    return Ok(Err(Damage::Before(before)));
                }
                Stored::After(next, _) => {
                    waiting.push((before, bytes));
                    before = next;
                }
            }
        };
        while let Some((next, bytes)) = waiting.pop() {
            let Stored::After(_, frame) = Stored::of(next, &bytes) else {
                continue;
            };
            if let Err(problem) = chain.read(next, frame) {
                return Ok(Err(match next == number {
                    true => Damage::Own(problem),
                    false => Damage::Before(next),
                }));
            }
        }
        Ok(Ok(chain))
    }
}

fn damaged(number: u64, damage: &Damage) -> StoreFault {
    StoreFault::new(format!(
        "block {number} is damaged: {damage}; run `reprise log verify`"
    ))
}

/// Chains that were read, those read last at the end.
#[derive(Debug, Default)]
struct Kept {
    chains: Vec<Chain>,
    /// A block that stands alone: most are continued by none, and a chain of one is soon read again.
    alone: Option<Chain>,
}

impl Kept {
    /// Takes the chain with a block out, cut to end there.
    fn take(&mut self, number: u64) -> Option<Chain> {
        if let Some(chain) = self.alone.take_if(|chain| chain.last() == number) {
            return Some(chain);
        }
        let mut chains = self.chains.iter_mut();
        let at = chains.position(|chain| chain.cut_after(number))?;
        Some(self.chains.remove(at))
    }

    fn put(&mut self, chain: Chain) {
        if chain.len() == 1 {
            self.alone = Some(chain);
            return;
        }
        if self.chains.len() >= KEPT_MAX {
            self.chains.remove(0);
        }
        self.chains.push(chain);
    }
}
