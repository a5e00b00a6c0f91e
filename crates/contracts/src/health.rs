//! Health: how much of what a session promises holds right now.
//!
//! Derived, never set: the first rule that matches gives each word.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::reason::words;
use crate::rules::{Compat, Executors, Mode, Rules};
use crate::state::{Lifecycle, State};

words! {
    /// The short answer.
    HealthStatus {
        /// All is well.
        Healthy = "healthy",
        /// Something somebody should look at.
        Degraded = "degraded",
        /// The session is over.
        Inactive = "inactive",
    }
}

words! {
    /// Whose word counts.
    Authority {
        /// The session's.
        Active = "active",
        /// Nobody's: verdicts are advice.
        Advisory = "advisory",
        /// The client was used around the session.
        Compromised = "compromised",
        /// The server's, which is being found again.
        Recovering = "recovering",
        /// Stopped for good.
        Killed = "killed",
        /// Ended.
        Inactive = "inactive",
    }
}

words! {
    /// What the session protects from.
    Protection {
        /// Nothing: it watches.
        Monitor = "monitor",
        /// Calls that contracts forbid.
        Protect = "protect",
        /// The same, with durable state and receipts.
        Govern = "govern",
    }
}

words! {
    /// Where state would survive a crash.
    Durability {
        /// On the server.
        Server = "server",
        /// Only here, although a server should have it.
        DegradedLocal = "degraded-local",
        /// Nowhere.
        Inactive = "inactive",
        /// Extension: in a journal on local disk.
        Local = "local",
    }
}

words! {
    /// Whether an authoritative server keeps the state.
    Tier {
        /// It does.
        Strong = "strong",
        /// It does not.
        Compat = "compat",
    }
}

words! {
    /// How rules from an approved server plan are attached.
    Attachment {
        /// Extension: they are.
        Attached = "attached",
        /// Nothing is approved.
        NoPlan = "no_plan",
        /// The plan could not be fetched.
        FetchFailed = "fetch_failed",
        /// The approved form is unusable.
        ArtifactInvalid = "artifact_invalid",
        /// The plan was found, the start failed.
        AttachmentFailed = "attachment_failed",
        /// Extension: rules are local.
        NotApplicable = "not_applicable",
    }
}

/// What only the program around the session knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostFacts {
    /// True while the server cannot be reached, or receipts are being reconciled.
    pub server_lost: bool,
    /// True when the session began without the server it should have.
    pub started_degraded: bool,
    /// True when another live process holds the session without a server between them.
    pub cluster_detected: bool,
    /// True when state is journaled on local disk.
    pub journal: bool,
    /// How rules were attached.
    pub attachment: Attachment,
}

impl HostFacts {
    /// A local session in memory.
    pub const LOCAL: Self = Self {
        server_lost: false,
        started_degraded: false,
        cluster_detected: false,
        journal: false,
        attachment: Attachment::NotApplicable,
    };
}

/// The health of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Health {
    /// The short answer.
    pub status: HealthStatus,
    /// Whose word counts.
    pub authority_state: Authority,
    /// What the session protects from.
    pub protection_level: Protection,
    /// Where state would survive a crash.
    pub durability: Durability,
    /// Whether an authoritative server keeps the state.
    pub tier: Tier,
    /// Whether a session without a server blocks.
    pub compat_enforcement: Compat,
    /// How rules were attached.
    pub governance_attachment: Attachment,
    /// Calls whose outcome is not known.
    pub unresolved_receipt_count: u64,
    /// Another live process holds the session.
    #[serde(rename = "cluster_detected")]
    pub cluster_detected: bool,
    /// The client was used around the session.
    #[serde(rename = "bypass_detected")]
    pub bypass_detected: bool,
    /// Committed steps.
    pub total_steps: u64,
    /// Blocked responses.
    pub total_blocks: u64,
    /// Provider failures and governance faults.
    pub total_errors: u64,
    /// Responses that would have been blocked.
    pub shadow_evaluations: u64,
    /// Stopped for good.
    pub killed: bool,
}

/// Derives the health of a session.
pub fn health(rules: &Rules, state: &State, around: HostFacts) -> Health {
    let options = rules.options();
    let killed = matches!(state.lifecycle(), Lifecycle::Killed { .. });
    let restored = *state.lifecycle() == Lifecycle::Restored;
    let over = killed || restored;
    let unresolved = state.unknown_outcomes() as u64;
    let watches = options.mode != Mode::Enforce || rules.is_advisory();
    let tier = if options.server {
        Tier::Strong
    } else {
        Tier::Compat
    };
    let authority_state = if killed {
        Authority::Killed
    } else if restored {
        Authority::Inactive
    } else if state.bypassed {
        Authority::Compromised
    } else if around.server_lost {
        Authority::Recovering
    } else if watches || around.attachment == Attachment::NoPlan {
        Authority::Advisory
    } else {
        Authority::Active
    };
    let attachment_broken = match around.attachment {
        Attachment::FetchFailed | Attachment::ArtifactInvalid | Attachment::AttachmentFailed => {
            true
        }
        Attachment::Attached | Attachment::NoPlan | Attachment::NotApplicable => false,
    };
    let degraded = matches!(
        authority_state,
        Authority::Compromised | Authority::Recovering
    ) || unresolved > 0
        || around.cluster_detected
        || attachment_broken;
    let status = if over {
        HealthStatus::Inactive
    } else if degraded {
        HealthStatus::Degraded
    } else {
        HealthStatus::Healthy
    };
    let wrapped = match &options.executors {
        Executors::All => true,
        Executors::Named(tools) => !tools.is_empty(),
    };
    let protection_level = if watches {
        Protection::Monitor
    } else if tier == Tier::Strong && wrapped && authority_state == Authority::Active {
        Protection::Govern
    } else {
        Protection::Protect
    };
    let durability = if over {
        Durability::Inactive
    } else if options.server && (around.server_lost || around.started_degraded || unresolved > 0) {
        Durability::DegradedLocal
    } else if options.server {
        Durability::Server
    } else if around.journal {
        Durability::Local
    } else {
        Durability::Inactive
    };
    Health {
        status,
        authority_state,
        protection_level,
        durability,
        tier,
        compat_enforcement: options.compat,
        governance_attachment: around.attachment,
        unresolved_receipt_count: unresolved,
        cluster_detected: around.cluster_detected,
        bypass_detected: state.bypassed,
        total_steps: state.steps(),
        total_blocks: state.blocks,
        total_errors: state.errors,
        shadow_evaluations: state.shadow_evaluations,
        killed,
    }
}
