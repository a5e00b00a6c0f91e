//! A black-box conformance runner for servers that speak `agents-protocol-2026-04-25`.
//!
//! A second one, [`AkashikSuite`], asks servers of the memory protocol.
//!
//! It asks a server over the wire (REST and SSE) and says, for every requirement id, `ok`, `FAIL`, `differs` or `not
//! covered`.
//! It owns the questions and the judgement of the answers. It knows no crate of this project and no internals of a
//! server: what cannot be seen on the wire is reported as not covered, never assumed.
//!
//! ```no_run
//! # async fn example() -> Result<(), conformance::SuiteError> {
//! let suite = conformance::Suite {
//!     url: "http://127.0.0.1:8080".to_owned(),
//!     key: "the key".to_owned(),
//!     other_key: None,
//!     approver_key: None,
//!     dead_keys: Vec::new(),
//!     expired_keys: Vec::new(),
//!     make_key: None,
//!     restart: None,
//!     published: false,
//!     timeout: std::time::Duration::from_secs(30),
//!     skip: Vec::new(),
//! };
//! let report = suite.run(|outcome| eprintln!("{}", outcome.line())).await?;
//! assert_eq!(report.failed(), 0);
//! # Ok(())
//! # }
//! ```

mod suite;

mod report;

mod registry;

mod check;

mod akashik;

mod scenario;

mod wire;

mod raw;

mod sse;

mod ledger;

mod miss;

mod json;

#[cfg(feature = "test-util")]
pub mod breaking;

pub use akashik::{AkashikSuite, akashik_ids};
pub use registry::ids;
pub use report::{Level, Outcome, Report, Verdict};
pub use suite::{Suite, SuiteError};
