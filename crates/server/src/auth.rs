//! API keys: from the `Authorization` header to a caller (AP-AUTH).
//!
//! The store holds digests. A found key is remembered for half a second, so that a revoked one is refused within a
//! second and a busy client does not ask the store each time. Unknown keys are not remembered: nobody can fill the
//! memory with them.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::http::{HeaderMap, header};
use canon::Digest;
use engine::port::Store;
use engine::{Caller, Refused};
use subtle::ConstantTimeEq;
use tokio::time::Instant;
use wire::Code;

use crate::failure::Failure;

const REMEMBERED_FOR: Duration = Duration::from_millis(500);
const REMEMBERED_MAX: usize = 1_024;

/// Keys seen a moment ago, by digest.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    seen: Mutex<BTreeMap<Digest, (Instant, Caller)>>,
}

impl Keys {
    /// Finds out who calls.
    pub(crate) async fn caller(
        &self,
        store: &dyn Store,
        headers: &HeaderMap,
    ) -> Result<Caller, Failure> {
        let refuse = || {
            Failure::new(
                Code::Unauthenticated,
                "this needs a valid API key as a bearer token",
            )
        };
        let key = presented(headers).ok_or_else(refuse)?;
        let digest = canon::sha256(key.as_bytes());
        if let Some(caller) = self.remembered(digest) {
            return Ok(caller);
        }
        let found = store.api_key(digest).await.map_err(Refused::from)?;
        // The store looks up by digest; comparing again costs nothing and does not lean on how it compares.
        let found = found.filter(|known| {
            known.revoked_at.is_none()
                && bool::from(known.digest.as_bytes().ct_eq(digest.as_bytes()))
        });
        let caller = Caller::from_key(&found.ok_or_else(refuse)?);
        self.remember(digest, caller.clone());
        Ok(caller)
    }

    fn remembered(&self, digest: Digest) -> Option<Caller> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, caller) = seen.get(&digest)?;
        (since.elapsed() < REMEMBERED_FOR).then(|| caller.clone())
    }

    fn remember(&self, digest: Digest, caller: Caller) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.len() >= REMEMBERED_MAX {
            seen.retain(|_, (since, _)| since.elapsed() < REMEMBERED_FOR);
        }
        if seen.len() < REMEMBERED_MAX {
            seen.insert(digest, (Instant::now(), caller));
        }
    }
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
