//! Webhooks: addresses that are told when somebody has to approve something.
//!
//! Which ones there are stands in the configuration, and nothing else adds one. A message is signed with the webhook's
//! secret; redirects are not followed. It is sent until it is taken, for an hour at most; what still waits after a restart
//! is announced again, so receivers tell messages apart by `id`. Nothing waits for a webhook.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use domain::Position;
use engine::{Engine, WaitingApproval};
use hmac::{Hmac, KeyInit as _, Mac as _};
use reqwest::Url;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::Sha256;

use crate::exit::Problem;

/// How often open requests are looked at.
const PACE: Duration = Duration::from_secs(1);
/// How long a receiver may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// For how long one message is tried.
const GIVE_UP: Duration = Duration::from_secs(3_600);
/// The longest pause after failures.
const PAUSE_MAX: Duration = Duration::from_secs(300);
/// Requests that are looked at in one go.
const PAGE: usize = 100;
const SECRET_BYTES_MIN: usize = 16;

/// A webhook as the configuration has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WebhookConfig {
    /// Where it listens.
    pub(crate) url: String,
    /// The environment variable that holds its secret.
    pub(crate) secret_env: String,
}

/// A webhook.
pub(crate) struct Webhook {
    url: Url,
    secret: String,
}

impl fmt::Debug for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Addresses of chats are secrets by themselves.
        write!(f, "Webhook({})", self.host())
    }
}

impl Webhook {
    fn host(&self) -> &str {
        self.url.host_str().unwrap_or("-")
    }

    /// Returns the header `X-Harn-Signature` of a body at a time.
    fn signature(&self, unix: u64, body: &[u8]) -> Option<String> {
        let mut mac = Hmac::<Sha256>::new_from_slice(self.secret.as_bytes()).ok()?;
        mac.update(format!("{unix}.").as_bytes());
        mac.update(body);
        let bytes = mac.finalize().into_bytes();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Some(format!("t={unix},v1={hex}"))
    }
}

/// Reads the webhooks of a configuration.
///
/// # Errors
/// An address is not one that is posted to, or its secret is not there.
pub(crate) fn configured(
    list: &[WebhookConfig],
    environment: impl Fn(&str) -> Option<String>,
) -> anyhow::Result<Vec<Webhook>> {
    let read = |config: &WebhookConfig| {
        let url = address(&config.url)?;
        let secret = environment(&config.secret_env).unwrap_or_default();
        if secret.len() < SECRET_BYTES_MIN {
            let name = &config.secret_env;
            let message = format!("`{name}` holds no secret of at least {SECRET_BYTES_MIN} bytes");
            let hint = "set the variable that `secret_env` of `approval_webhooks` names";
            return Err(Problem::new(message, hint).into());
        }
        Ok(Webhook { url, secret })
    };
    list.iter().map(read).collect()
}

fn address(text: &str) -> anyhow::Result<Url> {
    let wrong = |what: &str, hint: &'static str| {
        let message = format!("an address of `approval_webhooks` {what}");
        Err(Problem::new(message, hint).into())
    };
    let hint = "write it as https://chat.example/hooks/approvals";
    let Ok(url) = Url::parse(text) else {
        return wrong("is not an address", hint);
    };
    if !url.username().is_empty() || url.password().is_some() {
        return wrong("has a password in it", "messages are signed: it needs none");
    }
    let ip = url.host_str().map(|host| host.trim_matches(['[', ']']));
    let ip = ip.and_then(|host| host.parse::<IpAddr>().ok());
    let local = url.host_str() == Some("localhost") || ip.is_some_and(|ip| ip.is_loopback());
    let elsewhere = ip.is_some_and(|ip| match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_unspecified() || ip.is_multicast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local() || ip.is_unspecified() || ip.is_multicast(),
    });
    match url.scheme() {
        _ if elsewhere => wrong("is not the address of a receiver", hint),
        "https" => Ok(url),
        "http" if local => Ok(url),
        "http" => wrong(
            "is not encrypted",
            "use https://, or a receiver on this machine",
        ),
        _ => wrong("is not an address", hint),
    }
}

/// What is known of a message.
struct Sending {
    since: Instant,
    failures: u32,
    next: Instant,
    is_over: bool,
}

