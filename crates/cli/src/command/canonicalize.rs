//! `reprise canonicalize`: one value in, canonical bytes out.
//!
//! Each profile is read by its own rules: RFC 8785 from strict JSON, ahd-js-1 as replay blocks read structured files,
//! so that what has no lossless form there (RB-CAN-10) is refused here too.

use std::io::{Read as _, Write as _};

use canon::{Integers, Reason};
use sidecar::{Profile, YamlRefusal, canonical_text};

use crate::args::{CanonicalProfile, CanonicalizeArgs};
use crate::exit::{Exit, OrHint, Problem};

/// Reads stdin and writes stdout.
pub(crate) fn run(args: &CanonicalizeArgs) -> anyhow::Result<Exit> {
    let mut bytes = Vec::new();
    std::io::stdin()
        .read_to_end(&mut bytes)
        .or_hint("stdin", "give the text on stdin")?;
    let text = match args.profile {
        CanonicalProfile::Jcs => jcs(&bytes)?,
        CanonicalProfile::AhdJs1 => ahd_js_1(&bytes)?,
    };
    let mut out = std::io::stdout().lock();
    out.write_all(&text)?;
    out.flush()?;
    Ok(Exit::Ok)
}

fn jcs(bytes: &[u8]) -> Result<Vec<u8>, Problem> {
    let value = canon::read(bytes, Integers::Safe).map_err(|error| {
        let hint = match error.reason() {
            Reason::UnsafeInteger => "write the integer as a string; a double cannot hold it",
            Reason::DuplicateKey => "name each member once",
            _ => "give one JSON text in UTF-8",
        };
        Problem::new(format!("stdin: {error}"), hint)
    })?;
    Ok(canon::jcs(&value))
}

fn ahd_js_1(bytes: &[u8]) -> Result<Vec<u8>, Problem> {
    canonical_text(bytes, Profile::AhdJs1).map_err(|error| {
        let hint = match error.refusal() {
            YamlRefusal::Syntax => "give one JSON or YAML 1.2 document in UTF-8, each key once",
            YamlRefusal::Unsupported => "write it in a form that JSON can hold without loss",
            YamlRefusal::TooLarge => "hash a file of this size by its bytes",
        };
        Problem::new(format!("stdin: {error}"), hint)
    })
}
