//! The signature of a sidecar: Ed25519 over its canonical bytes without that member.
//!
//! Seeds and public keys are one line each, and their prefixes keep one from being taken for the other. A seed is
//! never printed and never read from a file that others may read.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ::sidecar::{Check, General, Outcome, ReadSidecar, Reason, Sidecar, Signature, signed_bytes};
use anyhow::{Context as _, ensure};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use canon::Integers;
use ed25519_dalek::{Signer as _, SigningKey, VerifyingKey};

use crate::output::{Output, warn};

pub(super) const EXAMPLES: &str = "\
Example:
  reprise sidecar keygen ~/.config/reprise/sidecar.key > sidecar.pub
  reprise sidecar capture --sign ~/.config/reprise/sidecar.key …
  reprise sidecar verify --key \"$(cat sidecar.pub)\" out/report.md";

/// Arguments of `sidecar keygen`.
#[derive(Debug, clap::Args)]
pub(super) struct KeygenArgs {
    /// Where to write the seed; the file must not exist yet.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

const ALGORITHM: &str = "ed25519";
const SEED_PREFIX: &str = "ed25519-seed:";
const PUBLIC_PREFIX: &str = "ed25519:";

/// Makes a key: the seed into a file of the owner's alone, the public key to standard output.
pub(super) fn keygen(args: &KeygenArgs) -> anyhow::Result<ExitCode> {
    let doing = || format!("cannot write `{}`", args.file.display());
    let mut seed = [0_u8; 32];
    getrandom::fill(&mut seed)
        .map_err(|error| anyhow::anyhow!("cannot get random numbers: {error}"))?;
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(&args.file).with_context(doing)?;
    let text = format!("{SEED_PREFIX}{}\n", URL_SAFE_NO_PAD.encode(seed));
    file.write_all(text.as_bytes()).with_context(doing)?;
    file.sync_all().with_context(doing)?;
    let public = SigningKey::from_bytes(&seed).verifying_key();
    let public = URL_SAFE_NO_PAD.encode(public.to_bytes());
    let public = format!("{PUBLIC_PREFIX}{public}");
    if args.json {
        let made = serde_json::json!({"public_key": public, "seed_file": args.file});
        Output::stdout().json(&made)?;
        return Ok(ExitCode::SUCCESS);
    }
    Output::stdout().line(public)?;
    warn(format_args!("seed written to `{}`", args.file.display()));
    Ok(ExitCode::SUCCESS)
}

/// Reads a seed file.
pub(super) fn read_seed(path: &Path) -> anyhow::Result<SigningKey> {
    let doing = || format!("cannot sign with `{}`", path.display());
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = fs::metadata(path).with_context(doing)?.permissions().mode();
        ensure!(
            mode & 0o077 == 0,
            "`{}` can be read by others (mode {:o}); `chmod 600` keeps it yours",
            path.display(),
            mode & 0o777
        );
    }
    let text = fs::read_to_string(path).with_context(doing)?;
    let seed = decode(text.trim_end(), SEED_PREFIX)
        .context("not a seed; `reprise sidecar keygen` creates one")
        .with_context(doing)?;
    Ok(SigningKey::from_bytes(&seed))
}

/// Reads a public key as `keygen` prints it. The text is never shown: it may be a seed.
pub(super) fn parse_public(text: &str) -> anyhow::Result<VerifyingKey> {
    let text = text.trim();
    ensure!(
        !text.starts_with(SEED_PREFIX),
        "--key wants the public key that keygen printed; this is a seed, which nobody else should see"
    );
    decode(text, PUBLIC_PREFIX)
        .and_then(|bytes| VerifyingKey::from_bytes(&bytes).ok())
        .with_context(|| {
            format!("--key wants a public key, `{PUBLIC_PREFIX}…`, as keygen prints it")
        })
}

fn decode(text: &str, prefix: &str) -> Option<[u8; 32]> {
    let bytes = URL_SAFE_NO_PAD.decode(text.strip_prefix(prefix)?).ok()?;
    bytes.try_into().ok()
}

/// Returns the sidecar with its signature; the key is named by its RFC 7638 thumbprint.
pub(super) fn sign(general: General, key: &SigningKey) -> anyhow::Result<General> {
    let mut general = General {
        signature: None,
        ..general
    };
    // The bytes that a reader will see are signed, not the value that they were written from.
    let text = Sidecar::General(Box::new(general.clone())).text()?;
    let document = canon::read(text.as_bytes(), Integers::Doubles)?;
    let public = receipts::PublicKey {
        key_id: String::new(),
        bytes: key.verifying_key().to_bytes(),
        not_before: None,
        expires: None,
        retired: None,
    };
    let signature = key.sign(&signed_bytes(&document));
    general.signature = Some(Signature {
        alg: ALGORITHM.to_owned(),
        key_id: public.thumbprint(),
        value: URL_SAFE_NO_PAD.encode(signature.to_bytes()),
    });
    Ok(general)
}

/// Checks a signature: nothing to say when there is none and nobody asks.
pub(super) fn check(read: &ReadSidecar, key: Option<&VerifyingKey>) -> Option<Check> {
    let signature = match &read.sidecar {
        Sidecar::General(general) => general.signature.as_ref(),
        Sidecar::Ahd(_) => None,
    };
    let answer = match (signature, key) {
        (None, None) => return None,
        (None, Some(_)) => (Outcome::Fail, Some(Reason::NotSigned), None),
        (Some(_), None) => (
            Outcome::Note,
            Some(Reason::NotChecked),
            Some("--key names the signer's public key".to_owned()),
        ),
        (Some(signature), Some(key)) if holds(signature, key, read) => (Outcome::Ok, None, None),
        (Some(_), Some(_)) => (Outcome::Fail, Some(Reason::SignatureInvalid), None),
    };
    let signer = signature.map_or(ALGORITHM, |signature| &signature.key_id);
    Some(Check::new("signature", signer, answer))
}

fn holds(signature: &Signature, key: &VerifyingKey, read: &ReadSidecar) -> bool {
    let bytes = URL_SAFE_NO_PAD.decode(&signature.value);
    let parsed = bytes
        .ok()
        .and_then(|bytes| ed25519_dalek::Signature::from_slice(&bytes).ok());
    parsed.is_some_and(|parsed| {
        key.verify_strict(&signed_bytes(&read.document), &parsed)
            .is_ok()
    })
}
