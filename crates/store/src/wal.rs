//! Is the write-ahead log whole? SQLite reads it up to the first frame that does not check and forgets the rest.
//!
//! That is right for the tail that a crash tore: its commit was never acknowledged. It is wrong for a bit that decayed
//! in the middle, because everything behind it was acknowledged. The two differ: a commit is synced before the next one
//! is written, so a bad frame with a later transaction behind it is damage. Read here before SQLite opens the database,
//! and never changed.
//!
//! The format is that of <https://sqlite.org/fileformat2.html#walformat>: a header of 32 bytes, then frames of 24 bytes
//! and a page. Each frame carries the salts of the header and a checksum that continues that of the frame before it.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};

use crate::directory::database;
use crate::schema::PAGE_BYTES;

const HEADER_BYTES: usize = 32;
const FRAME_HEADER_BYTES: usize = 24;
const PAGE: usize = PAGE_BYTES as usize;
const FRAME_BYTES: usize = FRAME_HEADER_BYTES + PAGE;

/// Little-endian checksums; the lowest bit says big-endian.
const MAGIC: u32 = 0x377f_0682;

/// What identifies one life of the log file: new ones are drawn whenever it starts over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Salts(pub(crate) u64);

/// What the log file holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wal {
    /// No file, or an empty one.
    None,
    /// Frames up to the last whole commit; what follows, if anything, was never acknowledged as far as the file tells.
    Whole {
        /// Of the header; none when the header itself is torn.
        salts: Option<Salts>,
        /// How many frames are committed.
        frames: u64,
    },
    /// A frame that does not check, with a later transaction behind it.
    Damaged {
        /// The salts of what is behind it.
        salts: Salts,
        /// How many frames are committed before it.
        frames: u64,
        /// How many frames the file has room for behind those.
        behind: u64,
    },
}

/// Returns the place of the write-ahead log.
pub(crate) fn path(directory: &Path) -> PathBuf {
    let mut name = database(directory).into_os_string();
    name.push("-wal");
    name.into()
}

/// Returns the place of the index of it that SQLite keeps.
pub(crate) fn index_path(directory: &Path) -> PathBuf {
    let mut name = database(directory).into_os_string();
    name.push("-shm");
    name.into()
}

