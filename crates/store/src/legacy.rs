//! Reading the blocks of formats 2 and 3, for migration alone.
//!
//! A block was cut into several rows where pages ended: the id of a row is the block's number, then 16 bits for its place in
//! the block. In format 3 a block could continue an earlier one of its Task:
//!
//! ```text
//! zstd(content) with the dictionary                              a block that stands alone
//! 1, distance to the block it continues, checksum, zstd frame    a block that continues one
//! ```
//!
//! Such a frame was compressed by a zero and the contents of all blocks before it in its chain, and a checksum of the
//! content stood in the place of the four bytes that begin every frame.

use std::collections::BTreeMap;

use canon::sha256;
use domain::Position;
use engine::port::StoreFault;
use rusqlite::Connection;
use zstd::zstd_safe::{DCtx, get_error_name, get_frame_content_size};

use crate::block::{Block, Shape, number};
use crate::codec;
use crate::fault::fault;
use crate::table::Table;

const PART_BITS: u32 = 16;
const CONTINUES: u8 = 1;
/// More than a block could hold that continued another.
const CONTENT_BYTES_MAX: u64 = 1024 * 1024;
/// No chain had more blocks than this.
const BLOCKS_MAX: usize = 128;
/// How many contents are kept while a log is read in its order.
const KEPT_MAX: usize = 128;
const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Calls for each block, ascending: its number, its stored bytes, and what they say or what is wrong with them.
pub(crate) fn each<E: From<StoreFault>>(
    connection: &Connection,
    table: Table,
    mut found: impl FnMut(u64, &[u8], Result<Block, String>) -> Result<(), E>,
) -> Result<(), E> {
    let text = match table {
        Table::Events => "SELECT id, bytes FROM events ORDER BY id",
        Table::Packs => "SELECT id, bytes FROM packs ORDER BY id",
    };
    let mut chains = Chains::default();
    let mut decode = |number: u64, bytes: &[u8]| -> Result<Result<Block, String>, StoreFault> {
        let content = match table {
            Table::Packs => {
                let content = codec::decompress(bytes);
                return Ok(content.and_then(|content| block(number, &content)));
            }
            Table::Events => chains.content(connection, number, bytes)?,
        };
        Ok(content.and_then(|content| block(number, content)))
    };
    let mut select = connection.prepare(text).map_err(fault)?;
    let mut rows = select.query([]).map_err(fault)?;
    let mut under_way: Option<(u64, Vec<u8>)> = None;
    while let Some(row) = rows.next().map_err(fault)? {
        let id: i64 = row.get(0).map_err(fault)?;
        let number = u64::try_from(id >> PART_BITS).unwrap_or(0);
        let part: Vec<u8> = row.get(1).map_err(fault)?;
        match &mut under_way {
            Some((known, bytes)) if *known == number => bytes.extend(part),
            _ => {
                if let Some((number, bytes)) = under_way.replace((number, part)) {
                    found(number, &bytes, decode(number, &bytes)?)?;
                }
            }
        }
    }
    match under_way {
        Some((number, bytes)) => found(number, &bytes, decode(number, &bytes)?),
        None => Ok(()),
    }
}

fn block(number: u64, content: &[u8]) -> Result<Block, String> {
    Block::read(Position(number), content, Shape::Before4)
        .ok_or_else(|| "its lengths do not fit its content".to_owned())
}

/// Contents of chains that were read, by the number of the last block: where its content begins, and a zero with the
/// contents of all blocks up to it.
#[derive(Debug, Default)]
struct Chains {
    kept: BTreeMap<u64, (usize, Vec<u8>)>,
}

