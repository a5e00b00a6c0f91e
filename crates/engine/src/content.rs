//! What an event keeps beside itself: members of its payload above the inline limit, by the id of the event.
//!
//! A digest is no right to read what it is the digest of. Only what the log itself moved into a blob is read: an event of
//! a replay whose payload came with a request keeps nothing, whatever it says.

use canon::{Digest, Value, jcs};
use domain::{BLOB_MEMBER, Event, ExternalMember, Refusal, Visibility, external_members};

use crate::caller::Caller;
use crate::engine::Engine;
use crate::port::StoredEvent;
use crate::refused::Refused;

/// The most bytes of content that a frame of a stream carries in its place.
pub const EXPANDED_BYTES_MAX: u64 = 1024 * 1024;

impl Engine {
    /// True for an id of an event of this log, whether or not there is one.
    pub fn is_event_id(&self, id: &str) -> bool {
        self.shared.store.name().position(id).is_some()
    }

    /// Reads a member of an event's payload in its recorded bytes. Without a name it is the only one that is kept beside
    /// the event, else the value that it recorded.
    ///
    /// # Errors
    /// There is no such event or member, or it is hidden; the content is gone; the caller may not read it; the store
    /// failed.
    pub async fn event_content(
        &self,
        caller: &Caller,
        id: &str,
        member: Option<&str>,
    ) -> Result<Vec<u8>, Refused> {
        caller.require("artifacts:read")?;
        caller.require("events:read")?;
        let unknown = |param| {
            Refused::Domain(Refusal::NotFound {
                object: "artifact",
                param,
            })
        };
        let stored = match self.visible_event(caller, id, None).await {
            Err(Refused::Domain(Refusal::NotFound { .. })) => return Err(unknown(None)),
            other => other?,
        };
        let event = Event::parse(&stored.bytes).map_err(|error| Refused::Internal {
            detail: error.to_string(),
        })?;
        if event.is_header() {
            return Err(Refused::ContentUnavailable { reason: "pruned" });
        }
        match event.visibility() {
            Visibility::Public => {}
            Visibility::Internal => caller.require("internal:read")?,
            Visibility::ReceiptOnly => {
                return Err(Refused::ContentUnavailable {
                    reason: "receipt_only",
                });
            }
        }
        let kept = externalized_members(&event);
        let name = match (member, kept.as_slice()) {
            (Some(member), _) => member,
            (None, [only]) => only.member,
            (None, []) => "value",
            (None, [..]) => {
                let names: Vec<&str> = kept.iter().map(|kept| kept.member).collect();
                return Err(Refused::Domain(Refusal::Invalid {
                    param: "member",
                    message: format!("`member` must be one of {}", names.join(", ")),
                }));
            }
        };
        if let Some(kept) = kept.iter().find(|kept| kept.member == name) {
            return self.whole_blob(kept.digest).await;
        }
        match event.payload.get(name) {
            Some(value) if name != BLOB_MEMBER => Ok(jcs(value)),
            _ => Err(unknown(member.map(|_| "member"))),
        }
    }

    async fn whole_blob(&self, digest: Digest) -> Result<Vec<u8>, Refused> {
        match self.shared.store.blob_as_stored(digest).await? {
            Some(bytes) if canon::sha256(&bytes) == digest => Ok(bytes),
            Some(_) => Err(Refused::ContentUnavailable { reason: "damaged" }),
            None => Err(Refused::ContentUnavailable { reason: "missing" }),
        }
    }

    /// Reads what a public event keeps beside itself, by member, as far as a frame carries it. What cannot be read stays a
    /// descriptor.
    ///
    /// # Errors
    /// The store failed.
    pub async fn expansion(&self, stored: &StoredEvent) -> Result<Vec<(String, Value)>, Refused> {
        let Ok(event) = Event::parse(&stored.bytes) else {
            return Ok(Vec::new());
        };
        if event.visibility() != Visibility::Public {
            return Ok(Vec::new());
        }
        let mut room = EXPANDED_BYTES_MAX;
        let mut found = Vec::new();
        for ExternalMember {
            member,
            digest,
            bytes,
        } in externalized_members(&event)
        {
            let Some(left) = bytes.and_then(|bytes| room.checked_sub(bytes)) else {
                continue;
            };
            let Some(blob) = self.shared.store.blob_as_stored(digest).await? else {
                continue;
            };
            if canon::sha256(&blob) != digest || blob.len() as u64 > room {
                continue;
            }
            if let Ok(value) = serde_json::from_slice(&blob) {
                room = left;
                found.push((member.to_owned(), value));
            }
        }
        Ok(found)
    }
}

/// Returns the members that the log moved out of an event's payload.
fn externalized_members(event: &Event) -> Vec<ExternalMember<'_>> {
    match event.is_substituted() {
        true => Vec::new(),
        false => external_members(&event.payload).collect(),
    }
}
