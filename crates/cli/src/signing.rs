//! The keys that sign receipts, in one file of the data directory.
//!
//! Made and synced before the first receipt can be signed. A key that was ever in use stays in the file, because its
//! public half must stay published; its seed goes when another key takes over. Seeds leave this module only inside a signer.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use canon::Digest;
use domain::BatchId;
use engine::Authority;
use engine::port::{Clock as _, Ids as _, Store, TreeStore as _};
use receipts::merkle::Frontier;
use receipts::note::{KeyUse, Note, NoteKey};
use receipts::{KeyRetirement, KeySet, PublicKey, Signer};
use serde::{Deserialize, Serialize};
use serde_json::json;
use server::world::{RandomIds, SystemClock};
use store::SqliteStore;

use crate::exit::{OrHint, Problem};

/// The file in the data directory.
pub(crate) const FILE: &str = "signing-keys.json";

const FORMAT: &str = "reprise-signing-keys";
/// The longest name of a log.
const ORIGIN_BYTES_MAX: usize = 200;
/// Since 2 a key that was rotated out has no seed, and says where it ended.
const VERSION: u32 = 2;
const RESTORE: &str = "restore it from a backup; receipts are signed with it. To continue with a new key instead, \
    move the file away, run `reprise receipt rotate-key --lost`, and keep the old public keys for those who verify old receipts";

/// The file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    format: String,
    version: u32,
    /// The id of the issuer in receipts.
    issuer: String,
    /// Its name in receipts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// The first line of checkpoints, which names this log.
    origin: String,
    /// The key in use.
    active: String,
    /// Every key that was ever in use, oldest first.
    keys: Vec<Key>,
    /// The statement of a rotation that the log does not hold yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    unlogged: Option<serde_json::Value>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Key {
    key_id: String,
    /// The secret half; a key that was rotated out has none any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    seed: Option<String>,
    /// The public half of a key without its secret one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    public: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nbf: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    exp: Option<i64>,
    /// Where the log stood at its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    retired: Option<End>,
    /// Since when it is not trusted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    revoked_at: Option<i64>,
}

#[derive(Serialize, Deserialize, Clone)]
#[serde(deny_unknown_fields)]
struct End {
    size: u64,
    root: Digest,
    /// The log's name then; none in files from before names could change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    origin: Option<String>,
}

/// What a rotation did.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Rotated {
    /// The key that signed until now.
    pub(crate) old: String,
    /// The key that signs from now on.
    pub(crate) new: String,
}

/// Reads the keys of a data directory, or makes the first one; `log` names the log.
///
/// # Errors
/// The file cannot be read, written or understood, or the clock stands before the active key's time.
pub(crate) fn authority(directory: &Path, log: &str) -> anyhow::Result<Authority> {
    authority_of(directory, log, None)
}

/// The same for a log whose name the operator chose: it is given to a new log, and must be that of an old one. Whether a log
/// that names keys has the file, [`agree_with_log`] checks before.
///
/// # Errors
/// As [`authority`]; the name cannot be one, or it is not the log's.
pub(crate) fn authority_of(
    directory: &Path,
    log: &str,
    origin: Option<&str>,
) -> anyhow::Result<Authority> {
    if let Some(origin) = origin {
        check_origin(origin)?;
    }
    let keys = match read(directory)? {
        Some(keys) => {
            if let Some(wanted) = origin.filter(|wanted| *wanted != keys.origin) {
                return Err(Problem::new(
                    format!(
                        "the setting `origin` is `{wanted}`, and this log is called `{}`",
                        keys.origin
                    ),
                    format!(
                        "whoever kept a head knows it by that name: set it back, or stop the server and run \
                         `reprise receipt rotate-key --origin {wanted}`, which logs the change"
                    ),
                )
                .into());
            }
            keys
        }
        None => {
            let keys = first_keys(log, origin)?;
            write(directory, &keys)?;
            keys
        }
    };
    let file = path(directory);
    let active = keys.keys.iter().find(|key| key.key_id == keys.active);
    let Some(active) = active else {
        return Err(broken(&file, "its active key is not among its keys"));
    };
    if active.nbf.is_some_and(|first| now_seconds() < first) {
        return Err(Problem::new(
            format!(
                "the clock is set before signing key `{}` becomes valid",
                active.key_id
            ),
            "set the clock; receipts signed before a key's time do not verify",
        )
        .into());
    }
    let signer = Signer::new(active.key_id.as_str(), &seed(&file, active)?);
    Ok(Authority {
        id: keys.issuer.clone(),
        name: keys.name.clone(),
        signer: Arc::new(signer),
        keys: public(&file, &keys)?,
        origin: keys.origin.clone(),
    })
}

