//! Which requests of a client are judged, passed on or refused.
//!
//! A list of what is known: an endpoint that a new client version brings is refused until it is written down here.

use super::Wire;

/// What happens to a request of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint {
    /// It goes through the session.
    Judged(Wire),
    /// It proposes no calls and is passed on.
    Passed,
    /// It could bring calls that nobody judged.
    Refused,
}

/// Decides by provider, method and path. The path may carry a prefix such as `/v1` and a query.
pub fn endpoint(provider: &str, method: &str, path: &str) -> Endpoint {
    let path = path.split(['?', '#']).next().unwrap_or_default();
    let mut parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    // A part such as `..` leads elsewhere, and an encoded one may.
    if parts
        .iter()
        .any(|part| part.contains('%') || *part == "." || *part == "..")
    {
        return Endpoint::Refused;
    }
    if parts.first() == Some(&"v1") {
        parts.remove(0);
    }
    match provider {
        "openai" => open_ai(method, &parts),
        "anthropic" => anthropic(method, &parts),
        _ => Endpoint::Refused,
    }
}

fn open_ai(method: &str, parts: &[&str]) -> Endpoint {
    match (method, parts) {
        ("POST", ["chat", "completions"]) => Endpoint::Judged(Wire::OpenAiChat),
        ("POST", ["responses"]) => Endpoint::Judged(Wire::OpenAiResponses),
        ("POST", ["responses", "input_tokens"])
        | ("GET", ["chat", "completions"])
        | ("DELETE", ["chat", "completions", _] | ["responses", _])
        | ("POST", ["embeddings" | "moderations"])
        | ("POST", ["images", "generations" | "edits" | "variations"])
        | ("POST", ["audio", "speech" | "transcriptions" | "translations"])
        | ("POST", ["uploads"] | ["uploads", _, "parts" | "complete" | "cancel"])
        | ("POST", ["files"]) => Endpoint::Passed,
        (_, ["audio", "voices" | "voice_consents"] | ["audio", "voices" | "voice_consents", _])
        | (_, ["vector_stores"] | ["vector_stores", _])
        | (_, ["vector_stores", _, "files" | "file_batches" | "search", ..]) => Endpoint::Passed,
        // Training. A grader that is run asks a model at once.
        (_, ["fine_tuning", "jobs" | "checkpoints", ..])
        | ("POST", ["fine_tuning", "alpha", "graders", "validate"]) => Endpoint::Passed,
        _ => stored(method, parts),
    }
}

/// Models and files, which both providers have.
fn stored(method: &str, parts: &[&str]) -> Endpoint {
    match (method, parts) {
        ("GET", ["models" | "files"])
        | ("GET" | "DELETE", ["models" | "files", _])
        | ("GET", ["files", _, "content"]) => Endpoint::Passed,
        _ => Endpoint::Refused,
    }
}

fn anthropic(method: &str, parts: &[&str]) -> Endpoint {
    match (method, parts) {
        ("POST", ["messages"]) => Endpoint::Judged(Wire::AnthropicMessages),
        ("POST", ["messages", "count_tokens"] | ["files"]) => Endpoint::Passed,
        _ => stored(method, parts),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r17_only_known_endpoints_are_judged_or_passed() {
        let judged = Endpoint::Judged;
        for (provider, method, path, expected) in [
            (
                "openai",
                "POST",
                "/chat/completions",
                judged(Wire::OpenAiChat),
            ),
            (
                "openai",
                "POST",
                "/v1/responses",
                judged(Wire::OpenAiResponses),
            ),
            (
                "anthropic",
                "POST",
                "/v1/messages?beta=true",
                judged(Wire::AnthropicMessages),
            ),
            (
                "anthropic",
                "POST",
                "/v1/messages/count_tokens",
                Endpoint::Passed,
            ),
            (
                "openai",
                "POST",
                "/responses/input_tokens",
                Endpoint::Passed,
            ),
            ("openai", "POST", "/embeddings", Endpoint::Passed),
            ("openai", "GET", "/models/gpt", Endpoint::Passed),
            (
                "openai",
                "POST",
                "/vector_stores/vs/search",
                Endpoint::Passed,
            ),
            (
                "openai",
                "POST",
                "/vector_stores/vs/brand-new",
                Endpoint::Refused,
            ),
            ("openai", "POST", "/fine_tuning/jobs", Endpoint::Passed),
            (
                "openai",
                "POST",
                "/fine_tuning/alpha/graders/validate",
                Endpoint::Passed,
            ),
            (
                "openai",
                "POST",
                "/fine_tuning/alpha/graders/run",
                Endpoint::Refused,
            ),
            ("openai", "POST", "/images/generations", Endpoint::Passed),
            ("openai", "POST", "/images/brand-new", Endpoint::Refused),
            ("openai", "POST", "/models/gpt/ask", Endpoint::Refused),
            ("openai", "GET", "/files/f1/content", Endpoint::Passed),
            ("anthropic", "POST", "/v1/files", Endpoint::Passed),
            ("anthropic", "POST", "/v1/files/f1", Endpoint::Refused),
            ("openai", "DELETE", "/responses/r1", Endpoint::Passed),
            ("openai", "GET", "/responses/r1", Endpoint::Refused),
            ("openai", "GET", "/chat/completions/c1", Endpoint::Refused),
            ("openai", "POST", "/responses/compact", Endpoint::Refused),
            ("openai", "POST", "/completions", Endpoint::Refused),
            ("openai", "POST", "/batches", Endpoint::Refused),
            ("openai", "POST", "/threads/t/runs", Endpoint::Refused),
            ("openai", "POST", "/realtime/sessions", Endpoint::Refused),
            (
                "openai",
                "POST",
                "/models/../chat/completions",
                Endpoint::Refused,
            ),
            (
                "openai",
                "POST",
                "/models/%2e%2e/chat/completions",
                Endpoint::Refused,
            ),
            ("openai", "POST", "/brand-new", Endpoint::Refused),
            (
                "anthropic",
                "POST",
                "/v1/messages/batches",
                Endpoint::Refused,
            ),
            ("anthropic", "POST", "/v1/sessions", Endpoint::Refused),
            ("other", "POST", "/chat/completions", Endpoint::Refused),
        ] {
            assert_eq!(
                endpoint(provider, method, path),
                expected,
                "{method} {path}"
            );
        }
    }
}
