//! Memory fields: what was decided on the memory becomes events, if the field is still as it was then.

use super::{Decider, Place};
use crate::{COUNTED_APART, FieldRoom, Kind, Refusal, ResourceRef, WriteField};

pub(super) fn write(decider: &mut Decider<'_>, order: &WriteField) -> Result<ResourceRef, Refusal> {
    decider.workspace(&order.workspace_id)?;
    let id = order.id();
    let known = decider.documents.document(id.as_str());
    if known.map_or(0, |document| document.version) != order.version {
        return Err(Refusal::Stale);
    }
    let place = Place {
        workspace_id: Some(order.workspace_id.clone()),
        ..Place::default()
    };
    for (number, entry) in order.entries.iter().enumerate() {
        let mut members = entry.members.clone();
        members.remove("field");
        members.remove(COUNTED_APART);
        if number == 0 && known.is_none() {
            members.insert("field".to_owned(), order.name.as_str().into());
        }
        // How much lies beside the entry: what a Workspace stores is counted by what its events say.
        let beside: u64 = entry.blobs.iter().map(|blob| blob.bytes.len() as u64).sum();
        if beside > 0 {
            members.insert("content_bytes".to_owned(), beside.into());
        }
        if order.room == FieldRoom::Apart {
            members.insert(COUNTED_APART.to_owned(), true.into());
        }
        decider.blobs.extend(entry.blobs.iter().cloned());
        decider.draft_open(Kind::FieldEntry, members, id.resource(), &place);
    }
    Ok(id.resource())
}
