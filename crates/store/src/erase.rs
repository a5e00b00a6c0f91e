//! Taking small blobs out of their blocks, so that nothing of them is left. The others keep their numbers.

use std::collections::BTreeMap;

use canon::Digest;
use rusqlite::Connection;

use crate::prune::inside;
use crate::table::Table;

/// How many blobs are taken out in one transaction.
pub(crate) const AT_ONCE: usize = 256;

/// What was taken out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RemovedContent {
    /// How many blobs.
    pub(crate) blobs: u64,
    /// How many bytes they had.
    pub(crate) bytes: u64,
}

/// Takes blobs out, in the transaction under way. Those that are not there, or are files, are left alone.
pub(crate) fn erase_blobs(
    connection: &Connection,
    digests: &[Digest],
) -> rusqlite::Result<RemovedContent> {
    let mut taken = RemovedContent::default();
    let mut in_events: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    let mut in_packs = in_events.clone();
    for digest in digests {
        let row = connection
            .prepare_cached("DELETE FROM blobs WHERE digest = ?1 RETURNING pack, block, number")?
            .query_map([digest.as_bytes()], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?))
            })?
            .next()
            .transpose()?;
        if let Some((in_pack, block, number)) = row {
            let places = if in_pack {
                &mut in_packs
            } else {
                &mut in_events
            };
            places.entry(block).or_default().push(number);
        }
    }
    for (table, places) in [(Table::Events, in_events), (Table::Packs, in_packs)] {
        for (number, places) in places {
            let changed = table.change(connection, number, |block| {
                for place in places {
                    if let Some(content) = block.blobs.get_mut(place) {
                        taken.blobs += 1;
                        taken.bytes += content.len() as u64;
                        *content = Vec::new();
                    }
                }
                Ok(())
            });
            changed.map_err(inside)?;
        }
    }
    Ok(taken)
}
