//! One operation, and its description.

use canon::{Map, Value};
use serde_json::json;

use super::governed::is_governed_path;
use super::schema::reference;
use crate::access::Access;
use crate::decode::Decode;
use crate::{PROTOCOL_VERSION, VERSION_HEADER};

/// Makes the constant `OPERATIONS` of rows, each closed by `;`:
///
/// ```text
/// method "path" id tag gives access.accepts(…).decodes(…)…;
/// ```
///
/// The id and the tag are those of the description, `gives` is a [`ResponseKind`], `access` what `crate::access` makes, and what
/// follows are the methods of [`Operation`] for whatever the row has beside that.
macro_rules! operations {
    ($(
        $method:ident $path:literal $id:ident $tag:ident
        $gives:ident $(($($shape:tt)*))? $access:ident $(($($needed:tt)*))?
        $(.$more:ident($($value:tt)*))*;
    )*) => {
        pub(super) const OPERATIONS: &[$crate::openapi::Operation] = &[$(
            $crate::openapi::Operation::new(
                stringify!($method),
                $path,
                stringify!($id),
                stringify!($tag),
                $gives $(($($shape)*))?,
                $access $(($($needed)*))?,
            )
            $(.$more($($value)*))*,
        )*];
    };
}

pub(super) use operations;

/// A method of a path.
#[derive(Debug)]
pub struct Operation {
    /// The method, in lower case.
    pub method: &'static str,
    /// The path, with its parameters in braces.
    pub path: &'static str,
    /// Its name.
    pub id: &'static str,
    /// Its family.
    pub tag: &'static str,
    /// Parameters of the query.
    pub query: &'static [&'static str],
    /// What it takes.
    pub body: Body,
    /// The status of success.
    pub status: u16,
    /// Other statuses of success.
    pub also: &'static [u16],
    /// Statuses with which it says no beside those that its kind of operation has.
    pub refuses: &'static [u16],
    /// What it gives.
    pub gives: ResponseKind,
    /// The media type of JSON that it gives.
    pub media_type: &'static str,
    /// Other media types, for those who ask for them.
    pub on_request: &'static [&'static str],
    /// What it asks of its caller.
    pub access: Access,
    /// Reads the request that the engine carries out; none where the operation is no such request, or takes bytes.
    pub decode: Option<Decode>,
    /// The protocol that it belongs to.
    pub protocol: Protocol,
}

/// The protocols that the server speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// The Agents Protocol, and what belongs to the server itself: all of it is described.
    Agents,
    /// The memory protocol: no version in a header, and errors of its own shape.
    Memory,
    /// MCP: it says by itself which tools there are.
    Mcp,
}

/// What an operation takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body {
    /// Nothing.
    Absent,
    /// A JSON object of this schema.
    Required(&'static str),
    /// The same, or nothing.
    Optional(&'static str),
    /// Bytes as they are.
    Octets,
}

/// What an operation gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponseKind {
    /// JSON of this schema.
    Json(&'static str),
    /// JSON of one of these schemas.
    JsonAnyOf(&'static [&'static str]),
    /// Any JSON object.
    AnyObject,
    /// Server-sent events.
    Stream,
    /// Bytes of the type they were stored with.
    Bytes,
    /// Text.
    PlainText,
    /// A page for people.
    Html,
    /// Nothing.
    Nothing,
}

impl Operation {
    pub(super) const fn new(
        method: &'static str,
        path: &'static str,
        id: &'static str,
        tag: &'static str,
        gives: ResponseKind,
        access: Access,
    ) -> Self {
        Self {
            method,
            path,
            id,
            tag,
            query: &[],
            body: Body::Absent,
            status: 200,
            also: &[],
            refuses: &[],
            gives,
            media_type: "application/json",
            on_request: &[],
            access,
            decode: None,
            protocol: Protocol::Agents,
        }
    }

    pub(super) const fn protocol(mut self, protocol: Protocol) -> Self {
        self.protocol = protocol;
        self
    }

    pub(super) const fn of_type(mut self, media_type: &'static str) -> Self {
        self.media_type = media_type;
        self
    }

