//! API keys: what changes of them leave behind.

use domain::Timestamp;
use engine::change_api_key;
use engine::port::{ApiKey, KeyStore};

use crate::support::store;

/// Two changes that were made to the same earlier state: both hold, and a revocation holds whatever comes after it.
#[tokio::test]
async fn nothing_brings_a_revoked_key_back_and_no_grant_is_lost() {
    let store = store();
    let now = Timestamp::from_micros(1);
    let digest = canon::sha256(b"text");
    let key = ApiKey::new("key_1", digest, "ann", ["tasks:read"], now);
    let with = |scope: &str| ApiKey {
        scopes: vec!["tasks:read".to_owned(), scope.to_owned()],
        ..key.clone()
    };
    let revoked = ApiKey {
        revoked_at: Some(now),
        ..key.clone()
    };
    for change in [key.clone(), with("a"), revoked, with("b")] {
        change_api_key(&*store, change, "admin", now).await.unwrap();
    }
    let stored = store.api_keys().await.unwrap();
    assert_eq!(stored.len(), 1);
    assert_eq!(stored[0].revoked_at, Some(now));
    assert_eq!(stored[0].scopes, ["tasks:read", "a", "b"]);
}
