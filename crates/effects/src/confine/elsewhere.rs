//! Systems without a sandbox that we know how to use: programs are refused unless the operator allows them by name.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

use super::LaunchOrder;

const MISSING: &str = "this system has no Landlock, which is a part of Linux";

pub(super) fn level() -> Result<u32, String> {
    Err(MISSING.to_owned())
}

pub(super) fn enter(
    _order: &LaunchOrder,
    _program: &OsStr,
    _arguments: impl Iterator<Item = OsString>,
) -> String {
    MISSING.to_owned()
}

pub(super) fn supervise(
    order: &LaunchOrder,
    _sealed: &OsStr,
    _program: &OsStr,
    _arguments: impl Iterator<Item = OsString>,
) -> ExitCode {
    eprintln!("{}{MISSING}", order.mark);
    ExitCode::from(super::NOT_STARTED as u8)
}

pub(super) fn can_give_view(_starter: &Path) -> bool {
    false
}

pub(super) fn can_view() -> bool {
    false
}
