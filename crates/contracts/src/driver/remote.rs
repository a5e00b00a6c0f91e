//! A session whose authority is a server: what the server is asked, and what its answers do here.
//!
//! The server judges, and its verdict is what happens. What is kept here follows its answers, so that snapshots can be
//! read at once, executions are checked before they run, and a session whose server is lost can go on by its own
//! judgement where that was chosen. An answer that does not fit its question releases nothing.

mod preflight;
mod reports;
mod verdict;

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Driver, JudgedResponse};
use crate::event::CallKey;
use crate::gate::Decision;
use crate::wire::Reply;

/// What is kept of a session on a server.
#[derive(Debug, Default)]
pub(super) struct Remote {
    /// True while the session judges by itself, because the server is lost.
    is_local: bool,
    /// True once the server's state is not what is kept here.
    has_drifted: bool,
    /// The proposals that released calls whose end is not reported.
    proposals: BTreeMap<CallKey, String>,
}

/// A response that the server judges.
#[derive(Debug)]
pub(super) struct ProposedResponse {
    reply: Reply,
    /// The proposal, once people are asked.
    asked: Option<String>,
}

impl ProposedResponse {
    pub(super) fn into_parts(self) -> (Reply, Option<String>) {
        (self.reply, self.asked)
    }
}

/// What a server is asked before the model.
#[derive(Debug, Clone, PartialEq)]
pub struct PreflightRequest {
    /// Names the request.
    pub attempt: u64,
    /// The body of the preflight, without the version it expects.
    pub preflight: Value,
    /// Reports of executions to send first: what the request tells about calls that nobody reported.
    pub reports: Vec<Value>,
}

/// What becomes of a response that was read.
#[derive(Debug, Clone, PartialEq)]
pub enum Proposal {
    /// The server judges it: the body of the proposal, without the prepared request.
    Propose(Value),
    /// It cannot be proposed.
    Judged(Box<JudgedResponse>),
}

/// What a server's verdict comes to.
#[derive(Debug, Clone, PartialEq)]
pub enum SettledVerdict {
    /// As with a verdict of the session's own.
    Judged(Box<JudgedResponse>),
    /// People are asked; the same proposal is answered again later.
    Waits {
        /// The questions, as the server shows them.
        questions: Value,
    },
    /// The model is asked again, after another preflight.
    Again {
        /// The record.
        decision: Box<Decision>,
        /// The body of the preflight.
        preflight: Value,
    },
}

impl Driver {
    /// Makes a server the authority.
    pub fn follow_server(&mut self) {
        self.remote = Some(Remote::default());
    }

    /// Says whether the server is asked.
    pub fn asks_server(&self) -> bool {
        self.remote.as_ref().is_some_and(|remote| !remote.is_local)
    }

    /// Judges here as long as the server is lost, or asks it again.
    pub fn judge_locally(&mut self, is_local: bool) {
        if let Some(remote) = &mut self.remote {
            remote.is_local = is_local;
        }
    }

    /// Takes note that the server's state is another one than what is kept here.
    pub fn mark_drifted(&mut self) {
        if let Some(remote) = &mut self.remote {
            remote.has_drifted = true;
        }
    }
}
