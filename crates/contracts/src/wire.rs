//! Wire adapters: what a provider's client sends and receives, as bytes.
//!
//! A request goes in and the planned request comes out: tools that cannot be called are gone, everything else is byte
//! for byte what it was. A response goes in and the released response comes out, streams included. Nothing here
//! decides about calls; [`WireRequest`] and [`Reply`] only read and write.
//!
//! Judged are bytes, not parsed objects: a parser may already have dropped what must be seen, such as a member that
//! stands twice. What two readers could read differently is refused.

mod chat_stream;
mod choice;
mod doc;
mod endpoint;
mod messages_stream;
mod offer;
mod plan;
mod reply;
mod request;
mod responses_stream;
mod sse;
mod stray;
mod strip;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::reason::words;

pub use endpoint::{Endpoint, endpoint};
pub use plan::Plan;
pub use reply::{Incoming, Reply, ReplyError};
pub use request::{KnownTools, RequestView, WireRequest, view_request};

words! {
    /// A provider's wire format.
    Wire {
        /// OpenAI, `POST /chat/completions`.
        OpenAiChat = "openai-chat",
        /// OpenAI, `POST /responses`.
        OpenAiResponses = "openai-responses",
        /// Anthropic, `POST /v1/messages`.
        AnthropicMessages = "anthropic-messages",
    }
}

impl Wire {
    /// Returns the provider's name in patterns and prices.
    pub fn provider(self) -> &'static str {
        match self {
            Wire::OpenAiChat | Wire::OpenAiResponses => "openai",
            Wire::AnthropicMessages => "anthropic",
        }
    }
}
