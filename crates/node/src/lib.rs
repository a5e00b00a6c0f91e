//! The governed session as a Node addon.
//!
//! `contracts::bytes`, function by function: JSON and bytes in, JSON and bytes out. Nothing is decided here. A panic
//! becomes an error of the call; the package takes every error from here as a fault of governance and fails closed.

use contracts::bytes::{self, CompiledFiles, Handle};
use contracts::wire::{Endpoint, endpoint};
use napi::bindgen_prelude::Uint8Array;
use napi_derive::napi;

/// Many small values are made and dropped in a call.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// What a function answers.
#[napi(object)]
#[expect(missing_debug_implementations, reason = "bytes of Node have none")]
pub struct Output {
    /// A JSON object.
    pub json: String,
    /// Bytes to send or to release.
    pub body: Option<Uint8Array>,
    /// True where these are the bytes that were given: they are not handed over again.
    pub is_unchanged: bool,
}

impl Output {
    fn beside(output: bytes::Output, given: &[u8]) -> Self {
        let is_unchanged = output.body.as_deref() == Some(given);
        let body = output.body.filter(|_| !is_unchanged);
        let output = bytes::Output { body, ..output };
        Self {
            is_unchanged,
            ..Self::from(output)
        }
    }
}

impl From<bytes::Output> for Output {
    fn from(output: bytes::Output) -> Self {
        Self {
            is_unchanged: false,
            // The JSON is ours; should it ever not be text, no reader accepts what stands here.
            json: String::from_utf8(output.json).unwrap_or_default(),
            body: output.body.map(Uint8Array::new),
        }
    }
}

/// Returns the version that the package must have.
#[napi(catch_unwind)]
pub fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// Tells what happens to a request: the name of a wire format, `passed` or `refused`.
#[napi(catch_unwind)]
pub fn classify(provider: String, method: String, path: String) -> &'static str {
    match endpoint(&provider, &method, &path) {
        Endpoint::Judged(wire) => wire.as_str(),
        Endpoint::Passed => "passed",
        Endpoint::Refused => "refused",
    }
}

/// A session, and the answer to its opening. Without a session the answer says why.
#[napi]
#[derive(Debug)]
pub struct Session {
    opened: String,
    handle: Option<Handle>,
}

#[napi]
impl Session {
    /// Compiles files and opens a session over them; without files only `mode: log-only` can be opened.
    #[napi(constructor, catch_unwind)]
    pub fn new(files: Option<String>, options: String, now: i64) -> Self {
        let compiled = match files {
            None => None,
            Some(files) => match bytes::compile(files.as_bytes()) {
                (_, Some(compiled)) => Some(compiled),
                (output, None) => return Self::refused(output),
            },
        };
        let compiled: Option<&CompiledFiles> = compiled.as_ref();
        let (output, handle) = bytes::open(compiled, options.as_bytes(), now);
        Self {
            opened: Output::from(output).json,
            handle,
        }
    }

    fn refused(output: bytes::Output) -> Self {
        Self {
            opened: Output::from(output).json,
            handle: None,
        }
    }

    fn with(&mut self, act: impl FnOnce(&mut Handle) -> bytes::Output) -> napi::Result<Output> {
        self.opened_session().map(|handle| act(handle).into())
    }

    fn opened_session(&mut self) -> napi::Result<&mut Handle> {
        let closed = || napi::Error::from_reason("the session was not opened");
        self.handle.as_mut().ok_or_else(closed)
    }

    /// The answer to the opening.
    #[napi(getter, catch_unwind)]
    pub fn opened(&self) -> String {
        self.opened.clone()
    }

    /// Plans a request.
    #[napi(catch_unwind)]
    pub fn plan(&mut self, wire: String, request: Uint8Array, now: i64) -> napi::Result<Output> {
        let session = self.opened_session()?;
        let output = bytes::plan(session, &wire, &request, now);
        Ok(Output::beside(output, &request))
    }

    /// Judges a response.
    #[napi(catch_unwind)]
    pub fn judge(
        &mut self,
        attempt: i64,
        response: Uint8Array,
        is_sse: bool,
        now: i64,
    ) -> napi::Result<Output> {
        let session = self.opened_session()?;
        let output = bytes::judge(session, number(attempt), &response, is_sse, now);
        Ok(Output::beside(output, &response))
    }

    /// Takes the answer of a person.
    #[napi(catch_unwind)]
    pub fn answer(
        &mut self,
        checkpoint_id: String,
        answer: String,
        now: i64,
    ) -> napi::Result<Output> {
        self.with(|handle| bytes::answer(handle, &checkpoint_id, answer.as_bytes(), now))
    }

    /// Takes note that a request brought no response.
    #[napi(catch_unwind)]
    pub fn failed(&mut self, attempt: i64, kind: String, now: i64) -> napi::Result<Output> {
        self.with(|handle| bytes::failed(handle, number(attempt), &kind, now))
    }

    /// Allows an execution.
    #[napi(catch_unwind)]
    pub fn execute(
        &mut self,
        tool: String,
        arguments: String,
        call_id: Option<String>,
        now: i64,
    ) -> napi::Result<Output> {
        let arguments = arguments.as_bytes();
        self.with(|handle| bytes::execute(handle, &tool, arguments, call_id.as_deref(), now))
    }

    /// Reports how an execution ended.
    #[napi(catch_unwind)]
    pub fn settle(&mut self, ticket: i64, ended: String) -> napi::Result<Output> {
        self.with(|handle| bytes::settle(handle, number(ticket), ended.as_bytes()))
    }

    /// Acts on the session.
    #[napi(catch_unwind)]
    pub fn control(&mut self, kind: String, value: String, now: i64) -> napi::Result<Output> {
        self.with(|handle| bytes::control(handle, &kind, value.as_bytes(), now))
    }

    /// Reads something of the session.
    #[napi(catch_unwind)]
    pub fn read(&mut self, what: String, from: i64) -> napi::Result<Output> {
        self.with(|handle| bytes::read(handle, &what, number(from)))
    }
}

/// A number that JavaScript holds. What is not one names nothing.
fn number(given: i64) -> u64 {
    u64::try_from(given).unwrap_or(u64::MAX)
}
