//! By which name a request calls this server.
//!
//! A page of somebody else can lead a browser on this machine to a name that it points at 127.0.0.1. The browser takes the
//! answer for one of that page's own server; only the name in the request tells.

use std::net::IpAddr;

use axum::extract::Request;
use axum::http::header;
use serde_json::json;
use wire::Code;

use crate::config::Config;
use crate::failure::Failure;

/// Refuses a request that calls the server by a name that is not its own.
pub(crate) fn check(config: &Config, request: &Request) -> Result<(), Failure> {
    let mut lines = request.headers().get_all(header::HOST).iter();
    let line = lines.next();
    if lines.next().is_some() {
        return Err(wrong(400, "the header `Host` is given twice"));
    }
    // HTTP/2 names it in the address of the request.
    let text = match (request.uri().authority(), line) {
        (Some(authority), _) => authority.as_str(),
        (None, Some(line)) => line.to_str().unwrap_or_default(),
        (None, None) => return Err(wrong(400, "the header `Host` is missing")),
    };
    let name = without_port(text).ok_or_else(|| wrong(400, "the header `Host` cannot be read"))?;
    let is_local = config.listen.ip().is_loopback();
    if !is_local && config.allowed_hosts.is_empty() {
        return Ok(());
    }
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    let own = bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
        || bare.eq_ignore_ascii_case("localhost");
    let public = config.public_url.as_deref().and_then(host_of);
    let mut allowed = config
        .allowed_hosts
        .iter()
        .map(String::as_str)
        .chain(public);
    if (own && is_local) || allowed.any(|known| known.eq_ignore_ascii_case(bare)) {
        return Ok(());
    }
    Err(wrong(421, "this server does not answer to that host name"))
}

fn wrong(status: u16, message: &str) -> Failure {
    let mut failure = Failure::new(Code::InvalidRequest, message).with("reason", json!("host"));
    failure.status = status;
    failure
}

/// Returns the name in `name`, `name:port` or `[address]:port`; none when something else follows it.
fn without_port(text: &str) -> Option<&str> {
    let (name, rest) = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    let is_port = match rest.strip_prefix(':') {
        Some(port) => port.len() <= 5 && port.bytes().all(|byte| byte.is_ascii_digit()),
        None => rest.is_empty(),
    };
    (!name.is_empty() && is_port).then_some(name)
}

/// Returns the name in an address such as `https://name:port/path`.
fn host_of(url: &str) -> Option<&str> {
    let (_, rest) = url.split_once("://")?;
    without_port(rest.split('/').next()?)
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn status(config: &Config, lines: &[&str]) -> u16 {
        let mut request = Request::get("/v1");
        for line in lines {
            request = request.header(header::HOST, *line);
        }
        let request = request.body(Body::empty()).unwrap();
        check(config, &request).map_or_else(|failure| failure.status, |()| 200)
    }

    #[test]
    fn u26_a_local_server_answers_to_local_names() {
        let mut config = Config::local("127.0.0.1:0".parse().unwrap());
        config.allowed_hosts = vec!["reprise.example".to_owned()];
        config.public_url = Some("https://public.example:8443/x".to_owned());
        for name in [
            "localhost",
            "LOCALHOST:1",
            "127.0.0.1:8080",
            "127.9.9.9",
            "[::1]:8080",
            "reprise.example:80",
            "public.example",
        ] {
            assert_eq!(status(&config, &[name]), 200, "{name}");
        }
        for name in [
            "evil.example",
            "127.0.0.1.evil.example",
            "localhost.evil",
            "10.0.0.1",
        ] {
            assert_eq!(status(&config, &[name]), 421, "{name}");
        }
        for lines in [
            &[][..],
            &["localhost", "localhost"],
            &[""],
            &["[::1"],
            &["localhost:80.evil.example"],
            &["127.0.0.1:8080@evil.example"],
            &["localhost:123456"],
            &["[::1]evil.example"],
            &["[::1]:8080.evil.example"],
        ] {
            assert_eq!(status(&config, lines), 400, "{lines:?}");
        }
    }

    #[test]
    fn u26_elsewhere_names_count_once_some_are_given() {
        let mut config = Config::local("10.0.0.1:0".parse().unwrap());
        assert_eq!(status(&config, &["anything.example"]), 200);
        assert_eq!(status(&config, &[]), 400);
        config.allowed_hosts = vec!["a.example".to_owned()];
        assert_eq!(status(&config, &["a.example:1"]), 200);
        assert_eq!(status(&config, &["b.example"]), 421);
        assert_eq!(status(&config, &["localhost"]), 421);
    }
}