/// Makes the first key of a log. It is valid since ever: a clock that steps back behind the first start must not make
/// receipts invalid.
fn first_keys(log: &str, origin: Option<&str>) -> anyhow::Result<Keys> {
    let key = new_key(None)?;
    let issuer = format!("reprise-{log}");
    Ok(Keys {
        format: FORMAT.to_owned(),
        version: VERSION,
        origin: origin.map_or_else(|| format!("{issuer}/receipts"), str::to_owned),
        issuer,
        name: None,
        active: key.key_id.clone(),
        unlogged: None,
        keys: vec![key],
    })
}

/// Goes on with a new key in a log whose file with the keys is lost. The next head says so. The caller holds the data
/// directory. Returns the id of the key.
///
/// # Errors
/// The file is there; it or the log cannot be written.
pub(crate) fn replace_lost(
    directory: &Path,
    store: &SqliteStore,
    origin: Option<&str>,
) -> anyhow::Result<String> {
    if let Some(origin) = origin {
        check_origin(origin)?;
    }
    let file = path(directory);
    if file.exists() {
        return Err(Problem::new(
            format!("`{}` exists", file.display()),
            "`reprise receipt rotate-key` without `--lost` makes a new key that the old one vouches for; a file that \
             cannot be used is moved away first",
        )
        .into());
    }
    let mut keys = first_keys(store.name().log(), origin)?;
    let new = keys.active.clone();
    keys.unlogged = Some(
        json!({"new_key_id": new, "reason": "the file with the keys before it was not there"}),
    );
    write(directory, &keys)?;
    crate::wait(log_rotation(directory, store))?;
    Ok(new)
}

/// Checks that a text can name a log: it stands in signed notes, whose words end at a blank or a plus.
fn check_origin(origin: &str) -> anyhow::Result<()> {
    let is_long = origin.len() > ORIGIN_BYTES_MAX;
    if is_long || NoteKey::new(origin, KeyUse::Note, [0; 32]).is_err() {
        return Err(Problem::new(
            format!("`{}` cannot name a log", crate::output::shorten(origin, 80)),
            "an origin has no blanks and no `+`; take a name that you own, such as log.example.com/receipts",
        )
        .into());
    }
    Ok(())
}

/// Returns the public keys of a data directory; none before the first start.
///
/// # Errors
/// The file cannot be read or understood.
pub(crate) fn public_keys(directory: &Path) -> anyhow::Result<Option<KeySet>> {
    let keys = read(directory)?;
    keys.map(|keys| public(&path(directory), &keys)).transpose()
}

/// False when this user may not read the keys, whatever they are.
pub(crate) fn is_readable(directory: &Path) -> bool {
    let opened = std::fs::File::open(path(directory));
    opened.map_or_else(
        |error| error.kind() != io::ErrorKind::PermissionDenied,
        |_| true,
    )
}

