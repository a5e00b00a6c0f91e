//! The commands, one file per family.

pub(crate) mod about;
pub(crate) mod approvals;
pub(crate) mod artifact;
pub(crate) mod canonicalize;
pub(crate) mod conformance;
pub(crate) mod demo;
pub(crate) mod diff;
pub(crate) mod event;
pub(crate) mod field;
pub(crate) mod key;
pub(crate) mod log;
pub(crate) mod replay;
pub(crate) mod serve;
pub(crate) mod session;
pub(crate) mod task;
pub(crate) mod workspace;
