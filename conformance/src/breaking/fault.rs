//! The faults and the ids that must notice each.
//!
//! Owns the list. What a fault does to the bytes is in `rewrite`.

use crate::registry::rows;
use crate::report::Level;

macro_rules! faults {
    ($($(#[doc = $doc:literal])+ $name:ident => [$($id:literal),+ $(,)?],)+) => {
        /// One behaviour that the proxy breaks.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Fault {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Fault {
            /// Every fault.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            const fn direct(self) -> &'static [&'static str] {
                match self {
                    $(Self::$name => &[$($id),+],)+
                }
            }
        }
    };
}

faults! {
    /// A version that is not supported is taken for the supported one.
    BadVersionAccepted => ["AP-VER-02", "AP-VER-10", "SUITE-19"],
    /// A request without a version is taken for one with it.
    MissingVersionAccepted => ["AP-VER-01"],
    /// Of several version lines only the first counts.
    FirstVersionCounts => ["AP-VER-09"],
    /// The 426 answer does not list the supported versions.
    SupportedVersionsHidden => ["AP-VER-03"],
    /// Discovery does not say whether it replays.
    CapabilityMissing => ["AP-VER-05", "SUITE-01"],
    /// The card asks for a credential.
    CardNeedsCredential => ["AP-VER-04", "AP-CARD-01", "AP-SDK-03", "SUITE-02"],
    /// A member of the A2A card appears in the outer card.
    CardMixed => ["AP-CARD-03"],
    /// Tasks have no `metadata`.
    TaskMetadataMissing => ["AP-ENV-01"],
    /// Sessions forget their `metadata`.
    SessionMetadataForgotten => ["AP-ENV-05"],
    /// Times of sessions are written with an offset.
    OffsetTimes => ["AP-ENV-04"],
    /// Lists have no `page`.
    PageMissing => ["AP-ENV-06"],
    /// `limit=0` is accepted.
    LimitZeroAccepted => ["AP-ENV-07"],
    /// A canceled task is `CANCELLED`.
    CancelledSpelling => ["AP-ENV-09", "AP-LIFE-01", "AP-LIFE-04", "AP-LIFE-07"],
    /// Branches have no `workspace_id`.
    BranchWorkspaceMissing => ["AP-WS-03", "AP-BR-01"],
    /// Messages are listed newest first.
    MessagesReversed => ["AP-SESS-03", "AP-SESS-05", "AP-SESS-07", "AP-SESS-09"],
    /// A session that is not closed is always IDLE.
    SessionAlwaysIdle => ["AP-SESS-10"],
    /// The conversation of a closed session can be cut.
    ClosedSessionTruncated => ["AP-SESS-08"],
    /// Tasks do not say who made them.
    CreatedByHidden => ["AP-TASK-01", "AP-AUTH-02"],
    /// A submit is answered with 201.
    SubmitAnswersCreated => [
        "AP-TASK-01", "AP-IDEM-03", "AP-IDEM-04", "SUITE-07", "SUITE-12", "SUITE-13", "SUITE-14", "SUITE-15", "SUITE-16",
    ],
    /// The task list ignores `workspace_id`.
    WorkspaceFilterIgnored => ["AP-TASK-08"],
    /// A canceled task has `completed_at`.
    CompletedAtOnCanceled => ["AP-TASK-09"],
    /// The digest of an artifact has a prefix.
    DigestPrefixed => ["AP-ART-02"],
    /// The task does not name its outcome.
    OutcomeIdMissing => ["AP-OUT-02"],
    /// `sequence` counts in twos.
    SequenceStretched => ["AP-EVT-03"],
    /// `sequence` is a string.
    SequenceAsText => ["AP-EVT-01", "AP-EVT-03", "SUITE-13"],
    /// Event lists lack `task.status_changed`.
    StateEventsSkipped => ["AP-TASK-04", "AP-TASK-11", "AP-EVT-03", "AP-PRM-02", "AP-LIFE-04", "AP-TAX-06", "AP-RPL-12"],
    /// Event lists lack `user.cancel_requested`.
    CancelRequestSkipped => ["AP-TAX-07"],
    /// Vendor events lose their prefix.
    VendorPrefixLost => ["AP-TAX-01", "AP-TAX-02"],
    /// Event ranges ignore `after_event_id`.
    RangeIgnored => ["AP-EVT-06", "AP-RPL-23"],
    /// Event lists carry a member that differs from read to read.
    UnstableList => ["AP-EVT-07", "SUITE-20"],
    /// A submit is answered as SUBMITTED although the task is further.
    SubmittedTooLate => ["AP-LIFE-09", "SUITE-13"],
    /// Cancel of a finished task is a bad request.
    CancelFinishedIsBadRequest => ["AP-LIFE-06", "SUITE-07", "SUITE-14"],
    /// A 401 repeats the credential that was presented.
    KeyEchoed => ["AP-AUTH-03"],
    /// Errors have no `request_id`.
    RequestIdMissing => ["AP-ERR-02"],
    /// An unknown route is answered with a page.
    UnknownRouteIsHtml => ["AP-ERR-01", "AP-SDK-07"],
    /// A wrong method is answered without a body.
    WrongMethodIsEmpty => ["AP-ERR-01", "AP-SDK-07"],
    /// A wrong method has a code outside the table.
    CodeOutsideTable => ["AP-ERR-01", "AP-ERR-03"],
    /// A resource that is not there is a server error.
    MissingIsServerError => ["AP-WS-04", "AP-AUTHZ-02", "AP-AUTHZ-03", "WALK-03"],
    /// One operation answers everybody.
    OperationUnguarded => ["WALK-01"],
    /// One operation does not look when a key ends.
    ExpiredKeyTaken => ["WALK-04"],
    /// One operation asks for no scope.
    ScopeUnasked => ["WALK-02"],
    /// One operation says that something is there, though not for this caller.
    ForeignBranchesShown => ["WALK-03"],
    /// Outcomes are sent as plain text.
    JsonAsText => ["AP-SDK-08"],
    /// `Idempotency-Key` is ignored.
    KeysIgnored => [
        "AP-IDEM-03", "AP-IDEM-04", "AP-IDEM-05", "AP-IDEM-06", "AP-IDEM-07", "AP-IDEM-08", "SUITE-15", "SUITE-16",
    ],
    /// Of several keys the first counts.
    FirstKeyCounts => ["AP-IDEM-08"],
    /// Streams are sent as plain text.
    StreamAsText => ["AP-SSE-01", "AP-SSE-11"],
    /// The `id` line is not the event's id.
    FrameIdDiffers => ["AP-SSE-02"],
    /// Streams use carriage returns.
    CarriageReturns => ["AP-SSE-03", "SUITE-11", "SUITE-12"],
    /// Streams begin with a comment.
    CommentFirst => ["AP-SSE-03", "AP-SSE-09", "SUITE-11", "SUITE-12"],
    /// `Last-Event-ID` is ignored.
    CursorIgnored => ["AP-SSE-05", "AP-SSE-06"],
    /// A resumed stream sends its first frame twice.
    FrameRepeated => ["AP-SSE-05"],
    /// Every hundredth frame is lost.
    FramesLost => ["AP-SSE-07"],
    /// A finished task's stream stays open.
    StreamNeverEnds => ["AP-SSE-06", "AP-SSE-10"],
    /// History is marked as live.
    HistoryAsLive => ["AP-SSE-12", "AP-RPL-14"],
    /// Receipts state another hash than theirs.
    ReceiptHashWrong => ["AP-RCPT-03", "AP-RCPT-08"],
    /// A member of receipts was changed after they were hashed.
    ReceiptMemberAltered => ["AP-RCPT-03", "AP-RCPT-08", "AP-RPL-20"],
    /// Receipts lack a required member.
    ReceiptMemberMissing => ["AP-RCPT-01", "AP-RCPT-03", "AP-RCPT-08", "AP-RPL-20"],
    /// The signature of receipts is another.
    ReceiptSignatureWrong => ["AP-RCPT-08"],
    /// Receipts name no predecessor.
    ReceiptChainBroken => ["AP-RCPT-03", "AP-RCPT-08", "AP-RPL-20"],
    /// Proofs do not lead to their root.
    InclusionPathWrong => ["AP-RCPT-08"],
    /// Every receipt is called valid.
    EveryReceiptValid => ["AP-RCPT-07", "AP-RCPT-08", "AP-RCPT-14"],
    /// A receipt that nobody signed is called valid.
    UnsignedReceiptValid => ["AP-RCPT-08"],
    /// No receipt is called valid.
    NoReceiptValid => ["AP-RCPT-07", "AP-RCPT-08", "AP-RCPT-11", "AP-RCPT-14"],
    /// Verdicts do not say when.
    CheckedAtMissing => ["AP-RCPT-07", "SUITE-23"],
    /// Receipts do not say their format.
    ReceiptFormatMissing => ["AP-RCPT-06", "SUITE-22"],
    /// Tasks do not name their receipt.
    TaskReceiptHidden => ["AP-RCPT-04", "AP-PERS-05", "AP-REST-04"],
    /// No receipt is listed.
    ReceiptsListedLate => ["AP-LIFE-10", "AP-RCPT-13", "SUITE-22"],
    /// Event lists lack verifications.
    VerificationsSkipped => ["AP-RCPT-12"],
    /// A redaction has no reason.
    RedactionUnexplained => ["AP-RCPT-09"],
    /// The digest of the event log is another.
    MaterialDigestWrong => ["AP-RCPT-10"],
    /// The bare receipt is not written canonically.
    BareReceiptSpaced => ["AP-RCPT-02"],
    /// The archive form has other content.
    ArchiveDamaged => ["AP-RCPT-11"],
    /// The media type of the archive form does not name its schema.
    ArchiveUnnamed => ["AP-RCPT-11"],
    /// Personas do not say how far they may go.
    PersonaTierMissing => ["AP-PERS-01"],
    /// A persona that is read again has lost its tools.
    PersonaToolsForgotten => ["AP-PERS-02"],
    /// A task names a receipt although its persona leaves none.
    ReceiptInvented => ["AP-PERS-05"],
    /// Replays do not say what they replay.
    ReplayParentHidden => ["AP-RPL-01"],
    /// Replays claim another session.
    ReplayElsewhere => ["AP-RPL-02"],
    /// Event lists lack the end of replays.
    ReplayEndSkipped => ["AP-RPL-03"],
    /// Whatever is asked of a replay is accepted.
    ReplayTakesAnything => [
        "AP-RPL-04", "AP-RPL-05", "AP-RPL-07", "AP-RPL-09", "AP-RPL-10", "AP-RPL-11", "AP-RPL-17", "AP-RPL-22", "WALK-03",
    ],
    /// The words of outcomes differ from read to read.
    OutcomeWordsChange => ["AP-RPL-05", "AP-RPL-06", "AP-RPL-17", "AP-RPL-21"],
    /// Events do not name their effect.
    EffectKeysHidden => ["AP-RPL-08"],
    /// Event lists do not mark what was replayed.
    ReplayMarksLost => ["AP-RPL-12", "AP-RPL-13"],
    /// Streams do not mark what was replayed.
    StreamMarksLost => ["AP-RPL-14"],
    /// Receipts of replays list no deltas.
    DeltasHidden => ["AP-RPL-15", "AP-RPL-21"],
    /// Discovery does not say how long history lasts.
    RetentionHidden => ["AP-RPL-19"],
    /// Receipts of replays differ from read to read.
    ReplayReceiptsUnstable => ["AP-RPL-20"],
    /// A session's replay never says that it is done.
    SessionReplaySilent => ["AP-RPL-24"],
    /// Replay of an unfinished task is a bad request.
    UnfinishedReplayIsBadRequest => ["AP-RPL-25"],
    /// A persona that is not there makes a bad request.
    UnknownPersonaIsBadRequest => ["AP-PERS-07"],
}

