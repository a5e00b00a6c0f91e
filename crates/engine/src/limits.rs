//! Every size, count and time that is bounded, by name.

use std::time::Duration;

/// The limits of one server. There is no default here: the program's configuration decides, and documents it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Commands that one turn takes.
    pub batch_len_max: usize,
    /// Commands that may wait for a turn; more are refused as unavailable.
    pub pending_commands_max: usize,
    /// Tasks of one caller worked on at the same time. A quarter more is kept for callers that have less than their
    /// share.
    pub workers_max: usize,
    /// Tasks accepted and not ended, those included that wait for somebody. Shared out by caller, as workers are.
    pub open_tasks_max: usize,
    /// Bytes that all Workspaces may store, shared out by Workspace, as workers are by caller; `u64::MAX` for any number.
    pub stored_bytes_max: u64,
    /// Event streams open at the same time. Shared out by key, as workers are by caller.
    pub streams_max: usize,
    /// Messages a fork may copy, and initial Messages of a Session.
    pub fork_messages_max: usize,
    /// How long a submit waits for its Task to finish or to wait.
    pub settle_window: Duration,
    /// How long a submit waits for a free worker to begin.
    pub start_window: Duration,
    /// How long an idempotency key is kept.
    pub idempotency_window: Duration,
    /// How long a receipt may wait for its leaf when nobody asks for a proof.
    pub leaf_interval: Duration,
    /// How many leaves a sealed head may leave uncovered.
    pub head_leaves_max: u64,
    /// How long leaves may stay uncovered by a sealed head.
    pub head_interval: Duration,
    /// How long the receipts list of a running Task waits for its receipt.
    pub receipt_window: Duration,
    /// How long a drain waits for running Tasks.
    pub drain_window: Duration,
}