/// Returns what signs the manifest of an export; none before the first start.
///
/// # Errors
/// The file cannot be read or understood.
pub(crate) fn sealer(
    directory: &Path,
) -> anyhow::Result<Option<impl Fn(&[u8]) -> io::Result<String>>> {
    let Some(keys) = read(directory)? else {
        return Ok(None);
    };
    let file = path(directory);
    let active = keys.keys.iter().find(|key| key.key_id == keys.active);
    let Some(active) = active else {
        return Err(broken(&file, "its active key is not among its keys"));
    };
    let signer = Signer::new(active.key_id.as_str(), &seed(&file, active)?);
    let origin = keys.origin;
    Ok(Some(move |manifest: &[u8]| {
        receipts::export::seal(manifest, &origin, &signer).map_err(io::Error::other)
    }))
}

/// Makes a new key, and ends the active one where the log stands. The caller holds the data directory: a running server
/// would go on with the old key.
///
/// The new key and the statement that both keys signed are written in one step, and the old seed goes with it. Then the
/// statement is logged; a start after a crash in between logs it.
///
/// # Errors
/// There is no file, or it cannot be read, understood or written; the log cannot be read.
pub(crate) fn rotate(directory: &Path, store: &SqliteStore) -> anyhow::Result<Rotated> {
    rotate_to(directory, store, None)
}

/// The same, and gives the log another name from there on. The statement names both.
///
/// # Errors
/// As [`rotate`]; or the name cannot be one.
pub(crate) fn rotate_to(
    directory: &Path,
    store: &SqliteStore,
    origin: Option<&str>,
) -> anyhow::Result<Rotated> {
    if let Some(origin) = origin {
        check_origin(origin)?;
    }
    let renamed = origin;
    let file = path(directory);
    let Some(mut keys) = read(directory)? else {
        return Err(Problem::new(
            format!("`{}` does not exist", file.display()),
            "the first start of `reprise serve` creates the first key",
        )
        .into());
    };
    crate::wait(log_rotation(directory, store))?;
    crate::wait(agree_with_log(directory, store))?;
    keys.unlogged = None;
    let tree = crate::wait(async {
        let tree = store.tree().await;
        tree.or_hint("the receipt log cannot be read", "run `reprise log verify`")
    })?;
    let frontier = Frontier::from_parts(tree.size, tree.peaks);
    let Some(frontier) = frontier else {
        return Err(Problem::new("the receipt log is damaged", "run `reprise log verify`").into());
    };
    let now = now_seconds();
    let old = keys.active.clone();
    let origin = keys.origin.clone();
    let end = End {
        size: frontier.size(),
        root: frontier.root(),
        origin: Some(origin.clone()),
    };
    let renamed = renamed.filter(|wanted| *wanted != origin);
    let Some(active) = keys.keys.iter_mut().find(|key| key.key_id == old) else {
        return Err(broken(&file, "its active key is not among its keys"));
    };
    let key = new_key(Some(now))?;
    let new = key.key_id.clone();
    let signers = [
        Signer::new(old.as_str(), &seed(&file, active)?),
        Signer::new(new.as_str(), &seed(&file, &key)?),
    ];
    let statement = statement(&origin, renamed, &signers, &end)?;
    // What it signed within this second stays valid.
    active.exp = Some(now + 1);
    active.retired = Some(end.clone());
    active.public = Some(URL_SAFE_NO_PAD.encode(public_of(&file, active)?));
    active.seed = None;
    keys.active.clone_from(&new);
    keys.keys.push(key);
    let mut said = json!({
        "old_key_id": old,
        "new_key_id": new,
        "size": end.size,
        "root": end.root,
        "statement": statement,
    });
    if let (Some(renamed), Some(said)) = (renamed, said.as_object_mut()) {
        said.insert("old_origin".to_owned(), origin.into());
        said.insert("origin".to_owned(), renamed.into());
        name_ends(&mut keys);
        keys.origin = renamed.to_owned();
    }
    keys.unlogged = Some(said);
    keys.version = VERSION;
    write(directory, &keys)?;
    crate::wait(log_rotation(directory, store))?;
    Ok(Rotated { old, new })
}

