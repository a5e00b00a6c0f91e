//! `reprise canonicalize`: JSON in, canonical bytes out.

use std::io::{Read as _, Write as _};

use canon::{Integers, Profile, Reason};

use crate::args::{CanonicalProfile, CanonicalizeArgs};
use crate::exit::{Exit, OrHint, Problem};

/// Reads stdin and writes stdout.
pub(crate) fn run(args: &CanonicalizeArgs) -> anyhow::Result<Exit> {
    let mut bytes = Vec::new();
    std::io::stdin()
        .read_to_end(&mut bytes)
        .or_hint("stdin", "give the JSON on stdin")?;
    let value = canon::read(&bytes, Integers::Safe).map_err(|error| {
        let hint = match error.reason() {
            Reason::UnsafeInteger => "write the integer as a string; a double cannot hold it",
            Reason::DuplicateKey => "name each member once",
            _ => "give one JSON text in UTF-8",
        };
        Problem::new(format!("stdin: {error}"), hint)
    })?;
    let profile = match args.profile {
        CanonicalProfile::Jcs => Profile::Jcs,
        CanonicalProfile::AhdJs1 => Profile::AhdJs1,
    };
    let mut out = std::io::stdout().lock();
    out.write_all(&canon::canonical(&value, profile))?;
    out.flush()?;
    Ok(Exit::Ok)
}
