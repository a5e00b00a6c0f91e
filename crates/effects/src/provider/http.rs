//! One call over HTTP: attempts, waits between them, reading what comes, and what to call a failure.
//!
//! Messages name hosts and status codes; of a provider's own words only a short, scrubbed piece. They never hold
//! keys or bodies.

use std::time::{Duration, SystemTime};

use canon::{Integers, Value};
use engine::port::Deltas;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Response, Url};
use runs::workflow::EffectOutcome;

use super::completion::Completion;
use crate::config::ProviderConfig;
use crate::scrub::{Pieces, Scrubber};
use crate::sse;

/// The longest answer.
pub(crate) const RESPONSE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// How many tool calls one answer may ask for.
const CALLS_MAX: usize = 256;
/// The longest event of a stream.
const EVENT_BYTES_MAX: usize = 4 * 1024 * 1024;
/// How much of an error's body is read.
const ERROR_BYTES_MAX: usize = 16 * 1024;
/// How long a message is, a provider's own words included.
const MESSAGE_CHARS_MAX: usize = 250;
/// The longest wait between two attempts; a provider that asks for more gets none.
const WAIT_MS_MAX: u64 = 30_000;
/// Headers in which providers name an exchange; the first that is present counts. An id in the body names the answer, not
/// the exchange, and is not one.
const REQUEST_ID_HEADERS: [&str; 4] = ["request-id", "x-request-id", "cf-ray", "x-goog-request-id"];

/// What is said to whom, and how the answer is read.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: Value,
    pub(super) event: fn(&mut Completion, Event<'_>) -> Result<String, Failure>,
    pub(super) whole: fn(&mut Completion, &Value) -> Result<(), Failure>,
}

/// Something in a stream.
#[derive(Debug, Clone, Copy)]
pub(super) enum Event<'a> {
    /// The data of an event.
    Data(&'a [u8]),
    /// The end of the body.
    End,
}

/// What was tried.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    pub(super) count: u32,
    pub(super) bytes_sent: u64,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    code: &'static str,
    message: String,
    status: Option<u16>,
    retry_after_ms: Option<u64>,
    again: bool,
}

impl Failure {
    pub(super) fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            status: None,
            retry_after_ms: None,
            again: false,
        }
    }

    pub(super) fn stream_broken(message: &str) -> Self {
        Self::new("provider_stream_broken", message)
    }

    pub(super) fn unreadable(message: impl Into<String>) -> Self {
        Self::new("provider_unreadable", message)
    }

    /// A failure in the provider's own words, with its status or inside a stream that began well.
    pub(super) fn provider_error(status: Option<u16>, error: &Value) -> Self {
        let word = |member: &str| {
            error
                .get(member)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        let words = [word("type"), word("code")];
        let is = |known: &[&str]| words.iter().any(|word| known.contains(word));
        let (code, again) = match status {
            Some(429) => ("provider_rate_limited", true),
            Some(408 | 500..) => ("provider_error", true),
            Some(404) | None if is(&["model_not_found", "not_found_error"]) => {
                ("model_unknown", false)
            }
            Some(_) => ("provider_refused", false),
            None if is(&["rate_limit_error", "rate_limit_exceeded"]) => {
                ("provider_rate_limited", false)
            }
            None if is(&["invalid_request_error"]) => ("provider_refused", false),
            None => ("provider_error", false),
        };
        let mut message = match status {
            Some(status) => format!("the provider answered {status}"),
            None => "the provider stopped with an error".to_owned(),
        };
        if !word("message").is_empty() {
            message.push_str(": ");
            message.push_str(word("message"));
        }
        Self {
            status,
            again,
            ..Self::new(code, message)
        }
    }

    pub(super) fn performed(
        self,
        provider: &str,
        attempts: u32,
        scrubber: &Scrubber,
    ) -> EffectOutcome {
        let message = scrubber.capped(&self.message, MESSAGE_CHARS_MAX);
        let message = format!("provider `{provider}`: {message}");
        let mut performed = Self { message, ..self }.into_performed();
        if let Some(members) = performed.value.as_object_mut() {
            members.insert("attempts".to_owned(), attempts.into());
        }
        performed
    }

    pub(super) fn into_performed(self) -> EffectOutcome {
        let mut performed = EffectOutcome::error(self.code, self.message);
        if let Some(members) = performed.value.as_object_mut() {
            members.extend(
                self.status
                    .map(|status| ("status".to_owned(), status.into())),
            );
            members.extend(
                self.retry_after_ms
                    .map(|wait| ("retry_after_ms".to_owned(), wait.into())),
            );
        }
        performed
    }
}