/// Returns what both keys sign: which key follows which, and where the log stood.
fn statement(
    origin: &str,
    renamed: Option<&str>,
    [old, new]: &[Signer; 2],
    end: &End,
) -> anyhow::Result<String> {
    let hex = |signer: &Signer| canon::sha256(&signer.public()).hex();
    let mut text = format!(
        "reprise-key-rotation/1\n{origin}\n{} {}\n{} {}\n{}\n{}\n",
        old.key_id(),
        hex(old),
        new.key_id(),
        hex(new),
        end.size,
        end.root
    );
    if let Some(renamed) = renamed {
        text.push_str(&format!("origin {renamed}\n"));
    }
    let signed = || {
        let mut note = Note::new(text)?;
        note.sign(origin, old)?;
        note.sign(origin, new)?;
        Ok::<_, receipts::note::NoteError>(note.write())
    };
    signed().or_hint(
        "the rotation cannot be signed",
        "check the origin in the file",
    )
}

/// Logs the statement of a rotation with the first head that the new key signs, when that was not done yet.
///
/// # Errors
/// The log or the file cannot be written.
pub(crate) async fn log_rotation(directory: &Path, store: &dyn Store) -> anyhow::Result<()> {
    let Some(mut keys) = read(directory)? else {
        return Ok(());
    };
    let Some(said) = keys.unlogged.take() else {
        return Ok(());
    };
    let authority = authority(directory, store.name().log())?;
    let id = BatchId::from_body(&RandomIds.body());
    let now = SystemClock.now();
    let begins = engine::HeadReason::Rotation(said);
    let sealed = engine::seal_first(store, &authority, (id, now), begins).await;
    sealed.or_hint("the rotation cannot be logged", "run `reprise log verify`")?;
    write(directory, &keys)
}

/// Checks that the keys are there when the log names any, and that they are those that its newest head was signed with: a
/// file that was put back to an earlier state knows nothing of what was rotated or revoked since.
///
/// # Errors
/// They are not; the log or the file cannot be read.
pub(crate) async fn agree_with_log(directory: &Path, store: &dyn Store) -> anyhow::Result<()> {
    let hint = "run `reprise log verify`";
    let said = engine::newest_keys(store).await;
    let said = said.or_hint("the newest head of the log cannot be read", hint)?;
    let names_keys = engine::names_signing_key(store).await;
    let names_keys = names_keys.or_hint("the receipts of the log cannot be read", hint)?;
    agree(directory, names_keys, said)
}

/// The same with what the log says: whether it names any key, and which there were at its newest head.
///
/// # Errors
/// As [`agree_with_log`].
pub(crate) fn agree(
    directory: &Path,
    names_keys: bool,
    said: Option<Digest>,
) -> anyhow::Result<()> {
    let file = path(directory);
    let Some(keys) = read(directory)? else {
        return match names_keys {
            true => Err(Problem::new(
                format!("`{}` is missing, and the log names a key that signed", file.display()),
                "restore it from a backup: without it this log cannot continue under its key. If it is lost, \
                 `reprise receipt rotate-key --lost` continues with a new key, and the log says so",
            )
            .into()),
            false => Ok(()),
        };
    };
    let own = public(&file, &keys)?.state();
    if keys.unlogged.is_some() || said.is_none_or(|said| said == own) {
        return Ok(());
    }
    Err(broken(
        &file,
        "its keys are not those that the newest head of this log was signed with; it was put back to an earlier state, \
         or belongs to another log",
    ))
}

