//! The first keys of a data directory, so that a fresh server can be used at once: one that does everything but approve,
//! and one that approves. One person can work with both, and the log still tells who decided.
//!
//! The text is durable in its file before the store knows the digest. A crash between the two leaves a file whose
//! key does not work yet; the next start completes it. Nothing here ever replaces a file.

use std::io;
use std::path::{Path, PathBuf};

use engine::APPROVE;
use engine::port::{ApiKey, Store};
use files::write_durably;

use super::{digest, new_id, new_text, now};
use crate::exit::{OrHint, Problem};

/// The file in the data directory that holds the first key.
pub(crate) const KEY_FILE: &str = "api-key";

/// The file in the data directory that holds the key of the first approver.
pub(crate) const APPROVER_KEY_FILE: &str = "approver-key";

/// What the first approver may do besides approving: see what it decides on, and answer questions.
const APPROVER_SCOPES: [&str; 7] = [
    APPROVE,
    "tasks:read",
    "tasks:write",
    "sessions:read",
    "events:read",
    "artifacts:read",
    "receipts:read",
];

/// What became of the first key.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FirstKey {
    /// It was made now, and is in this file.
    Made(PathBuf),
    /// It was there.
    There,
}

/// Makes the first key when the directory has none, and an approver's when nobody may approve yet.
///
/// # Errors
/// The disk fails, or a file holds something that is not a key.
pub(crate) async fn ensure_first_keys(
    directory: &Path,
    store: &dyn Store,
) -> anyhow::Result<FirstKey> {
    let disk = "check that the disk has room and lets this user write";
    let keys = store.api_keys();
    let keys = keys.await.or_hint("the keys cannot be read", disk)?;
    let everything = ["*".to_owned()];
    let first = ensure(
        directory,
        store,
        (KEY_FILE, "admin"),
        &everything,
        keys.is_empty(),
    )
    .await?;
    let nobody_approves = !keys
        .iter()
        .any(|key| key.scopes.iter().any(|scope| scope == APPROVE));
    let scopes = APPROVER_SCOPES.map(str::to_owned);
    let names = (APPROVER_KEY_FILE, "approver");
    ensure(directory, store, names, &scopes, nobody_approves).await?;
    Ok(first)
}

/// Makes a key with its file, or completes what an interrupted start left of it.
async fn ensure(
    directory: &Path,
    store: &dyn Store,
    (name, actor): (&str, &str),
    scopes: &[String],
    is_missing: bool,
) -> anyhow::Result<FirstKey> {
    let file = directory.join(name);
    let disk = "check that the disk has room and lets this user write";
    let text = match std::fs::read_to_string(&file) {
        Ok(text) => text.trim().to_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if !is_missing {
                return Ok(FirstKey::There);
            }
            let text = new_text()?;
            write_durably(directory, name, format!("{text}\n").as_bytes())
                .or_hint(format_args!("`{}`", file.display()), disk)?;
            text
        }
        Err(error) => return Err(error).or_hint(format_args!("`{}`", file.display()), disk),
    };
    if !text.starts_with("rpk_") || text.len() < 36 || text.chars().any(char::is_whitespace) {
        return Err(Problem::new(
            format!("`{}` does not hold a key", file.display()),
            "remove the file; `reprise key create` creates a new key",
        )
        .into());
    }
    let known = store.api_key(digest(&text)).await;
    if known.or_hint("the keys cannot be read", disk)?.is_some() {
        return Ok(FirstKey::There);
    }
    let key = ApiKey::new(new_id()?, digest(&text), actor, scopes, now());
    let stored = engine::change_api_key(store, key, "system", now()).await;
    stored.or_hint("a first key was not stored", disk)?;
    Ok(FirstKey::Made(file))
}

#[cfg(test)]
mod tests {
    use engine::port::{KeyStore, MemoryStore};

    use super::*;

    fn store() -> MemoryStore {
        MemoryStore::new("testlogs", [7; 32])
    }