    pub(super) const fn or_types(mut self, on_request: &'static [&'static str]) -> Self {
        self.on_request = on_request;
        self
    }

    pub(super) const fn query(mut self, query: &'static [&'static str]) -> Self {
        self.query = query;
        self
    }

    pub(super) const fn accepts(mut self, body: Body) -> Self {
        self.body = body;
        self
    }

    pub(super) const fn decodes(mut self, decode: Decode) -> Self {
        self.decode = Some(decode);
        self
    }

    pub(super) const fn with_status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }

    pub(super) const fn or_status(mut self, also: &'static [u16]) -> Self {
        self.also = also;
        self
    }

    pub(super) const fn may_refuse(mut self, refuses: &'static [u16]) -> Self {
        self.refuses = refuses;
        self
    }

    /// True when neither version nor credential is asked for.
    pub const fn public(&self) -> bool {
        !self.access.key
    }

    /// Returns the parameter of the path that names what the operation is about.
    pub fn subject(&self) -> Option<&'static str> {
        let mut parameters = self.path.split('/').filter_map(|segment| {
            let name = segment.strip_prefix('{')?;
            name.strip_suffix('}')
        });
        parameters.next()
    }

    /// True when it answers with a page of a list.
    pub fn is_list(&self) -> bool {
        matches!(self.gives, ResponseKind::Json(name) if name.ends_with("List")) && !self.writes()
    }

    /// True when it changes something.
    pub fn writes(&self) -> bool {
        self.method != "get"
    }

    pub(super) fn describe(&self, sizes: &Sizes) -> Value {
        let mut operation = json!({
            "operationId": self.id,
            "tags": [self.tag],
            "summary": summary(self.id),
            "parameters": self.parameters(),
            "responses": self.responses(),
        });
        if let Value::Object(members) = &mut operation {
            if self.public() {
                members.insert("security".to_owned(), json!([]));
            } else {
                let needed = json!({"all_of": self.access.all_of, "one_of": self.access.one_of});
                members.insert("x-scopes".to_owned(), needed);
            }
            if let Some(body) = self.request_body(sizes) {
                members.insert("requestBody".to_owned(), body);
            }
        }
        operation
    }

    fn parameters(&self) -> Vec<Value> {
        let refer = |name: &str| json!({"$ref": format!("#/components/parameters/{name}")});
        let in_path = self.path.split('/').filter_map(|segment| {
            let name = segment.strip_prefix('{')?.strip_suffix('}')?;
            Some(
                json!({"name": name, "in": "path", "required": true, "schema": {"type": "string", "maxLength": domain::ID_BYTES_MAX}}),
            )
        });
        let mut parameters: Vec<Value> = in_path.collect();
        // One name, two meanings: a receipt has views of its own.
        let of_events = self.is_list();
        parameters.extend(self.query.iter().map(|name| match *name {
            "view" if of_events => refer("event_view"),
            name => refer(name),
        }));
        if !self.public() && !is_governed_path(self.path) {
            parameters.push(refer("protocol_version"));
        }
        if self.writes() {
            parameters.push(refer("idempotency_key"));
        }
        if self.gives == ResponseKind::Stream {
            parameters.push(refer("last_event_id"));
        }
        if self.status == 202 {
            parameters.push(refer("prefer"));
        }
        parameters
    }

    fn responses(&self) -> Value {
        let mut content = match self.gives {
            ResponseKind::Json(name) => json!({self.media_type: {"schema": reference(name)}}),
            ResponseKind::JsonAnyOf(names) => {
                let schemas: Vec<Value> = names.iter().map(|name| reference(name)).collect();
                json!({self.media_type: {"schema": {"anyOf": schemas}}})
            }
            ResponseKind::AnyObject => json!({self.media_type: {"schema": {"type": "object"}}}),
            ResponseKind::Stream => {
                json!({"text/event-stream": {"schema": reference("EventStream")}})
            }
            ResponseKind::Bytes => json!({"application/octet-stream": {}, "*/*": {}}),
            ResponseKind::PlainText => json!({"text/plain": {"schema": {"type": "string"}}}),
            ResponseKind::Html => json!({"text/html": {"schema": {"type": "string"}}}),
            ResponseKind::Nothing => json!({}),
        };
        if let Value::Object(content) = &mut content {
            let others = self.on_request.iter();
            content.extend(others.map(|name| ((*name).to_owned(), json!({}))));
        }
        let mut success = json!({
            "description": "Carried out",
            "headers": {"x-request-id": {"schema": {"type": "string"}}},
        });
        if let (Value::Object(success), false) = (&mut success, self.gives == ResponseKind::Nothing)
        {
            success.insert("content".to_owned(), content);
        }
        let mut responses = Map::new();
        for status in self.also.iter().chain([&self.status]) {
            responses.insert(status.to_string(), success.clone());
        }
        let shape = match is_governed_path(self.path) {
            true => "Problem",
            false => "Error",
        };
        let refusal = json!({"$ref": format!("#/components/responses/{shape}")});
        for status in self.refusals() {
            responses.insert(status.to_string(), refusal.clone());
        }
        responses.insert("default".to_owned(), refusal);
        Value::Object(responses)
    }

    /// Returns the statuses with which it says no. What cannot be read as a request at all (408, 414, 431, 501, 505) has no
    /// operation, and stands under `default`.
    fn refusals(&self) -> Vec<u16> {
        let mut statuses = vec![400, 421, 429, 500, 503, 504];
        statuses.extend(self.refuses);
        if !self.public() {
            statuses.extend([401, 403]);
            // What a session that is over answers with, or a client of another version.
            statuses.push(if is_governed_path(self.path) {
                410
            } else {
                426
            });
        }
        // What the path, the query or the body names may not be there.
        if self.path.contains('{') || !self.query.is_empty() || self.body != Body::Absent {
            statuses.push(404);
        }
        // A position in the log may be that of another log, or gone.
        if self.query.contains(&"after_event_id") {
            statuses.push(410);
        }
        if self.writes() {
            statuses.extend([409, 422]);
        }
        if self.body != Body::Absent {
            statuses.extend([413, 415]);
        }
        statuses.retain(|status| *status != self.status && !self.also.contains(status));
        statuses
    }

    fn request_body(&self, sizes: &Sizes) -> Option<Value> {
        let json_of = |name: &str, required: bool| json!({"required": required, "content": {"application/json": {"schema": reference(name)}}});
        let mut body = match self.body {
            Body::Absent => None,
            Body::Required(name) => Some(json_of(name, true)),
            Body::Optional(name) => Some(json_of(name, false)),
            Body::Octets => Some(json!({
                "required": true,
                "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
            })),
        };
        let bytes_max = match (self.body, self.path) {
            (Body::Octets, "/v1/tasks/import") => sizes.bundle_bytes_max,
            (Body::Octets, _) => sizes.artifact_bytes_max,
            (Body::Absent | Body::Required(_) | Body::Optional(_), _) => sizes.body_bytes_max,
        };
        if let Some(Value::Object(body)) = &mut body {
            body.insert(BODY_BYTES.to_owned(), json!(bytes_max));
            let told = format!("At most {bytes_max} bytes; more is 413");
            body.insert("description".to_owned(), told.into());
        }
        body
    }
}