/// Reads the salts that new frames carry; none while there is no header.
pub(crate) fn salts(file: &mut File) -> io::Result<Option<Salts>> {
    let mut header = [0; HEADER_BYTES];
    file.rewind()?;
    match file.read_exact(&mut header) {
        Ok(()) => Ok(Some(Salts(long(&header, 16)))),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads the write-ahead log of a directory in which nobody works. Takes one pass over the file, a frame at a time.
pub(crate) fn read(directory: &Path) -> io::Result<Wal> {
    let mut file = match File::open(path(directory)) {
        Ok(file) => Frames {
            len: file.metadata()?.len(),
            file: io::BufReader::with_capacity(64 * FRAME_BYTES, file),
            frame: Box::new([0; FRAME_BYTES]),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Wal::None),
        Err(error) => return Err(error),
    };
    if file.len == 0 {
        return Ok(Wal::None);
    }
    let header = file.header()?;
    let mut committed = 0;
    let mut next = 0;
    if let Some(Header { salts, order, sums }) = header {
        let mut sums = sums;
        while file.load(next)?
            && file.salts() == salts
            && file.sums_after(order, sums) == file.sums()
        {
            sums = file.sums();
            next += 1;
            if file.is_commit() {
                committed = next;
            }
        }
    }
    let orders = match &header {
        Some(header) => vec![header.order],
        // What wrote it is unknown.
        None => vec![Order::Little, Order::Big],
    };
    // Behind the first frame that does not check: a commit, and the first frame of the transaction after it.
    let mut bad = next;
    while file.load(bad)? {
        let (sums, salts, is_commit) = (file.sums(), file.salts(), file.is_commit());
        bad += 1;
        if !is_commit || !file.load(bad)? {
            continue;
        }
        let behind = file.salts();
        let is_of_this_log = header.as_ref().map_or(salts, |header| header.salts) == behind;
        let continues = |order: &Order| file.sums_after(*order, sums) == file.sums();
        if is_of_this_log && orders.iter().any(continues) {
            return Ok(Wal::Damaged {
                salts: behind,
                frames: committed,
                behind: file.count() - committed,
            });
        }
    }
    Ok(Wal::Whole {
        salts: header.map(|header| header.salts),
        frames: committed,
    })
}

/// The order of bytes in which checksums take their words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Little,
    Big,
}

type Sums = (u32, u32);

struct Header {
    salts: Salts,
    order: Order,
    sums: Sums,
}

/// The file, and the frame that was read last.
struct Frames {
    file: io::BufReader<File>,
    len: u64,
    frame: Box<[u8; FRAME_BYTES]>,
}

impl Frames {
    fn count(&self) -> u64 {
        self.len.saturating_sub(HEADER_BYTES as u64) / FRAME_BYTES as u64
    }

    /// Reads the header; none when it does not check.
    fn header(&mut self) -> io::Result<Option<Header>> {
        let mut bytes = [0; HEADER_BYTES];
        if self.len < HEADER_BYTES as u64 {
            return Ok(None);
        }
        self.file.read_exact(&mut bytes)?;
        let order = match word(&bytes, 0) {
            MAGIC => Order::Little,
            magic if magic == MAGIC + 1 => Order::Big,
            _ => return Ok(None),
        };
        let (checked, _) = bytes.split_at(24);
        let sums = add(order, (0, 0), checked);
        if sums != (word(&bytes, 24), word(&bytes, 28)) || word(&bytes, 8) != PAGE_BYTES {
            return Ok(None);
        }
        Ok(Some(Header {
            salts: Salts(long(&bytes, 16)),
            order,
            sums,
        }))
    }

    /// Reads a frame, by its number from 0; false behind the last whole one.
    fn load(&mut self, number: u64) -> io::Result<bool> {
        if number >= self.count() {
            return Ok(false);
        }
        let place = HEADER_BYTES as u64 + number * FRAME_BYTES as u64;
        // Keeps what is buffered when it goes on behind the frame before.
        let here = self.file.stream_position()?;
        let distance = i64::try_from(place).unwrap_or(i64::MAX) - i64::try_from(here).unwrap_or(0);
        self.file.seek_relative(distance)?;
        self.file.read_exact(&mut *self.frame)?;
        Ok(true)
    }

    fn is_commit(&self) -> bool {
        word(&*self.frame, 4) != 0
    }

    fn salts(&self) -> Salts {
        Salts(long(&*self.frame, 8))
    }

    fn sums(&self) -> Sums {
        (word(&*self.frame, 16), word(&*self.frame, 20))
    }

    /// What its checksum must be when it follows a frame with this one.
    fn sums_after(&self, order: Order, before: Sums) -> Sums {
        let (head, page) = self.frame.split_at(FRAME_HEADER_BYTES);
        let (head, _) = head.split_at(8);
        add(order, add(order, before, head), page)
    }
}

/// Continues a checksum over bytes whose number is a multiple of eight.
fn add(order: Order, sums: Sums, bytes: &[u8]) -> Sums {
    let word = |bytes: [u8; 4]| match order {
        Order::Little => u32::from_le_bytes(bytes),
        Order::Big => u32::from_be_bytes(bytes),
    };
    let (words, _) = bytes.as_chunks::<4>();
    let (pairs, _) = words.as_chunks::<2>();
    pairs.iter().fold(sums, |(one, other), [first, second]| {
        let one = one.wrapping_add(word(*first)).wrapping_add(other);
        let other = other.wrapping_add(word(*second)).wrapping_add(one);
        (one, other)
    })
}

/// Numbers in headers are big-endian.
fn word(bytes: &[u8], at: usize) -> u32 {
    let bytes = bytes.get(at..).and_then(|rest| rest.first_chunk());
    bytes.copied().map_or(0, u32::from_be_bytes)
}

fn long(bytes: &[u8], at: usize) -> u64 {
    let bytes = bytes.get(at..).and_then(|rest| rest.first_chunk());
    bytes.copied().map_or(0, u64::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;
    use rusqlite::config::DbConfig;

    use super::*;

    /// Makes a log of some commits that a process left behind; returns its bytes.
    fn left_behind(directory: &Path, commits: u32) -> Vec<u8> {
        let connection = Connection::open(database(directory)).unwrap();
        connection
            .pragma_update(None, "page_size", PAGE_BYTES)
            .unwrap();
        connection
            .pragma_update(None, "journal_mode", "WAL")
            .unwrap();
        connection
            .set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)
            .unwrap();
        connection
            .execute_batch("CREATE TABLE t(a INTEGER PRIMARY KEY, b BLOB)")
            .unwrap();
        for _ in 0..commits {
            connection
                .execute("INSERT INTO t(b) VALUES (randomblob(9000))", [])
                .unwrap();
        }
        drop(connection);
        std::fs::read(path(directory)).unwrap()
    }

    fn read_bytes(directory: &Path, bytes: &[u8]) -> Wal {
        std::fs::write(path(directory), bytes).unwrap();
        read(directory).unwrap()
    }

    #[test]
    fn a_log_as_sqlite_left_it_is_whole_and_a_torn_tail_is_not_damage() {
        let home = tempfile::tempdir().unwrap();
        assert_eq!(read(home.path()).unwrap(), Wal::None);
        let bytes = left_behind(home.path(), 10);
        let frames = ((bytes.len() - HEADER_BYTES) / FRAME_BYTES) as u64;
        let Wal::Whole {
            salts: Some(salts),
            frames: found,
        } = read(home.path()).unwrap()
        else {
            panic!("not whole");
        };
        assert_eq!(found, frames);
        assert_eq!(
            super::salts(&mut File::open(path(home.path())).unwrap()).unwrap(),
            Some(salts)
        );
        // Cut anywhere in the last transaction, which is of at least three frames: one commit less.
        for cut in [1, FRAME_BYTES, FRAME_BYTES + 100, 2 * FRAME_BYTES] {
            let torn = &bytes[..bytes.len() - cut];
            let Wal::Whole {
                salts: Some(_),
                frames: left,
            } = read_bytes(home.path(), torn)
            else {
                panic!("{cut}");
            };
            assert!(
                left < frames && left + 5 > frames,
                "{cut}: {left} of {frames}"
            );
        }
        // A page of the last transaction that never reached the disk.
        let mut torn = bytes.clone();
        torn[bytes.len() - 3 * FRAME_BYTES..][..FRAME_BYTES].fill(0);
        assert!(matches!(read_bytes(home.path(), &torn), Wal::Whole { .. }));
        // Frames of an earlier life behind the end are nothing.
        let mut longer = bytes.clone();
        let mut old = bytes[HEADER_BYTES..].to_vec();
        for frame in old.chunks_exact_mut(FRAME_BYTES) {
            frame[8] ^= 1;
        }
        longer.extend(old);
        assert_eq!(
            read_bytes(home.path(), &longer),
            read_bytes(home.path(), &bytes)
        );
    }

    #[test]
    fn a_changed_bit_before_the_last_transaction_is_damage() {
        let home = tempfile::tempdir().unwrap();
        let bytes = left_behind(home.path(), 10);
        let tail = 5 * FRAME_BYTES;
        let mut random = 7_usize;
        for _ in 0..300 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let bit = (random >> 16) % ((bytes.len() - tail) * 8);
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let found = read_bytes(home.path(), &flipped);
            assert!(matches!(found, Wal::Damaged { .. }), "bit {bit}: {found:?}");
        }
        // A whole sector that is gone.
        let mut zeroed = bytes.clone();
        zeroed[HEADER_BYTES + 3 * FRAME_BYTES..][..FRAME_BYTES * 2].fill(0);
        assert!(matches!(
            read_bytes(home.path(), &zeroed),
            Wal::Damaged { .. }
        ));
        let mut headless = bytes;
        headless[..512].fill(0);
        assert!(matches!(
            read_bytes(home.path(), &headless),
            Wal::Damaged { .. }
        ));
    }
}
