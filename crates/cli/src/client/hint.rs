//! What to do when nobody answers, or when the key does not do: whoever asks another machine has no data directory there.

use std::path::Path;

use reqwest::Url;
use serde_json::Value;

/// Says what to do about a server that does not answer, by the last cause.
pub(super) fn unreachable(cause: &str, url: &Url) -> String {
    let is_remote = !super::target::is_loopback(url);
    if cause.contains("UnknownIssuer") || cause.contains("self-signed") {
        "that certificate is not signed by anyone this machine trusts: if you trust that server, name its certificate, or that of \
         its authority, with --ca FILE"
            .to_owned()
    } else if cause.contains("not valid for name") {
        "name the server in --url by a name that its certificate has".to_owned()
    } else if cause.contains("certificate") {
        "the server's certificate is not valid; its operator can renew it".to_owned()
    } else if cause.contains("InvalidContentType") {
        "that server speaks plain http: write http:// in --url".to_owned()
    } else if cause.contains("invalid HTTP version") && url.scheme() == "http" {
        "if that server speaks TLS, write https:// in --url".to_owned()
    } else if cause.contains("lookup address") {
        "check the name in --url".to_owned()
    } else if is_remote {
        "check the address and the port in --url, and that the server runs and can be reached from here".to_owned()
    } else {
        "start a server with `reprise serve`, or name one with --url".to_owned()
    }
}

/// The key of a request, as far as advice depends on it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Key<'a> {
    /// The file that it was found in.
    pub(super) file: Option<&'a Path>,
    /// True for a server on another machine.
    pub(super) is_remote: bool,
}

impl Key<'_> {
    /// Says what to do about a key that the server does not take.
    pub(super) fn is_unknown(self) -> String {
        match self.file {
            Some(file) => format!(
                "the key in `{}` does not belong to that server: run this in the server's folder, or give a key with --key or REPRISE_KEY",
                file.display()
            ),
            None if self.is_remote => "the key in --key or REPRISE_KEY is mistyped, expired, revoked or for another server; \
                whoever runs that server creates one there with `reprise key create --actor NAME`"
                .to_owned(),
            None => "the key in --key or REPRISE_KEY is mistyped, expired, revoked or for another server; in the server's folder \
                `reprise key list` shows the keys, and `reprise key create --actor NAME` creates one"
                .to_owned(),
        }
    }

    /// Says what to do about a key that the server takes, but not for this.
    pub(super) fn forbidden(self, answer: &Value) -> String {
        let detail = |name: &str| answer.pointer(&format!("/error/details/{name}"));
        if detail("rule").and_then(Value::as_str) == Some("approver_must_differ") {
            return "decide with the key of somebody else, who has the scope `approvals:write`"
                .to_owned();
        }
        let scopes = detail("required_scopes").and_then(Value::as_array);
        let scopes: Vec<&str> = scopes
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let scopes = match scopes.is_empty() {
            true => "SCOPE".to_owned(),
            false => scopes.join(" "),
        };
        let command = format!("`reprise key grant ID {scopes}`");
        match self.is_remote {
            true => format!(
                "use another key, or ask the operator of that server for that scope: {command} there gives it to yours"
            ),
            false => format!(
                "use another key, or give it to this one, in the server's folder: {command}; `reprise key list` shows ids and scopes"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn whoever_asks_another_machine_is_not_sent_to_a_folder_that_is_not_there() {
        let remote = Key {
            file: None,
            is_remote: true,
        };
        let here = Key {
            file: None,
            is_remote: false,
        };
        assert!(remote.is_unknown().contains("whoever runs that server"));
        assert!(here.is_unknown().contains("`reprise key list`"));
        let denied =
            json!({"error": {"details": {"rule": "scope", "required_scopes": ["tasks:read"]}}});
        assert!(
            remote
                .forbidden(&denied)
                .contains("`reprise key grant ID tasks:read` there")
        );
        assert!(
            here.forbidden(&denied)
                .contains("in the server's folder: `reprise key grant ID tasks:read`")
        );
        let differ = json!({"error": {"details": {"rule": "approver_must_differ"}}});
        assert!(remote.forbidden(&differ).contains("somebody else"));
    }

    #[test]
    fn what_nobody_answered_says_what_to_try() {
        let hint = |cause: &str, url: &str| unreachable(cause, &Url::parse(url).unwrap());
        for (cause, url, words) in [
            (
                "invalid peer certificate: UnknownIssuer",
                "https://h",
                "--ca",
            ),
            (
                "invalid peer certificate: certificate not valid for name \"a\"",
                "https://h",
                "a name that its certificate has",
            ),
            (
                "invalid peer certificate: certificate expired: now is 2",
                "https://h",
                "renew",
            ),
            (
                "received corrupt message of type InvalidContentType",
                "https://h",
                "http://",
            ),
            (
                "invalid HTTP version parsed",
                "http://localhost",
                "https://",
            ),
            (
                "failed to lookup address information",
                "https://h",
                "the name",
            ),
            ("Connection refused", "https://h", "the port"),
            ("Connection refused", "http://127.0.0.1", "`reprise serve`"),
        ] {
            let found = hint(cause, url);
            assert!(found.contains(words), "{cause}: {found}");
        }
    }
}