/// Says since when a key is not trusted: somebody else may have it. The key in use is rotated first.
///
/// # Errors
/// There is no such key; the file or the log cannot be read or written.
pub(crate) fn revoke(
    directory: &Path,
    store: &SqliteStore,
    key_id: &str,
    since: i64,
) -> anyhow::Result<Option<Rotated>> {
    crate::wait(agree_with_log(directory, store))?;
    let known = read(directory)?;
    let is_active = known.as_ref().is_some_and(|keys| keys.active == key_id);
    let is_known = known.is_some_and(|keys| keys.keys.iter().any(|key| key.key_id == key_id));
    if !is_known {
        let hint = "`/.well-known/jwks.json` lists the keys of a server";
        return Err(Problem::new(format!("there is no key `{key_id}`"), hint).into());
    }
    let rotated = match is_active {
        true => Some(rotate(directory, store)?),
        false => None,
    };
    let Some(mut keys) = read(directory)? else {
        return Err(broken(&path(directory), "it does not exist"));
    };
    for key in keys.keys.iter_mut().filter(|key| key.key_id == key_id) {
        key.revoked_at = Some(key.revoked_at.map_or(since, |known| known.min(since)));
    }
    let authority = authority(directory, store.name().log())?;
    let text = format!(
        "reprise-key-revocation/1\n{}\n{key_id}\n{since}\n",
        keys.origin
    );
    let signed = || {
        let mut note = Note::new(text)?;
        note.sign(&keys.origin, &authority.signer)?;
        Ok::<_, receipts::note::NoteError>(note.write())
    };
    let statement = signed().or_hint("the revocation cannot be signed", "check the origin")?;
    keys.version = VERSION;
    keys.unlogged = Some(json!({"revoked_key_id": key_id, "since": since, "statement": statement}));
    write(directory, &keys)?;
    crate::wait(log_rotation(directory, store))?;
    Ok(rotated)
}

/// Gives the log a new origin, because it cannot continue what it signed under the old one. Returns the old and the new
/// one. The caller holds the data directory.
///
/// # Errors
/// There is no file, or it cannot be read, understood or written.
pub(crate) fn renew_origin(directory: &Path) -> anyhow::Result<(String, String)> {
    let Some(mut keys) = read(directory)? else {
        return Err(broken(&path(directory), "it does not exist"));
    };
    let old = keys.origin.clone();
    name_ends(&mut keys);
    let numbered = old.rsplit_once('-').and_then(|(stem, number)| {
        let number: u32 = number.parse().ok()?;
        Some(format!("{stem}-{}", number.checked_add(1)?))
    });
    keys.origin = numbered.unwrap_or_else(|| format!("{old}-2"));
    write(directory, &keys)?;
    Ok((old, keys.origin))
}

/// Writes down in which log keys ended, before it gets another name: files from before names could change do not say so.
fn name_ends(keys: &mut Keys) {
    for end in keys.keys.iter_mut().filter_map(|key| key.retired.as_mut()) {
        end.origin.get_or_insert_with(|| keys.origin.clone());
    }
}

/// Returns the name of the log of a data directory; none before the first start.
///
/// # Errors
/// The file cannot be read or understood.
pub(crate) fn origin(directory: &Path) -> anyhow::Result<Option<String>> {
    Ok(read(directory)?.map(|keys| keys.origin))
}

fn path(directory: &Path) -> PathBuf {
    directory.join(FILE)
}

fn read(directory: &Path) -> anyhow::Result<Option<Keys>> {
    let file = path(directory);
    let bytes = match std::fs::read(&file) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            let hint = "let this user read it; receipts are signed with it";
            return Err(error).or_hint(format_args!("`{}`", file.display()), hint);
        }
    };
    let keys: Keys =
        serde_json::from_slice(&bytes).or_hint(format_args!("`{}`", file.display()), RESTORE)?;
    if keys.format != FORMAT || !(1..=VERSION).contains(&keys.version) {
        return Err(broken(&file, "it is of another format or a newer version"));
    }
    for key in &keys.keys {
        // A damaged seed is a key like any other: only its id tells that it is not the one that was published.
        let public = public_of(&file, key)?;
        if key.key_id != key_id(&public) {
            let problem = format!("the seed of `{}` belongs to another key", key.key_id);
            return Err(broken(&file, &problem));
        }
    }
    Ok(Some(keys))
}