/// Calls until there is an answer, a failure that trying again would not change, or no attempt left.
pub(super) async fn call(
    client: &reqwest::Client,
    config: &ProviderConfig,
    url: &Url,
    target: &Target,
    deltas: &Deltas,
    scrubber: &Scrubber,
    attempts: &mut Attempts,
) -> Result<Completion, Failure> {
    let body = target.body.to_string();
    let mut backoff_ms = config.retry_backoff_ms;
    loop {
        attempts.count += 1;
        let attempt = attempt(
            client,
            url,
            target,
            body.clone(),
            deltas,
            scrubber,
            attempts,
        );
        let limit = Duration::from_millis(config.timeout_ms);
        let failure = match tokio::time::timeout(limit, attempt).await {
            Ok(Ok(completion)) => return Ok(completion),
            Ok(Err(failure)) => failure,
            Err(_) => Failure::new(
                "provider_timeout",
                format!("no complete answer within {} ms", config.timeout_ms),
            ),
        };
        let wait_ms = failure.retry_after_ms.unwrap_or(backoff_ms);
        if !failure.again || attempts.count > config.retries_max || wait_ms > WAIT_MS_MAX {
            return Err(failure);
        }
        tracing::debug!(
            provider = config.id,
            code = failure.code,
            wait_ms,
            "trying again"
        );
        tokio::time::sleep(Duration::from_millis(wait_ms)).await;
        backoff_ms = backoff_ms.saturating_mul(2).min(WAIT_MS_MAX);
    }
}

async fn attempt(
    client: &reqwest::Client,
    url: &Url,
    target: &Target,
    body: String,
    deltas: &Deltas,
    scrubber: &Scrubber,
    attempts: &mut Attempts,
) -> Result<Completion, Failure> {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    for (name, value) in &target.headers {
        let mut value = HeaderValue::try_from(value).map_err(|_| {
            Failure::new(
                "provider_refused",
                "the key holds characters that no header can carry",
            )
        })?;
        value.set_sensitive(true);
        headers.insert(HeaderName::from_static(name), value);
    }
    let length = u64::try_from(body.len()).unwrap_or(u64::MAX);
    let host = url.host_str().unwrap_or_default();
    // Counted first: an attempt that times out has sent it all the same.
    attempts.bytes_sent = attempts.bytes_sent.saturating_add(length);
    let request = client.post(url.clone()).headers(headers).body(body);
    let sent = request.send().await;
    if sent.as_ref().is_err_and(reqwest::Error::is_connect) {
        attempts.bytes_sent = attempts.bytes_sent.saturating_sub(length);
    }
    let response = sent.map_err(|error| Failure {
        again: true,
        ..Failure::new(
            "provider_error",
            match error.is_connect() {
                true => format!("cannot connect to {host}"),
                false => format!("{host} closed the connection without an answer"),
            },
        )
    })?;
    if !response.status().is_success() {
        return Err(refusal(response).await);
    }
    let request_id = REQUEST_ID_HEADERS
        .iter()
        .find_map(|name| response.headers().get(*name))
        .and_then(|value| value.to_str().ok())
        .map(str::to_owned);
    let is_stream = response
        .headers()
        .get(CONTENT_TYPE)
        .is_some_and(|value| value.as_bytes().starts_with(b"text/event-stream"));
    let mut completion = Completion {
        request_id,
        ..Completion::default()
    };
    if is_stream {
        read_stream(response, target, &mut completion, deltas, scrubber).await?;
    } else {
        let body = read_whole(response, RESPONSE_BYTES_MAX).await?;
        let value = json(&body)?;
        if let Some(error) = value.get("error").filter(|error| !error.is_null()) {
            return Err(Failure::provider_error(None, error));
        }
        (target.whole)(&mut completion, &value)?;
        check_calls(&completion)?;
        completion.end_text();
    }
    Ok(completion)
}

async fn read_stream(
    mut response: Response,
    target: &Target,
    completion: &mut Completion,
    deltas: &Deltas,
    scrubber: &Scrubber,
) -> Result<(), Failure> {
    let mut reader = sse::Reader::new(EVENT_BYTES_MAX);
    let mut pieces = Pieces::new(scrubber);
    let show = |text: String| {
        if !text.is_empty() {
            deltas.push(text);
        }
    };
    let mut total = 0_usize;
    loop {
        let chunk = response.chunk().await;
        let chunk = chunk
            .map_err(|_| Failure::stream_broken("the connection was lost during the answer"))?;
        let Some(chunk) = chunk else { break };
        total = total.saturating_add(chunk.len());
        let events = reader.push(&chunk).map_err(|_| too_long());
        if total > RESPONSE_BYTES_MAX {
            return Err(too_long());
        }
        for data in events? {
            let text = (target.event)(completion, Event::Data(&data))?;
            check_calls(completion)?;
            show(pieces.push(&text));
        }
    }
    (target.event)(completion, Event::End)?;
    show(pieces.push(&completion.end_text()));
    show(pieces.finish());
    Ok(())
}