    async fn start(home: &Path, store: &MemoryStore) -> FirstKey {
        ensure_first_keys(home, store).await.unwrap()
    }

    #[tokio::test]
    async fn a_crash_between_file_and_digest_is_completed_by_the_next_start() {
        let home = tempfile::tempdir().unwrap();
        let store = store();
        // What a crash after the file leaves.
        let text = new_text().unwrap();
        write_durably(home.path(), KEY_FILE, text.as_bytes()).unwrap();
        assert!(matches!(
            start(home.path(), &store).await,
            FirstKey::Made(_)
        ));
        assert_eq!(
            std::fs::read_to_string(home.path().join(KEY_FILE)).unwrap(),
            text
        );
        assert!(store.api_key(digest(&text)).await.unwrap().is_some());
        assert_eq!(start(home.path(), &store).await, FirstKey::There);
        assert_eq!(store.api_keys().await.unwrap().len(), 2);
    }

    #[tokio::test]
    async fn a_crash_before_the_file_leaves_nothing_that_counts() {
        let home = tempfile::tempdir().unwrap();
        let store = store();
        std::fs::write(home.path().join("api-key.tmp"), "rpk_ha").unwrap();
        assert!(matches!(
            start(home.path(), &store).await,
            FirstKey::Made(_)
        ));
        assert_eq!(store.api_keys().await.unwrap().len(), 2);
        assert!(!home.path().join("api-key.tmp").exists());
    }

    #[tokio::test]
    async fn a_directory_with_keys_and_without_the_file_gets_no_other_key() {
        let home = tempfile::tempdir().unwrap();
        let store = store();
        start(home.path(), &store).await;
        std::fs::remove_file(home.path().join(KEY_FILE)).unwrap();
        assert_eq!(start(home.path(), &store).await, FirstKey::There);
        assert!(!home.path().join(KEY_FILE).exists());
    }

    #[tokio::test]
    async fn a_revoked_first_key_stays_revoked() {
        let home = tempfile::tempdir().unwrap();
        let store = store();
        start(home.path(), &store).await;
        let key = store.api_keys().await.unwrap().remove(0);
        let revoked = ApiKey {
            revoked_at: Some(now()),
            ..key
        };
        store.put_api_key(revoked.clone()).await.unwrap();
        assert_eq!(start(home.path(), &store).await, FirstKey::There);
        assert_eq!(store.api_keys().await.unwrap().first(), Some(&revoked));
        assert_eq!(store.api_keys().await.unwrap().len(), 2);
    }

    #[tokio::test]
    async fn u21_a_directory_of_before_gets_an_approver_and_its_keys_stay_as_they_were() {
        let home = tempfile::tempdir().unwrap();
        let store = store();
        let before = ApiKey::new("key_old", digest("rpk_old"), "admin", ["*"], now());
        store.put_api_key(before.clone()).await.unwrap();
        for _ in 0..2 {
            assert_eq!(start(home.path(), &store).await, FirstKey::There);
            let keys = store.api_keys().await.unwrap();
            assert_eq!(keys.len(), 2);
            assert!(keys.contains(&before));
            let approver = keys.iter().find(|key| key.actor == "approver").unwrap();
            assert!(approver.scopes.iter().any(|scope| scope == APPROVE));
        }
        assert!(home.path().join(APPROVER_KEY_FILE).exists());
        assert!(!home.path().join(KEY_FILE).exists());
    }

    #[tokio::test]
    async fn a_file_that_holds_no_key_is_left_alone() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join(KEY_FILE), "hello\n").unwrap();
        let error = ensure_first_keys(home.path(), &store()).await.unwrap_err();
        assert!(error.to_string().contains("does not hold a key"), "{error}");
        assert_eq!(
            std::fs::read_to_string(home.path().join(KEY_FILE)).unwrap(),
            "hello\n"
        );
    }
}