fn write(directory: &Path, keys: &Keys) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(keys).context("the signing keys have no JSON form")?;
    files::write_durably(directory, FILE, format!("{text}\n").as_bytes()).or_hint(
        format_args!("`{}`", path(directory).display()),
        "check that the disk has room and lets this user write",
    )
}

fn broken(file: &Path, problem: &str) -> anyhow::Error {
    Problem::new(format!("`{}`: {problem}", file.display()), RESTORE).into()
}

fn seed(file: &Path, key: &Key) -> anyhow::Result<[u8; 32]> {
    let seed = key.seed.as_deref().unwrap_or_default();
    let bytes = URL_SAFE_NO_PAD.decode(seed).ok();
    let seed = bytes.and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
    seed.ok_or_else(|| {
        broken(
            file,
            &format!("the seed of `{}` is not 32 bytes", key.key_id),
        )
    })
}

/// Returns the public half of a key, with or without its secret one.
fn public_of(file: &Path, key: &Key) -> anyhow::Result<[u8; 32]> {
    let Some(public) = &key.public else {
        return Ok(Signer::new("", &seed(file, key)?).public());
    };
    let bytes = URL_SAFE_NO_PAD.decode(public).ok();
    let public = bytes.and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
    public.ok_or_else(|| {
        let problem = format!("the public half of `{}` is not 32 bytes", key.key_id);
        broken(file, &problem)
    })
}

fn public(file: &Path, keys: &Keys) -> anyhow::Result<KeySet> {
    let mut published = Vec::new();
    for key in &keys.keys {
        published.push(PublicKey {
            key_id: key.key_id.clone(),
            bytes: public_of(file, key)?,
            not_before: key.nbf,
            expires: key.exp,
            // Files of version 1 do not say where a key ended, only that it did.
            retired: (key.key_id != keys.active).then(|| KeyRetirement {
                head: key.retired.as_ref().map(|end| (end.size, end.root)),
                origin: key.retired.as_ref().and_then(|end| end.origin.clone()),
                revoked_at: key.revoked_at,
            }),
        });
    }
    KeySet::new(published).or_hint(format_args!("`{}`", file.display()), RESTORE)
}

fn new_key(nbf: Option<i64>) -> anyhow::Result<Key> {
    let mut seed = [0_u8; 32];
    getrandom::fill(&mut seed).or_hint("cannot get random numbers", "check /dev/urandom")?;
    let public = Signer::new("", &seed).public();
    Ok(Key {
        key_id: key_id(&public),
        seed: Some(URL_SAFE_NO_PAD.encode(seed)),
        public: None,
        nbf,
        exp: None,
        retired: None,
        revoked_at: None,
    })
}

/// Returns the id under which a public key is published, which is made from the key.
fn key_id(public: &[u8; 32]) -> String {
    let digest = canon::sha256(public).hex();
    let name: String = digest.chars().take(16).collect();
    format!("key_{name}")
}