/// Every call becomes several events: an answer with a hundred thousand would hold up everybody.
fn check_calls(completion: &Completion) -> Result<(), Failure> {
    if completion.calls.len() > CALLS_MAX {
        return Err(Failure::unreadable(format!(
            "the answer asks for more than {CALLS_MAX} tool calls"
        )));
    }
    Ok(())
}

fn too_long() -> Failure {
    Failure::unreadable(format!(
        "the answer is longer than {RESPONSE_BYTES_MAX} bytes"
    ))
}

async fn read_whole(mut response: Response, bytes_max: usize) -> Result<Vec<u8>, Failure> {
    let mut body = Vec::new();
    while let Some(chunk) = response
        .chunk()
        .await
        .map_err(|_| Failure::stream_broken("the connection was lost during the answer"))?
    {
        if body.len() + chunk.len() > bytes_max {
            return Err(too_long());
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

async fn refusal(response: Response) -> Failure {
    let status = response.status().as_u16();
    let retry_after_ms = retry_after_ms(response.headers());
    let body = read_whole(response, ERROR_BYTES_MAX)
        .await
        .unwrap_or_default();
    let value: Value = serde_json::from_slice(&body).unwrap_or_default();
    Failure {
        retry_after_ms,
        ..Failure::provider_error(Some(status), value.get("error").unwrap_or(&Value::Null))
    }
}

/// Milliseconds in the header that some providers add, else seconds, else a date.
fn retry_after_ms(headers: &HeaderMap) -> Option<u64> {
    let text = |name: &str| headers.get(name)?.to_str().ok().map(str::trim);
    let number = |name: &str, factor: f64| {
        let wait = text(name)?.parse::<f64>().ok()? * factor;
        // The cast saturates, and a wait that is not a number is none.
        (wait >= 0.0).then_some(wait.ceil() as u64)
    };
    let date = |name: &str| httpdate::parse_http_date(text(name)?).ok();
    number("retry-after-ms", 1.0)
        .or_else(|| number("retry-after", 1_000.0))
        .or_else(|| {
            let then = date("retry-after")?;
            // By the provider's own clock where it tells it: ours may differ.
            let now = date("date").unwrap_or_else(SystemTime::now);
            let wait = then.duration_since(now).unwrap_or_default();
            u64::try_from(wait.as_millis()).ok()
        })
}

/// Reads one JSON text of a provider.
pub(super) fn json(bytes: &[u8]) -> Result<Value, Failure> {
    canon::read(bytes, Integers::Doubles)
        .map_err(|error| Failure::unreadable(format!("the answer is not JSON: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_are_read_in_every_notation() {
        type Headers = &'static [(&'static str, &'static str)];
        const NOW: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
        let cases: [(Headers, Option<u64>); 9] = [
            (&[("retry-after-ms", "20"), ("retry-after", "9")], Some(20)),
            (&[("retry-after", "1.5")], Some(1_500)),
            (&[("retry-after", "-1")], None),
            (&[("retry-after", "soon")], None),
            (
                &[
                    ("retry-after", "Sun, 06 Nov 1994 08:49:40 GMT"),
                    ("date", NOW),
                ],
                Some(3_000),
            ),
            (
                &[
                    ("retry-after", "Sunday, 06-Nov-94 08:50:37 GMT"),
                    ("date", NOW),
                ],
                Some(60_000),
            ),
            // It is over by now, whoever's clock it is.
            (
                &[
                    ("retry-after", "Sun, 06 Nov 1994 08:49:30 GMT"),
                    ("date", NOW),
                ],
                Some(0),
            ),
            (&[("retry-after", NOW)], Some(0)),
            (&[], None),
        ];
        for (given, expected) in cases {
            let headers = given.iter().map(|(name, value)| {
                let value = HeaderValue::from_str(value).unwrap();
                (HeaderName::from_static(name), value)
            });
            assert_eq!(retry_after_ms(&headers.collect()), expected, "{given:?}");
        }
    }
}
