//! API keys: each change is an event, in the same commit as the table that authenticates.
//!
//! Beside dispatch and the turn, because nobody asks for it over a transport and there need not be an engine: the operator
//! changes keys of a server that is not running. The store checks the version, as of any commit.

use domain::{KeyChange, Refusal, Scratch, State, Timestamp, change_key, seal};

use crate::engine::Engine;
use crate::port::{ApiKey, Commit, CommitError, ExpectedVersion, SealedTurn, Store, StoredEvent};
use crate::refused::Refused;

/// How often a change is tried again when somebody else changed the same key.
const TRIES: u32 = 3;

/// Stores a key as it is after a change, and logs the change. A key that was made before keys had events is written down
/// first. Works on a store that this process holds, with or without an engine on it.
///
/// # Errors
/// The store failed, or the key is already there.
pub async fn change_api_key(
    store: &dyn Store,
    key: ApiKey,
    actor: &str,
    now: Timestamp,
) -> Result<(), Refused> {
    let mut tries = 1;
    loop {
        match try_change(store, &key, actor, now).await? {
            Ok(()) => return Ok(()),
            Err(CommitError::Conflict) if tries < TRIES => tries += 1,
            Err(error) => {
                return Err(Refused::Internal {
                    detail: error.to_string(),
                });
            }
        }
    }
}

async fn try_change(
    store: &dyn Store,
    key: &ApiKey,
    actor: &str,
    now: Timestamp,
) -> Result<Result<(), CommitError>, Refused> {
    let known = store.document(&key.id).await?;
    let stored = store.api_keys().await?;
    let stored = stored.into_iter().find(|stored| stored.id == key.id);
    let before = match (&known, &stored) {
        (None, Some(stored)) => Some(stored.recorded()),
        _ => None,
    };
    let revokes = key.revoked_at.is_some();
    if before.is_some() && !revokes && store.keys_are_recorded().await? {
        let id = &key.id;
        return Err(unrecorded(format!(
            "no event created key `{id}`: it can only be revoked"
        )));
    }
    // What others changed meanwhile stays: rights only grow, and nothing brings a revoked key back.
    let key = &match &stored {
        Some(stored) => after(stored, key),
        None => key.clone(),
    };
    let mut changes: Vec<KeyChange> = before.map(KeyChange::Record).into_iter().collect();
    match &stored {
        None => changes.push(KeyChange::Create(key.recorded())),
        Some(stored) => {
            if stored.scopes != key.scopes {
                changes.push(KeyChange::Grant(key.scopes.clone()));
            }
            if let Some(revoked_at) = key.revoked_at.filter(|_| stored.revoked_at.is_none()) {
                changes.push(KeyChange::Revoke(revoked_at));
            }
        }
    }
    let draft = |change| change_key(&key.id, actor, change);
    let drafts: Vec<_> = changes.into_iter().map(draft).collect();
    let log = store.name().clone();
    let key = key.clone();
    let expected = ExpectedVersion {
        id: key.id.as_str().into(),
        version: known.as_ref().map_or(0, |known| known.version),
    };
    let commit = Commit {
        expected: vec![expected],
        fences: Vec::new(),
        holder: "keys".into(),
        blobs: Vec::new(),
        event_count: drafts.len() as u64,
        now,
        seal: Box::new(move |first| {
            let mut scratch = Scratch::default();
            known.into_iter().for_each(|known| scratch.insert(known));
            let events = seal(&log, &mut scratch, &drafts, first, now)?;
            Ok(SealedTurn {
                events: events.into_iter().map(StoredEvent::from).collect(),
                documents: scratch.iter_shared().cloned().collect(),
                api_keys: vec![key],
                ..SealedTurn::default()
            })
        }),
    };
    Ok(store.commit(commit).await.map(drop))
}

/// Records the keys that were made before keys had events, once: afterwards every key is what events say of it, and one that
/// they do not know was made by somebody who wrote into the database.
///
/// # Errors
/// The store failed; or a key is not what events say of it, with its id.
pub async fn settle_api_keys(store: &dyn Store, now: Timestamp) -> Result<(), Refused> {
    let keys = store.api_keys().await?;
    let ids: Vec<Box<str>> = keys.iter().map(|key| key.id.as_str().into()).collect();
    let known = store.documents(ids).await?;
    let are_recorded = store.keys_are_recorded().await?;
    for (key, known) in keys.into_iter().zip(known) {
        let id = key.id.clone();
        match known.map(|known| known.state) {
            Some(State::Key(known)) if known == key.recorded() => {}
            None if !are_recorded => change_api_key(store, key, "system", now).await?,
            _ => {
                return Err(unrecorded(format!(
                    "API key `{id}` does not match its events"
                )));
            }
        }
    }
    match are_recorded {
        true => Ok(()),
        false => Ok(store.note_keys_recorded().await?),
    }
}

fn unrecorded(message: String) -> Refused {
    Refused::Domain(Refusal::Conflict {
        reason: "key_unrecorded",
        message,
        status: None,
    })
}

/// Returns a stored key after a change that was made to an earlier state of it.
fn after(stored: &ApiKey, changed: &ApiKey) -> ApiKey {
    let mut key = stored.clone();
    for scope in &changed.scopes {
        if !key.scopes.contains(scope) {
            key.scopes.push(scope.clone());
        }
    }
    key.revoked_at = stored.revoked_at.or(changed.revoked_at);
    key
}

impl Engine {
    /// Stores a key as it is after a change, and logs the change.
    ///
    /// # Errors
    /// As [`change_api_key`].
    pub async fn change_api_key(&self, key: ApiKey, actor: &str) -> Result<(), Refused> {
        let shared = &self.shared;
        change_api_key(&*shared.store, key, actor, shared.clock.now()).await
    }

    /// Returns every key.
    ///
    /// # Errors
    /// The store failed.
    pub async fn api_keys(&self) -> Result<Vec<ApiKey>, Refused> {
        Ok(self.shared.store.api_keys().await?)
    }
}