fn now_seconds() -> i64 {
    jiff::Timestamp::now().as_second()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_key_is_made_once_and_is_for_its_owner_only() {
        let home = tempfile::tempdir().unwrap();
        assert!(public_keys(home.path()).unwrap().is_none());
        let first = authority(home.path(), "abcdefgh").unwrap();
        let again = authority(home.path(), "abcdefgh").unwrap();
        assert_eq!(first.signer.public(), again.signer.public());
        assert_eq!(first.id, "reprise-abcdefgh");
        assert_eq!(first.origin, "reprise-abcdefgh/receipts");
        assert_eq!(public_keys(home.path()).unwrap(), Some(first.keys));
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = std::fs::metadata(path(home.path())).unwrap().permissions();
            assert_eq!(mode.mode() & 0o777, 0o600);
        }
    }

    fn opened(home: &Path) -> SqliteStore {
        SqliteStore::open(home, store::Options::default()).unwrap()
    }

    #[test]
    fn a_rotated_key_stays_published_with_its_end_and_loses_its_seed() {
        let home = tempfile::tempdir().unwrap();
        let store = opened(home.path());
        let log = store.name().log().to_owned();
        assert!(rotate(home.path(), &store).is_err());
        let first = authority(home.path(), &log).unwrap();
        let seed = read(home.path()).unwrap().unwrap().keys[0].seed.clone();
        let rotated = rotate(home.path(), &store).unwrap();
        let second = authority(home.path(), &log).unwrap();
        assert_eq!(rotated.old, first.signer.key_id());
        assert_eq!(rotated.new, second.signer.key_id());
        assert_ne!(rotated.old, rotated.new);
        let keys = second.keys.keys();
        assert_eq!(keys.len(), 2);
        assert_eq!(keys[0].bytes, first.signer.public());
        assert_eq!(keys[0].not_before, None);
        let end = keys[0].expires.unwrap();
        assert_eq!(keys[1].not_before, Some(end - 1));
        assert_eq!(keys[1].expires, None);
        let empty = Frontier::EMPTY.root();
        assert_eq!(keys[0].retired.clone().unwrap().head, Some((0, empty)));
        assert_eq!(keys[1].retired, None);
        let text = std::fs::read_to_string(path(home.path())).unwrap();
        assert!(!text.contains(&seed.unwrap()), "the old seed is kept");
        assert!(!text.contains("unlogged"), "{text}");
    }

    #[test]
    fn a_file_that_is_damaged_stops_and_stays() {
        let home = tempfile::tempdir().unwrap();
        authority(home.path(), "abcdefgh").unwrap();
        let good = std::fs::read_to_string(path(home.path())).unwrap();
        let damages = [
            "",
            "{}",
            &good.replace("\"active\": \"key_", "\"active\": \"kex_"),
            &good.replace("\"version\": 2", "\"version\": 3"),
            &good.replace("\"seed\": \"", "\"seed\": \"!"),
            &good.replace("\"issuer\"", "\"other\""),
        ];
        for bad in damages {
            std::fs::write(path(home.path()), bad).unwrap();
            let error = authority(home.path(), "abcdefgh").unwrap_err();
            let (text, _) = crate::exit::report(&error, false);
            assert!(text.contains(FILE), "{text}");
            assert!(text.contains("backup"), "{text}");
            assert_eq!(std::fs::read_to_string(path(home.path())).unwrap(), bad);
        }
    }

    /// A changed character gives a seed like any other; the server would publish another key under the old id.
    #[test]
    fn a_seed_that_does_not_belong_to_its_id_stops() {
        let home = tempfile::tempdir().unwrap();
        authority(home.path(), "abcdefgh").unwrap();
        let good = std::fs::read_to_string(path(home.path())).unwrap();
        let start = good.find("\"seed\": \"").unwrap() + 9;
        for at in start..start + 42 {
            let other = if good[at..].starts_with('A') {
                "B"
            } else {
                "A"
            };
            let mut bad = good.clone();
            bad.replace_range(at..=at, other);
            std::fs::write(path(home.path()), &bad).unwrap();
            let error = authority(home.path(), "abcdefgh").unwrap_err();
            let (text, _) = crate::exit::report(&error, false);
            assert!(text.contains("belongs to another key"), "{text}");
            assert!(text.contains("backup"), "{text}");
            assert!(public_keys(home.path()).is_err());
            assert_eq!(std::fs::read_to_string(path(home.path())).unwrap(), bad);
        }
    }

    #[test]
    fn a_clock_before_the_keys_time_stops() {
        let home = tempfile::tempdir().unwrap();
        authority(home.path(), "abcdefgh").unwrap();
        rotate(home.path(), &opened(home.path())).unwrap();
        let later = now_seconds() + 1_000_000;
        let mut keys = read(home.path()).unwrap().unwrap();
        keys.keys.last_mut().unwrap().nbf = Some(later);
        write(home.path(), &keys).unwrap();
        let error = authority(home.path(), "abcdefgh").unwrap_err();
        assert!(error.to_string().contains("clock"), "{error}");
    }
}
