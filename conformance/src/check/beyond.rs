//! Groups without checks of their own: WebSocket, OAuth, replay, and the claim of a level.

use crate::miss::Checked;
use crate::registry::{Check, Row, row};
use crate::report::Outcome;
use crate::wire::Claims;

const ISSUER: Check = Check::Elsewhere("the server names no token issuer this runner could use");
const SOCKET: Check = Check::Claimed("websocket");
const REPLAY: Check = Check::Claimed("replay");

pub(crate) const ROWS: &[Row] = &[
    row!("AP-WSK-01", M, "WebSocket uses TLS except on loopback", = SOCKET),
    row!("AP-WSK-02", M, "frames are JSON objects", = SOCKET),
    row!("AP-WSK-03", M, "clients send user messages", = SOCKET),
    row!("AP-WSK-04", M, "clients cancel tasks", = SOCKET),
    row!("AP-WSK-05", M, "clients truncate sessions", = SOCKET),
    row!("AP-WSK-06", M, "the server sends event frames", = SOCKET),
    row!("AP-WSK-07", M, "the server asks for input and authorization", = SOCKET),
    row!("AP-WSK-08", O, "host requests go to clients that announced them", = SOCKET),
    row!("AP-WSK-09", M, "a cursor resumes and marks what is replayed", = SOCKET),
    row!("AP-WSK-10", S, "pings detect a broken link", = SOCKET),
    row!("AP-WSK-11", O, "command frames may carry an idempotency key", = SOCKET),
    row!("AP-WSK-12", M, "frames are authorized like REST", = SOCKET),
    row!("AP-WSK-13", M, "the stream paths upgrade", = SOCKET),
    row!("AP-WSK-14", M, "clients without headers authenticate in the protocol or the first frame", = SOCKET),
    row!("AP-OAUTH-01", O, "tokens of client credentials are accepted", = ISSUER),
    row!("AP-OAUTH-02", M, "issuer, audience, expiry and scopes are validated", = ISSUER),
    row!("AP-OAUTH-03", S, "scopes map to actions", = ISSUER),
];

pub(crate) const REPLAYS: &[Row] = &[
    row!("AP-RPL-01", M, "replay makes a new task from the log", = REPLAY),
    row!("AP-RPL-02", M, "a replay stays in session and workspace", = REPLAY),
    row!("AP-RPL-03", M, "a replay has the events of a task", = REPLAY),
    row!("AP-RPL-04", M, "the default mode is exact", = REPLAY),
    row!("AP-RPL-05", M, "exact uses only recorded material", = REPLAY),
    row!("AP-RPL-06", M, "overrides replace what they name", = REPLAY),
    row!("AP-RPL-07", M, "a checkpoint is restored before later entries", = REPLAY),
    row!("AP-RPL-08", S, "override keys are deterministic", = REPLAY),
    row!("AP-RPL-09", M, "override kinds are the listed ones", = REPLAY),
    row!("AP-RPL-10", M, "an override gives a value or an artifact", = REPLAY),
    row!("AP-RPL-11", S, "secret overrides are receipt-only", = REPLAY),
    row!("AP-RPL-12", M, "the source log is read in order", = REPLAY),
    row!("AP-RPL-13", S, "replayed events name their origin", = REPLAY),
    row!("AP-RPL-14", M, "replayed stream events are marked", = REPLAY),
    row!("AP-RPL-15", M, "each applied override is a receipt delta", = REPLAY),
    row!("AP-RPL-16", N, "replay receipts show no secrets", = REPLAY),
    row!("AP-RPL-17", N, "nothing is refreshed silently", = REPLAY),
    row!("AP-RPL-18", M, "a failure names what was unavailable", = REPLAY),
    row!("AP-RPL-19", M, "history lasts as long as advertised", = REPLAY),
    row!("AP-RPL-20", M, "equal replays give equal receipt bytes", = REPLAY),
    row!("AP-RPL-21", M, "the replay fixture works", = REPLAY),
    row!("AP-RPL-22", M, "override digests are checked", = REPLAY),
    row!("AP-RPL-23", M, "event ranges survive a restart", = super::event::AFTER_RESTART),
    row!("AP-RPL-24", M, "sessions are replayed too", = REPLAY),
    row!("AP-RPL-25", M, "an unfinished task is not replayed", = REPLAY),
];

pub(crate) const CONFORMANCE: &[Row] = &[
    row!("AP-CONF-01", M, "claimed capabilities are those that pass", = Check::Derived(claims)),
    row!("AP-CONF-02", S, "all transports leave the same log", = Check::Elsewhere("see conformance/coverage.md")),
];

fn claims(claims: Claims, outcomes: &[Outcome]) -> Checked {
    let mut sections = vec!["AP-REST-", "AP-SSE-"];
    for (claimed, section) in [
        (claims.websocket, "AP-WSK-"),
        (claims.receipts, "AP-RCPT-"),
        (claims.replay, "AP-RPL-"),
    ] {
        if claimed {
            sections.push(section);
        }
    }
    super::card::claimed(&sections, outcomes)
}
