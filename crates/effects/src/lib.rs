//! Everything that touches the outside for workflows: model providers, tools, secrets.
//!
//! [`Outside`] implements the engine's performer port. It holds the model providers, the declared local commands,
//! the MCP servers and the vault of one configuration ([`Config`]), and performs one effect at a time for whoever
//! asks. It decides nothing: which effects run, how they are recorded and whether one may be repeated belong to
//! the engine.
//!
//! Three promises hold for every effect:
//!
//! - What comes back is bounded. Each limit has a name, in the configuration or as a constant, and reaching it is
//!   an error with a stable code, never an allocation without end.
//! - What was observed is told with the result, errors included: the hosts that our own clients contacted, the
//!   files that changed in a declared working folder. What nobody looked at is named `not_observed`.
//! - Values of secrets stay here. They reach a provider, a process or a server, and are replaced by
//!   `[redacted:secret:<name>]` in everything that comes back. Reasoning blocks of providers are dropped.
//!
//! # Scripted answers
//!
//! A provider of kind `scripted` reads its answers from a YAML file. The first entry whose conditions all hold
//! answers; an entry without conditions always does. An answer depends on the key and the request of the effect
//! and on nothing else, so that a call that is repeated after a crash gets the same answer.
//!
//! ```yaml
//! model: scripted-1                       # the name in the answers; optional
//! answers:
//!   - when: { key: "llm:main:1" }         # the key of the effect
//!     answer: Let me look at the clock.   # text, or tool calls, or both
//!     tool_calls:
//!       - name: clock
//!         arguments: { zone: UTC }        # an object; a text goes out as it is, well-formed or not
//!   - when: { contains: "too many" }      # text inside the last message
//!     error: { code: provider_rate_limited, message: try later, status: 429, retry_after_ms: 2000 }
//!   - answer: It is noon.
//!     usage: { prompt_tokens: 12, completion_tokens: 4 }  # estimated when left out
//!     delay_ms: 50                        # waits first; none when left out
//! ```

mod catalog;
mod client;
mod config;
pub mod confine;
mod mcp;
mod outside;
mod prices;
mod provider;
mod scrub;
mod secrets;
pub mod sse;
mod tool;
mod vault;

pub use catalog::{CatalogError, CatalogTool, ToolOrigin};
pub use config::{
    ApiKey, Config, ConfigError, McpServerConfig, Price, PriceTable, ProviderConfig, ProviderKind,
    SandboxMode, SecretRef, Stdin, ToolConfig,
};
pub use confine::Confinement;
pub use outside::Outside;
pub use provider::Embeddings;
pub use vault::{SecretHandle, Vault, VaultError};