/// The member that bounds the bytes of a body.
pub(super) const BODY_BYTES: &str = "x-bytes-max";

/// How much a server takes, by its configuration.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// Of a JSON body.
    pub body_bytes_max: usize,
    /// Of an Artifact's content.
    pub artifact_bytes_max: usize,
    /// Of a bundle that is taken over.
    pub bundle_bytes_max: usize,
    /// Messages that a Session may begin with.
    pub initial_messages_max: usize,
}

/// Turns `listTasks` into `List tasks`.
fn summary(id: &str) -> String {
    let mut words = String::new();
    for (index, letter) in id.char_indices() {
        match (index, letter.is_ascii_uppercase()) {
            (0, _) => words.push(letter.to_ascii_uppercase()),
            (_, true) => {
                words.push(' ');
                words.push(letter.to_ascii_lowercase());
            }
            (_, false) => words.push(letter),
        }
    }
    words
}

/// Returns the parameters that operations share.
pub(super) fn parameters() -> Value {
    let query = |name: &str, schema: Value, description: &str| {
        (
            name.to_owned(),
            json!({"name": name, "in": "query", "required": false, "schema": schema, "description": description}),
        )
    };
    let needed = |name: &str, description: &str| {
        (
            name.to_owned(),
            json!({"name": name, "in": "query", "required": true, "schema": {"type": "string"}, "description": description}),
        )
    };
    let header = |key: &str, name: &str, required: bool, schema: Value, description: &str| {
        (
            key.to_owned(),
            json!({"name": name, "in": "header", "required": required, "schema": schema, "description": description}),
        )
    };
    let text = || json!({"type": "string"});
    let id = || json!({"type": "string", "maxLength": domain::ID_BYTES_MAX});
    let parameters: Map<String, Value> = [
        query(
            "limit",
            json!({"type": "integer", "minimum": 1, "maximum": 200, "default": 50}),
            "Maximum number of items",
        ),
        query(
            "cursor",
            text(),
            "Where to continue: `next_cursor` of an earlier page",
        ),
        query("after_event_id", text(), "Only events after this one in the order of the list"),
        query("after", text(), "The same as `after_event_id`"),
        query("workspace_id", id(), "Only those of this workspace"),
        query("session_id", id(), "Only those of this session"),
        query("task_id", id(), "Only those of this task"),
        query("tenant_id", text(), "Only those of this tenant"),
        query(
            "order",
            json!({"type": "string", "enum": ["asc", "desc"], "default": "asc"}),
            "`desc` for the newest first; the same for every page of a list",
        ),
        query(
            "status",
            text(),
            "Only those in one of these states, separated by commas; a page may be short and still name the next",
        ),
        query("persona_id", id(), "Only those of this persona"),
        query("workflow", text(), "Only those of this workflow"),
        query(
            "created_after",
            json!({"type": "string", "format": "date-time"}),
            "Only those created at this time or later",
        ),
        query(
            "created_before",
            json!({"type": "string", "format": "date-time"}),
            "Only those created before this time",
        ),
        (
            "metadata".to_owned(),
            json!({
                "name": "metadata.{key}", "in": "query", "required": false, "schema": text(),
                "description": "Only those whose metadata has this value under `key`, written `metadata.ticket=OPS-7`; repeat for more",
            }),
        ),
        (
            "event_view".to_owned(),
            json!({
                "name": "view", "in": "query", "required": false,
                "schema": {"type": "string", "enum": ["stored", "compact"], "default": "stored"},
                "description": "`compact` for events without their content: of the payload only the words that say what it is about",
            }),
        ),
        query("actor", text(), "Only those of this actor"),
        query("outcome", text(), "Only those with this outcome"),
        query(
            "include",
            json!({"type": "string", "enum": ["pending"]}),
            "`pending` for the calls whose execution is not reported",
        ),
        query(
            "in_workspace",
            id(),
            "The workspace of the session, for callers that see several",
        ),
        query(
            "wait",
            json!({"type": "integer", "minimum": 0, "maximum": 60}),
            "How many seconds to wait for people's decision",
        ),
        needed("agent", "The agent whose rules are asked for"),
        query(
            "environment",
            text(),
            "Where the agent runs; the rules are the same everywhere",
        ),
        query("path", text(), "A path relative to the workspace's root"),
        query(
            "trust_anchor",
            text(),
            "A key, by id or thumbprint, that must have signed",
        ),
        query(
            "at_time",
            json!({"type": "string", "format": "date-time"}),
            "The time at which keys must have been valid; by default the time of issue",
        ),
        query(
            "integrity_only",
            json!({"type": "boolean"}),
            "Ask only whether the document is whole, not who signed it; the answer is in `details.whole`, and `valid` stays false",
        ),
        query(
            "view",
            json!({"type": "string", "enum": ["wire"]}),
            "`wire` for the bare receipt",
        ),
        needed("from", "The smaller head: its size or its id"),
        needed("to", "The larger head: its size or its id"),
        needed("other", "The task to compare with"),
        query(
            "step",
            json!({"type": "integer", "minimum": 1}),
            "Only the step with this number, in full",
        ),
        query(
            "member",
            text(),
            "For the id of an event: which member of its payload, where several are stored separately",
        ),
        header(
            "protocol_version",
            VERSION_HEADER,
            true,
            json!({"type": "string", "enum": [PROTOCOL_VERSION]}),
            "The version of the protocol that the client speaks",
        ),
        header(
            "idempotency_key",
            "Idempotency-Key",
            false,
            json!({"type": "string", "minLength": 1, "maxLength": 255}),
            "A repeated request with the same key gets the first answer and does nothing more",
        ),
        header(
            "last_event_id",
            "Last-Event-ID",
            false,
            text(),
            "The last event that a reader has seen; wins over the query",
        ),
        header(
            "prefer",
            "Prefer",
            false,
            text(),
            "`respond-async` answers as soon as the task works",
        ),
    ]
    .into_iter()
    .collect();
    Value::Object(parameters)
}
