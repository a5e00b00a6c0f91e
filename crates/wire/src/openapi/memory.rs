//! The operations of the memory protocol (Akashik 0.1.0) and the views beside them, each for the default field and for one
//! that the path names. They have no protocol version in a header and errors of their own shape, so that they are not part
//! of the description; what they ask of their callers stands here like that of all others.

use super::operation::{Body, Operation, Protocol, ResponseKind::*};
use crate::access::WorkspaceRule::Filtered;
use crate::access::{Access, needs_one_of};

/// Which of them a message needs is for the field to say: the key's scopes are the ceiling of its authority.
const ANY: Access = needs_one_of(&["field:read", "field:write", "field:admin"], Filtered);

macro_rules! memory_operations {
    ($($method:literal $path:literal $status:literal $id:literal $named:literal $gives:expr;)*) => {
        pub(super) const OPERATIONS: &[Operation] = &[
            Operation::new("post", "/mcp", "callTools", "Memory", AnyObject, ANY)
                .accepts(Body::Required("Message"))
                .protocol(Protocol::Mcp),
            $(
                operation($method, concat!("/akashik/v1/", $path), $id, $status, $gives),
                operation(
                    $method,
                    concat!("/akashik/fields/{field_id}/v1/", $path),
                    $named,
                    $status,
                    $gives,
                ),
            )*
        ];
    };
}

const fn operation(
    method: &'static str,
    path: &'static str,
    id: &'static str,
    status: u16,
    gives: super::operation::ResponseKind,
) -> Operation {
    let row = Operation::new(method, path, id, "Memory", gives, ANY)
        .with_status(status)
        .protocol(Protocol::Memory);
    match method.as_bytes() {
        b"post" => row.accepts(Body::Required("Envelope")),
        _ => row.query(&["target_type", "target_id", "format", "agent_id"]),
    }
}

memory_operations! {
    "post" "register"     201 "registerAgent"    "registerAgentInField"   AnyObject;
    "post" "deregister"   200 "deregisterAgent"  "deregisterAgentInField" AnyObject;
    "post" "record"       201 "recordUnit"       "recordUnitInField"      AnyObject;
    "post" "attune"       200 "attune"           "attuneInField"          AnyObject;
    "post" "detect"       200 "detectConflicts"  "detectConflictsInField" AnyObject;
    "post" "merge"        200 "mergeConflict"    "mergeConflictInField"   AnyObject;
    "post" "replay"       200 "replayReasons"    "replayReasonsInField"   AnyObject;
    "post" "compact"      200 "compactField"     "compactFieldByName"     AnyObject;
    "post" "subscribe"    200 "subscribeToField" "subscribeToFieldByName" AnyObject;
    "post" "handoff"      200 "handOffTask"      "handOffTaskInField"     AnyObject;
    "post" "coordinate"   200 "coordinateTask"   "coordinateTaskInField"  AnyObject;
    "post" "session"      200 "changeSession"    "changeSessionInField"   AnyObject;
    "post" "field/retract" 200 "retractUnit"     "retractUnitInField"     AnyObject;
    "get"  "field/status" 200 "getFieldStatus"   "getFieldStatusByName"   AnyObject;
    "get"  "field/graph"  200 "getReasonGraph"   "getReasonGraphInField"  PlainText;
    "get"  "notifications" 200 "streamNotifications" "streamNotificationsOfField" Stream;
    "get"  "notifications/socket" 101 "openNotificationSocket" "openNotificationSocketOfField" Stream;
    "get"  "agents"       200 "listFieldAgents"  "listFieldAgentsByName"  AnyObject;
    "get"  "conflicts"    200 "listConflicts"    "listConflictsInField"   AnyObject;
}