impl Chains {
    /// Returns the content of a block. What it continues was mostly read just before; if not, it is read again.
    fn content(
        &mut self,
        connection: &Connection,
        number: u64,
        bytes: &[u8],
    ) -> Result<Result<&[u8], String>, StoreFault> {
        let mut waiting = Vec::new();
        let (mut next, mut stored) = (number, bytes.to_vec());
        let mut chain = loop {
            let Some((before, frame)) = continued(next, &stored) else {
                match codec::decompress(&stored) {
                    Ok(content) => break (1, [&[0], &content[..]].concat()),
                    Err(problem) => return Ok(Err(blame(number, next, problem))),
                }
            };
            waiting.push((next, frame.to_vec()));
            if waiting.len() > BLOCKS_MAX {
                return Ok(Err("it continues too many blocks".to_owned()));
            }
            if let Some(chain) = self.kept.remove(&before) {
                break chain;
            }
            (next, stored) = (before, stored_bytes(connection, before)?);
        };
        for (next, frame) in waiting.into_iter().rev() {
            chain.0 = chain.1.len();
            if let Err(problem) = decompress_after(&mut chain.1, &frame) {
                return Ok(Err(blame(number, next, problem)));
            }
        }
        self.kept.insert(number, chain);
        if self.kept.len() > KEPT_MAX {
            self.kept.pop_first();
        }
        let content = self.kept.get(&number);
        let content = content.and_then(|(begins, all)| all.get(*begins..));
        Ok(Ok(content.unwrap_or_default()))
    }
}

fn blame(number: u64, damaged: u64, problem: String) -> String {
    match number == damaged {
        true => problem,
        false => format!("it continues block {damaged}, which is damaged or missing"),
    }
}

fn stored_bytes(connection: &Connection, number: u64) -> Result<Vec<u8>, StoreFault> {
    let first = i64::try_from(number).unwrap_or(0) << PART_BITS;
    let read = || {
        let text = "SELECT bytes FROM events WHERE id >= ?1 AND id < ?2 ORDER BY id";
        let mut select = connection.prepare_cached(text)?;
        let rows = select.query_map([first, first + (1 << PART_BITS)], |row| row.get(0))?;
        let parts: Vec<Vec<u8>> = rows.collect::<rusqlite::Result<_>>()?;
        Ok(parts.concat())
    };
    read().map_err(fault)
}

/// Returns the block that a block continues, and its frame.
fn continued(number_of_block: u64, bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (mark, mut rest) = bytes.split_first()?;
    let distance = (*mark == CONTINUES).then(|| number(&mut rest))??;
    let before = number_of_block.checked_sub(distance)?;
    (distance > 0).then_some((before, rest))
}

/// Adds the content of a frame to what came before it, or says what is wrong.
fn decompress_after(before: &mut Vec<u8>, frame: &[u8]) -> Result<(), String> {
    let Some((sum, rest)) = frame.split_first_chunk() else {
        return Err("it is cut short".to_owned());
    };
    let frame = [&MAGIC, rest].concat();
    let len = match get_frame_content_size(&frame) {
        Ok(Some(len @ ..=CONTENT_BYTES_MAX)) => len as usize,
        _ => return Err("it does not say how long it is".to_owned()),
    };
    let known = before.len();
    before.resize(known + len, 0);
    let (old, new) = before.split_at_mut(known);
    let mut context = DCtx::try_create().ok_or("out of memory")?;
    match context.decompress_using_dict(new, &frame, old) {
        Ok(read) if read == len && fits(new, *sum) => Ok(()),
        Ok(_) => Err("its checksum does not match".to_owned()),
        Err(problem) => Err(get_error_name(problem).to_owned()),
    }
}

/// The first programs of format 3 wrote four bytes of the digest for a checksum, later ones a sum that is quicker.
fn fits(content: &[u8], sum: [u8; 4]) -> bool {
    checksum(content) == sum || sha256(content).as_bytes().starts_with(&sum)
}

fn checksum(content: &[u8]) -> [u8; 4] {
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
    let add = |sum: u64, word: u64| {
        let sum = (sum ^ word).wrapping_mul(FACTOR);
        sum ^ (sum >> 32)
    };
    let (words, rest) = content.as_chunks();
    let sum = words.iter().fold(content.len() as u64, |sum, word| {
        add(sum, u64::from_le_bytes(*word))
    });
    let sum = rest
        .iter()
        .fold(sum, |sum, byte| add(sum, u64::from(*byte)));
    (sum as u32).to_le_bytes()
}