/// Announces waiting approvals to one webhook for as long as the process lives.
pub(crate) async fn announce_approvals(webhook: Webhook, engine: Engine) {
    let client = reqwest::Client::builder()
        .timeout(TIMEOUT)
        .redirect(reqwest::redirect::Policy::none())
        .build();
    let Ok(client) = client else {
        tracing::warn!("approvals are not announced: there is no HTTP client");
        return;
    };
    let mut known: BTreeMap<String, Sending> = BTreeMap::new();
    loop {
        tokio::time::sleep(PACE).await;
        let waiting = match waiting(&engine).await {
            Ok(waiting) => waiting,
            Err(fault) => {
                tracing::warn!(%fault, "waiting approvals cannot be read");
                continue;
            }
        };
        known.retain(|id, _| waiting.iter().any(|request| request.id == *id));
        for request in &waiting {
            let now = Instant::now();
            let sending = known.entry(request.id.clone()).or_insert(Sending {
                since: now,
                failures: 0,
                next: now,
                is_over: false,
            });
            if sending.is_over || now < sending.next {
                continue;
            }
            match send(&client, &webhook, request).await {
                Ok(()) => sending.is_over = true,
                Err(error) => {
                    sending.failures = sending.failures.saturating_add(1);
                    let pause = Duration::from_secs(1 << sending.failures.min(9)).min(PAUSE_MAX);
                    sending.next = Instant::now() + pause;
                    sending.is_over = sending.since.elapsed() >= GIVE_UP;
                    let (host, failures) = (webhook.host(), sending.failures);
                    tracing::warn!(
                        webhook = host,
                        request = request.id,
                        failures,
                        gives_up = sending.is_over,
                        error,
                        "an approval was not announced"
                    );
                }
            }
        }
    }
}

async fn waiting(engine: &Engine) -> Result<Vec<WaitingApproval>, engine::Refused> {
    let mut all = Vec::new();
    let mut after = Position::START;
    loop {
        let (page, next) = engine.waiting_approvals(after, PAGE).await?;
        all.extend(page);
        match next {
            Some(next) if all.len() < 10 * PAGE => after = next,
            _ => return Ok(all),
        }
    }
}

async fn send(
    client: &reqwest::Client,
    webhook: &Webhook,
    request: &WaitingApproval,
) -> Result<(), String> {
    let body = json!({
        "type": "approval.requested",
        "id": request.id,
        "task": request.task,
        "event": request.event,
    });
    let body = body.to_string().into_bytes();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let unix = now.map_or(0, |now| now.as_secs());
    let signature = webhook
        .signature(unix, &body)
        .ok_or("it cannot be signed")?;
    let answer = client
        .post(webhook.url.clone())
        .header("content-type", "application/json")
        .header("x-harn-signature", signature)
        .body(body)
        .send()
        .await;
    match answer {
        Ok(answer) if answer.status().is_success() => Ok(()),
        Ok(answer) => Err(format!("it answered {}", answer.status().as_u16())),
        // Its address may be a secret.
        Err(error) => Err(error.without_url().to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str, secret: &str) -> anyhow::Result<Vec<Webhook>> {
        let config = WebhookConfig {
            url: url.to_owned(),
            secret_env: "S".to_owned(),
        };
        configured(&[config], |name| (name == "S").then(|| secret.to_owned()))
    }

    #[test]
    fn only_addresses_of_receivers_are_taken() {
        let secret = "0123456789abcdef";
        for good in [
            "https://chat.example/hooks/1",
            "http://127.0.0.1:9/x",
            "http://[::1]:9/x",
            "http://localhost:9/x",
        ] {
            assert!(read(good, secret).is_ok(), "{good}");
        }
        for bad in [
            "http://chat.example/",
            "https://user:word@chat.example/",
            "https://169.254.169.254/latest",
            "https://[fe80::1]/",
            "https://0.0.0.0/",
            "file:///etc/passwd",
            "chat.example",
        ] {
            assert!(read(bad, secret).is_err(), "{bad}");
        }
        let short = read("https://chat.example/", "short").unwrap_err();
        assert!(!format!("{short:#}").contains("short`"), "{short:#}");
    }

    #[test]
    fn ap_sdk_11_a_message_is_signed_over_its_time_and_its_bytes() {
        let webhooks = read("https://chat.example/", "a secret of the webhook").unwrap();
        let signed = webhooks[0].signature(1_700_000_000, b"{}");
        // From `printf '1700000000.{}' | openssl dgst -sha256 -hmac 'a secret of the webhook'`.
        let expected =
            "t=1700000000,v1=59d593f46b8986add8f2de546063bdf78f12008ac3714075feefae3f07b934af";
        assert_eq!(signed.as_deref(), Some(expected));
        assert!(!format!("{webhooks:?}").contains("secret"));
    }
}
