//! The error object and its table of codes, types and statuses (AP-ERR).

use canon::{Map, Value};
use serde_json::json;

macro_rules! codes {
    ($($name:ident = $status:literal, $text:literal, $kind:literal;)*) => {
        /// What went wrong, for programs. The protocol has no others.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Code {
            $(#[doc = concat!("`", $text, "`, status ", stringify!($status))] $name,)*
        }

        impl Code {
            /// Every code, in the order of the protocol's table.
            pub const ALL: &[Code] = &[$(Code::$name,)*];

            /// Returns the protocol's word.
            pub const fn as_str(self) -> &'static str {
                match self { $(Code::$name => $text,)* }
            }

            /// Returns the HTTP status.
            pub const fn status(self) -> u16 {
                match self { $(Code::$name => $status,)* }
            }

            /// Returns the `type` of the error.
            pub const fn kind(self) -> &'static str {
                match self { $(Code::$name => $kind,)* }
            }
        }
    };
}

codes! {
    InvalidRequest = 400, "invalid_request", "request_error";
    InvalidStateTransition = 400, "invalid_state_transition", "conflict_error";
    Unauthenticated = 401, "unauthenticated", "auth_error";
    PermissionDenied = 403, "permission_denied", "permission_error";
    ResourceNotFound = 404, "resource_not_found", "not_found_error";
    Conflict = 409, "conflict", "conflict_error";
    IdempotencyKeyReused = 409, "idempotency_key_reused", "conflict_error";
    CursorExpired = 410, "cursor_expired", "request_error";
    PayloadTooLarge = 413, "payload_too_large", "request_error";
    PolicyViolation = 422, "policy_violation", "permission_error";
    ResourceLocked = 423, "resource_locked", "conflict_error";
    UnsupportedProtocolVersion = 426, "unsupported_protocol_version", "request_error";
    RateLimited = 429, "rate_limited", "rate_limit_error";
    ClientClosedRequest = 499, "client_closed_request", "request_error";
    InternalError = 500, "internal_error", "server_error";
    UpstreamUnavailable = 502, "upstream_unavailable", "upstream_error";
    ServiceUnavailable = 503, "service_unavailable", "server_error";
    DeadlineExceeded = 504, "deadline_exceeded", "server_error";
}

/// An error on its way out.
#[derive(Debug, Clone, PartialEq)]
pub struct ErrorBody<'a> {
    /// The code.
    pub code: Code,
    /// What to tell people.
    pub message: &'a str,
    /// The member, parameter or header at fault.
    pub param: Option<&'a str>,
    /// The request it answers.
    pub request_id: &'a str,
    /// More facts.
    pub details: &'a Map<String, Value>,
}

impl ErrorBody<'_> {
    /// Returns the error object itself.
    pub fn error(&self) -> Value {
        json!({
            "code": self.code.as_str(),
            "message": self.message,
            "type": self.code.kind(),
            "param": self.param,
            "request_id": self.request_id,
            "details": self.details,
        })
    }

    /// Returns the body of the answer.
    pub fn body(&self) -> Value {
        json!({"error": self.error()})
    }
}

/// What is wrong with a request body or parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InputError {
    /// A member is missing or has a value that is not taken.
    Invalid {
        /// The member, with dots between levels; empty for the body itself.
        param: String,
        /// What is wrong with it.
        message: String,
    },
    /// A member names a resource by something that is no id of its kind.
    Unknown {
        /// The kind of resource.
        object: &'static str,
        /// The member.
        param: String,
    },
    /// A member is larger than anything that is taken.
    TooLarge {
        /// The member.
        param: String,
        /// How much is taken.
        message: String,
    },
    /// A member asks for something that this server does not do.
    Policy {
        /// The member.
        param: String,
        /// A stable word for programs.
        reason: &'static str,
        /// What to tell people.
        message: String,
    },
}

impl InputError {
    /// Says that a member is not as it should be.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        InputError::Invalid {
            param: param.into(),
            message: message.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The types an error can have.
    const KINDS: [&str; 9] = [
        "request_error",
        "auth_error",
        "permission_error",
        "not_found_error",
        "conflict_error",
        "rate_limit_error",
        "runtime_error",
        "upstream_error",
        "server_error",
    ];

    #[test]
    fn ap_err_03_codes_are_distinct_and_their_types_are_the_protocols() {
        for (index, code) in Code::ALL.iter().enumerate() {
            assert!(KINDS.contains(&code.kind()), "{code:?}");
            assert!((400..600).contains(&code.status()), "{code:?}");
            assert!(
                Code::ALL[index + 1..]
                    .iter()
                    .all(|other| other.as_str() != code.as_str())
            );
        }
        assert_eq!(Code::ALL.len(), 18);
    }

    #[test]
    fn ap_err_01_the_error_object_has_every_member() {
        let body = ErrorBody {
            code: Code::CursorExpired,
            message: "gone",
            param: None,
            request_id: "req_1",
            details: &Map::new(),
        };
        assert_eq!(
            body.body(),
            json!({"error": {
                "code": "cursor_expired", "message": "gone", "type": "request_error",
                "param": null, "request_id": "req_1", "details": {},
            }})
        );
    }
}
