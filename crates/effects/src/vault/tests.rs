//! The vault on a real disk: round trips, other people's permissions, damage and interrupted writes.

use std::os::unix::fs::PermissionsExt;

use super::*;

fn value(text: &str) -> SecretString {
    SecretString::from(text)
}

fn open(folder: &tempfile::TempDir) -> Vault {
    Vault::open(folder.path().join("vault"), "local").unwrap()
}

fn read(vault: &Vault, name: &str) -> Result<String, VaultError> {
    vault
        .get(name)
        .map(|(value, _)| value.expose_secret().to_owned())
}

#[test]
fn a_value_comes_back_after_opening_again_and_versions_count() {
    let folder = tempfile::tempdir().unwrap();
    let vault = open(&folder);
    assert_eq!(
        vault.put("token", &value("first value")).unwrap().version,
        1
    );
    assert_eq!(vault.put("token", &value("second")).unwrap().version, 2);
    vault.put("a.b-c_D", &value("other")).unwrap();
    drop(vault);
    let vault = open(&folder);
    assert_eq!(read(&vault, "token").unwrap(), "second");
    let names: Vec<_> = vault
        .list()
        .unwrap()
        .into_iter()
        .map(|handle| handle.map(|handle| (handle.name, handle.version)).unwrap())
        .collect();
    assert_eq!(names, [("a.b-c_D".to_owned(), 1), ("token".to_owned(), 2)]);
}

#[test]
fn a_deleted_name_is_unknown_and_its_versions_are_not_used_again() {
    let folder = tempfile::tempdir().unwrap();
    let vault = open(&folder);
    vault.put("token", &value("first value")).unwrap();
    vault.delete("token").unwrap();
    assert!(matches!(vault.get("token"), Err(VaultError::Unknown(_))));
    assert!(matches!(vault.delete("token"), Err(VaultError::Unknown(_))));
    assert!(vault.list().unwrap().is_empty());
    assert_eq!(vault.put("token", &value("again")).unwrap().version, 3);
}

/// AP-PRIV-02: the value is nowhere in the folder.
#[test]
fn values_are_not_on_disk_in_clear_and_files_are_for_the_owner_only() {
    let folder = tempfile::tempdir().unwrap();
    let vault = open(&folder);
    vault.put("token", &value("planted-canary-value")).unwrap();
    for entry in fs::read_dir(folder.path().join("vault")).unwrap() {
        let path = entry.unwrap().path();
        let bytes = fs::read(&path).unwrap();
        let found = bytes.windows(6).any(|part| part == b"canary");
        assert!(!found, "{}", path.display());
        let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{}", path.display());
    }
    assert!(!format!("{vault:?}").contains("key"));
}

#[test]
fn what_others_can_read_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let inside = folder.path().join("vault");
    drop(open(&folder));
    for (path, mode) in [(inside.join(KEY_FILE), 0o640), (inside.clone(), 0o755)] {
        let before = fs::metadata(&path).unwrap().permissions();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let error = Vault::open(&inside, "local").unwrap_err();
        assert!(
            matches!(&error, VaultError::Permissions { mode: found, .. } if *found == mode),
            "{error}"
        );
        assert!(error.to_string().contains("chmod"), "{error}");
        fs::set_permissions(&path, before).unwrap();
    }
    Vault::open(&inside, "local").unwrap();
}

#[test]
fn every_flipped_byte_and_every_cut_of_a_record_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let vault = open(&folder);
    vault.put("token", &value("the real value")).unwrap();
    let path = vault.path("token").unwrap();
    let whole = fs::read(&path).unwrap();
    for index in 0..whole.len() {
        let mut bent = whole.clone();
        bent[index] ^= 1;
        fs::write(&path, &bent).unwrap();
        let error = vault.get("token").unwrap_err();
        assert!(matches!(error, VaultError::Damaged { .. }), "byte {index}");
        fs::write(&path, &whole[..index]).unwrap();
        let error = vault.get("token").unwrap_err();
        assert!(matches!(error, VaultError::Damaged { .. }), "cut {index}");
    }
    assert!(vault.list().unwrap()[0].is_err());
    // Setting it again repairs it.
    vault.put("token", &value("the next value")).unwrap();
    assert_eq!(read(&vault, "token").unwrap(), "the next value");
}

#[test]
fn a_record_cannot_pass_for_another_name_version_or_vault() {
    let folder = tempfile::tempdir().unwrap();
    let vault = open(&folder);
    vault.put("one", &value("value of one")).unwrap();
    let (from, to) = (vault.path("one").unwrap(), vault.path("two").unwrap());
    fs::copy(&from, &to).unwrap();
    assert!(matches!(vault.get("two"), Err(VaultError::Damaged { .. })));
    let other = Vault::open(folder.path().join("vault"), "other").unwrap();
    assert!(matches!(other.get("one"), Err(VaultError::Damaged { .. })));
    assert_eq!(read(&vault, "one").unwrap(), "value of one");
}

#[test]
fn an_interrupted_write_leaves_the_old_value_and_its_rest_is_cleared() {
    let folder = tempfile::tempdir().unwrap();
    let vault = open(&folder);
    vault.put("token", &value("old value")).unwrap();
    let left = folder.path().join("vault/token.record.tmp");
    fs::write(&left, b"half of a rec").unwrap();
    assert_eq!(read(&vault, "token").unwrap(), "old value");
    assert_eq!(vault.list().unwrap().len(), 1);
    let vault = open(&folder);
    assert!(!left.exists());
    assert_eq!(read(&vault, "token").unwrap(), "old value");
    assert_eq!(vault.put("token", &value("new value")).unwrap().version, 2);
}

#[test]
fn a_lost_or_cut_key_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let vault = open(&folder);
    vault.put("token", &value("old value")).unwrap();
    let key = folder.path().join("vault/key");
    let bytes = fs::read(&key).unwrap();
    fs::write(&key, &bytes[..31]).unwrap();
    let again = || Vault::open(folder.path().join("vault"), "local");
    assert!(matches!(again(), Err(VaultError::Key { .. })));
    fs::remove_file(&key).unwrap();
    // A fresh key would make every record unreadable without a word.
    assert!(matches!(again(), Err(VaultError::Key { .. })));
    fs::write(&key, [7; 32]).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let vault = again().unwrap();
    assert!(matches!(
        vault.get("token"),
        Err(VaultError::Damaged { .. })
    ));
}

#[test]
fn names_and_values_have_limits() {
    let folder = tempfile::tempdir().unwrap();
    let vault = open(&folder);
    let long = "x".repeat(NAME_BYTES_MAX + 1);
    for name in ["", "a/b", "../key", "ä", long.as_str()] {
        let put = vault.put(name, &value("long enough"));
        assert!(matches!(put, Err(VaultError::BadName(_))), "{name}");
        assert!(
            matches!(vault.get(name), Err(VaultError::BadName(_))),
            "{name}"
        );
    }
    let long = "x".repeat(VALUE_BYTES_MAX + 1);
    for text in ["", "abc", "a \0 in it", long.as_str()] {
        let put = vault.put("name", &value(text));
        assert!(matches!(put, Err(VaultError::BadValue)));
    }
}

#[test]
fn writers_take_turns() {
    let folder = tempfile::tempdir().unwrap();
    let vault = open(&folder);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..5 {
                    vault.put("token", &value("some value")).unwrap();
                }
            });
        }
    });
    assert_eq!(vault.get("token").unwrap().1.version, 20);
}
