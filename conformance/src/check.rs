//! The checks, one file per group of requirements.
//!
//! Each check asks for one requirement, makes its own session and task, and is listed with its id in the `ROWS` of its
//! file. `beyond` lists the groups that have no checks yet.

pub(crate) mod version;

pub(crate) mod envelope;

pub(crate) mod workspace;

pub(crate) mod session;

pub(crate) mod task;

pub(crate) mod branch;

pub(crate) mod message;

pub(crate) mod artifact;

pub(crate) mod card;

pub(crate) mod event;

pub(crate) mod outcome;

pub(crate) mod extended;

pub(crate) mod permission;

pub(crate) mod rest;

pub(crate) mod sse;

pub(crate) mod auth;

pub(crate) mod walk;

pub(crate) mod idempotency;

pub(crate) mod lifecycle;

pub(crate) mod taxonomy;

pub(crate) mod error;

pub(crate) mod privacy;

pub(crate) mod receipt;

pub(crate) mod replay;

pub(crate) mod elsewhere;

pub(crate) mod sdk;

pub(crate) mod persona;

pub(crate) mod beyond;

pub(crate) mod published;
