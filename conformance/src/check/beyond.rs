//! Groups without checks of their own: WebSocket, OAuth, and the claim of a level.

use crate::miss::Checked;
use crate::registry::{Check, Row, row};
use crate::report::Outcome;
use crate::wire::Claims;

const ISSUER: Check = Check::Elsewhere("the server names no token issuer this runner could use");
const SOCKET: Check = Check::Claimed("websocket");

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
