//! API keys: from the `Authorization` header to a caller (AP-AUTH).
//!
//! The store holds digests. A found key is remembered for half a second, so that a revoked one is refused within a
//! second and a busy client does not ask the store each time. Unknown keys are not remembered: nobody can fill the
//! memory with them. Streams outlive the look at their key, so keys with open streams are looked at again and again.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::http::{HeaderMap, header};
use canon::Digest;
use engine::port::{ApiKey, Clock as _, Store};
use engine::{Caller, Refused};
use subtle::ConstantTimeEq;
use tokio::sync::watch;
use tokio::time::Instant;
use wire::Code;

use crate::failure::Failure;
use crate::world::SystemClock;

const REMEMBERED_FOR: Duration = Duration::from_millis(500);
const REMEMBERED_MAX: usize = 1_024;

/// How often the keys of open streams are looked at.
const STREAMS_CHECKED_EVERY: Duration = Duration::from_millis(400);

/// Names the key that a request came with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Credential(Digest);

#[cfg(test)]
impl Credential {
    pub(crate) fn of(text: &str) -> Self {
        Self(canon::sha256(text.as_bytes()))
    }
}

/// Keys seen a moment ago, by digest.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    seen: Mutex<BTreeMap<Digest, (Instant, Arc<Caller>)>>,
    /// Keys with open streams; true once the key is no longer valid.
    streaming: Mutex<BTreeMap<Credential, watch::Sender<bool>>>,
}

impl Keys {
    /// Finds out who calls.
    pub(crate) async fn caller(
        &self,
        store: &dyn Store,
        headers: &HeaderMap,
    ) -> Result<(Arc<Caller>, Credential), Failure> {
        let refuse = || {
            Failure::new(
                Code::Unauthenticated,
                "this needs a valid API key as a bearer token",
            )
        };
        let key = presented(headers).ok_or_else(refuse)?;
        let digest = canon::sha256(key.as_bytes());
        if let Some(caller) = self.remembered(digest) {
            return Ok((caller, Credential(digest)));
        }
        let found = store.api_key(digest).await.map_err(Refused::from)?;
        let found = found.filter(|known| is_of(known, digest));
        let found = found.ok_or_else(refuse)?;
        if found.revoked_at.is_none() && found.is_expired(SystemClock.now()) {
            let expired = "this API key has expired";
            let refused = Failure::new(Code::Unauthenticated, expired);
            return Err(refused.with("reason", "key_expired".into()));
        }
        if !is_valid(&found, digest) {
            return Err(refuse());
        }
        let caller = Arc::new(Caller::from_key(&found));
        self.remember(digest, Arc::clone(&caller));
        Ok((caller, Credential(digest)))
    }

    /// Returns what becomes true when a key is no longer valid.
    pub(crate) fn watch(&self, credential: Credential) -> watch::Receiver<bool> {
        let mut streaming = self
            .streaming
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let sender = streaming
            .entry(credential)
            .or_insert_with(|| watch::channel(false).0);
        sender.subscribe()
    }

    /// Looks at the keys of open streams from time to time and tells those whose key is no longer valid.
    pub(crate) async fn keep_watch(&self, store: &dyn Store) -> Infallible {
        loop {
            tokio::time::sleep(STREAMS_CHECKED_EVERY).await;
            let watched: Vec<Credential> = {
                let mut streaming = self
                    .streaming
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                streaming.retain(|_, sender| sender.receiver_count() > 0);
                streaming.keys().copied().collect()
            };
            for Credential(digest) in watched {
                // A store that cannot answer says nothing about the key; the stream will notice the store itself.
                let Ok(found) = store.api_key(digest).await else {
                    continue;
                };
                if found.is_some_and(|known| is_valid(&known, digest)) {
                    continue;
                }
                let mut streaming = self
                    .streaming
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                if let Some(sender) = streaming.remove(&Credential(digest)) {
                    sender.send_replace(true);
                }
            }
        }
    }

    fn remembered(&self, digest: Digest) -> Option<Arc<Caller>> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, caller) = seen.get(&digest)?;
        (since.elapsed() < REMEMBERED_FOR).then(|| Arc::clone(caller))
    }

    fn remember(&self, digest: Digest, caller: Arc<Caller>) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.len() >= REMEMBERED_MAX {
            seen.retain(|_, (since, _)| since.elapsed() < REMEMBERED_FOR);
        }
        if seen.len() < REMEMBERED_MAX {
            seen.insert(digest, (Instant::now(), caller));
        }
    }
}

/// True for the key of a digest. The store looks up by digest; comparing again costs nothing and does not lean on how it
/// compares.
fn is_of(key: &ApiKey, digest: Digest) -> bool {
    bool::from(key.digest.as_bytes().ct_eq(digest.as_bytes()))
}

/// True for the key of a digest, as long as nobody revoked it and it has not ended.
fn is_valid(key: &ApiKey, digest: Digest) -> bool {
    is_of(key, digest) && key.revoked_at.is_none() && !key.is_expired(SystemClock.now())
}

/// Returns the bearer token of a request, when it has exactly one.
pub(crate) fn presented(headers: &HeaderMap) -> Option<&str> {
    let mut lines = headers.get_all(header::AUTHORIZATION).iter();
    let line = lines.next()?.to_str().ok()?;
    if lines.next().is_some() {
        return None;
    }
    let (scheme, token) = line.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ap_auth_01_only_one_bearer_token_counts() {
        let check = |lines: &[&str], expect: Option<&str>| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(header::AUTHORIZATION, line.parse().unwrap());
            }
            assert_eq!(presented(&headers), expect, "{lines:?}");
        };
        check(&["Bearer k"], Some("k"));
        check(&["bearer  k "], Some("k"));
        check(&["Basic k"], None);
        check(&["Bearer"], None);
        check(&["Bearer "], None);
        check(&["Bearer a", "Bearer b"], None);
        check(&[], None);
    }
}
