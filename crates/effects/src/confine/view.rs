//! A view of the file system in which only the writable places can be changed.
//!
//! Landlock holds back content, but not modes, owners, times and attributes of files that belong to the server's user. In
//! a mount namespace of its own the program sees everything else as on a read-only medium, where the kernel refuses
//! these too. That needs user namespaces, which some systems and most containers do not allow: [`probe`] says.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use rustix::fs::{StatVfsMountFlags, statvfs};

const NOTHING: Option<&str> = None;

/// Enters such a view. The folders that are kept are looked at afterwards: they must be read-only.
pub(super) fn enter(writable: &[PathBuf], kept: &[PathBuf]) -> Result<(), String> {
    let here = std::env::current_dir().map_err(|error| error.to_string())?;
    make(writable).map_err(|error| format!("cannot be given a view of its own: {error}"))?;
    // The folder that it stands in is still that of the view before.
    std::env::set_current_dir(&here).map_err(|error| format!("`{}`: {error}", here.display()))?;
    for folder in kept {
        match statvfs(folder) {
            Ok(found) if !found.f_flag.contains(StatVfsMountFlags::RDONLY) => {
                return Err(format!("`{}` can still be changed", folder.display()));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Returns whether this process can enter such a view. It is in one afterwards.
pub(super) fn probe() -> bool {
    enter(&[], &[PathBuf::from("/")]).is_ok()
}

fn make(writable: &[PathBuf]) -> std::io::Result<()> {
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS)?;
    std::fs::write("/proc/self/setgroups", "deny")?;
    let itself = |id: u32| format!("{id} {id} 1");
    std::fs::write("/proc/self/uid_map", itself(user.as_raw()))?;
    std::fs::write("/proc/self/gid_map", itself(group.as_raw()))?;
    let all = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(NOTHING, "/", NOTHING, all, NOTHING)?;
    let writable = outermost(writable);
    for place in &writable {
        let bind = MsFlags::MS_BIND | MsFlags::MS_REC;
        mount(Some(place), place, NOTHING, bind, NOTHING)?;
    }
    let table = std::fs::read("/proc/self/mountinfo")?;
    for line in table.split(|byte| *byte == b'\n') {
        let Some((place, flags)) = entry(line) else {
            continue;
        };
        if writable.iter().any(|writable| place.starts_with(writable)) {
            continue;
        }
        let flags = flags | MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
        match mount(NOTHING, &place, NOTHING, flags, NOTHING) {
            // Where no path leads: below a folder that this user may not enter, or covered by another mount.
            Ok(()) | Err(Errno::EACCES | Errno::ENOENT | Errno::ENOTDIR | Errno::EINVAL) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// The places as they really are, without those that lie in others. Devices need no place: what is written to them is not
/// a change of the file system.
fn outermost(places: &[PathBuf]) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = (places.iter())
        .filter_map(|place| std::fs::canonicalize(place).ok())
        .filter(|place| !place.starts_with("/dev"))
        .collect();
    found.sort();
    // A place comes before what lies in it.
    found.dedup_by(|later, earlier| later.starts_with(&*earlier));
    found
}

/// Reads a line of the mount table: where, and with which flags, all of which must be kept.
fn entry(line: &[u8]) -> Option<(PathBuf, MsFlags)> {
    let mut words = line.split(|byte| *byte == b' ').skip(4);
    let (place, options) = (words.next()?, words.next()?);
    let mut flags = MsFlags::empty();
    let mut access_time = MsFlags::MS_STRICTATIME;
    for option in options.split(|byte| *byte == b',') {
        match option {
            b"nosuid" => flags |= MsFlags::MS_NOSUID,
            b"nodev" => flags |= MsFlags::MS_NODEV,
            b"noexec" => flags |= MsFlags::MS_NOEXEC,
            b"nodiratime" => flags |= MsFlags::MS_NODIRATIME,
            b"noatime" => access_time = MsFlags::MS_NOATIME,
            b"relatime" => access_time = MsFlags::MS_RELATIME,
            _ => {}
        }
    }
    Some((unescaped(place), flags | access_time))
}

/// Spaces and their like are written as a backslash and three octal digits.
fn unescaped(place: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(place.len());
    let mut rest = place;
    while let Some((first, after)) = rest.split_first() {
        let octal = (*first == b'\\')
            .then(|| after.get(..3))
            .flatten()
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match octal {
            Some(byte) => {
                bytes.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    Path::new(&OsString::from_vec(bytes)).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_tables_are_read_with_their_flags() {
        let line = br"36 35 98:0 /a /mnt/with\040space\134 rw,nosuid,noexec,relatime master:1 - ext3 /dev/x rw";
        let (place, flags) = entry(line).unwrap();
        assert_eq!(place, Path::new(r"/mnt/with space\"));
        assert_eq!(
            flags,
            MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC | MsFlags::MS_RELATIME
        );
        let (_, flags) = entry(b"1 2 3:4 / / rw - x y z").unwrap();
        assert_eq!(flags, MsFlags::MS_STRICTATIME);
        assert_eq!(entry(b""), None);
    }

    #[test]
    fn places_inside_others_are_left_out() {
        let root = tempfile::tempdir().unwrap();
        let (a, inner, b) = (
            root.path().join("a"),
            root.path().join("a/inner"),
            root.path().join("ab"),
        );
        for folder in [&inner, &b] {
            std::fs::create_dir_all(folder).unwrap();
        }
        let found = outermost(&[
            inner,
            b.clone(),
            a.clone(),
            "/dev/null".into(),
            "/none".into(),
        ]);
        let real = |path| std::fs::canonicalize(path).unwrap();
        assert_eq!(found, [real(a), real(b)]);
    }
}