impl Fault {
    /// Returns the ids that must be `FAIL` because of the fault, sorted.
    ///
    /// The list assumes a run with a restart command and a second key that is limited to another workspace. An id that
    /// is not `ok` without the fault cannot notice it: compare with a run through a proxy without a fault.
    pub fn fails(self) -> Vec<&'static str> {
        let mut ids = self.direct().to_vec();
        let binding = |id: &str| {
            rows().any(|row| row.id == id && matches!(row.level, Level::Must | Level::MustNot))
        };
        let breaks = |section: &str| ids.iter().any(|id| id.starts_with(section) && binding(id));
        // Three ids stand for whole sections.
        let derived: &[&str] = if breaks("AP-REST-") || breaks("AP-SSE-") {
            &["AP-CARD-07", "AP-CONF-01", "AP-REST-06"]
        } else if breaks("AP-RCPT-") || breaks("AP-RPL-") {
            &["AP-CONF-01"]
        } else {
            &[]
        };
        ids.extend(derived);
        ids.sort_unstable();
        ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_names_ids_of_the_registry() {
        for fault in Fault::ALL {
            for id in fault.fails() {
                assert!(rows().any(|row| row.id == id), "{fault:?} names {id}");
            }
        }
    }

    #[test]
    fn a_broken_section_breaks_the_claim_of_the_transport() {
        assert_eq!(
            Fault::HistoryAsLive.fails(),
            [
                "AP-CARD-07",
                "AP-CONF-01",
                "AP-REST-06",
                "AP-RPL-14",
                "AP-SSE-12"
            ]
        );
        assert_eq!(Fault::FrameRepeated.fails(), ["AP-SSE-05"]);
        assert_eq!(
            Fault::ReceiptSignatureWrong.fails(),
            ["AP-CONF-01", "AP-RCPT-08"]
        );
        assert_eq!(Fault::ArchiveDamaged.fails(), ["AP-RCPT-11"]);
    }
}
