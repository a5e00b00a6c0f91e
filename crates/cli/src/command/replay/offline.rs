//! A replay from a bundle alone: no server, no data directory, no socket.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;

use canon::{Map, Value};
use domain::Kind;
use receipts::Receipt;
use runs::replay::{self, Progress, ReadArtifact, ReceiptIssuer, RequestError, Source};
use runs::workflow::{Registry, builtin};
use serde_json::json;

use super::report::Report;
use super::request::{Names, given_keys, own, prepare};
use super::{ReplayArgs, read_source, trial};
use crate::exit::{Exit, OrHint, Problem};

/// Replays and tells.
pub(super) fn run(args: &ReplayArgs, file: &Path) -> anyhow::Result<Exit> {
    let source = read_source(file)?;
    let (body, artifacts) = request(args, &source)?;
    if given_keys(args).next().is_some() {
        trial::check(&source, &body, &artifacts, args.offline.conformance)?;
    }
    let body = Value::Object(body);
    let (spec, secrets) = replay::read(&body, &source, &artifacts, args.offline.conformance)
        .map_err(|error| refusal(&error))?;
    let workflows = Registry::new(builtin());
    let replayed = match replay::run(&source, &workflows, &spec, &secrets, BTreeMap::new()) {
        Progress::Ended(replayed) => replayed,
        Progress::Needs(paused) => {
            return Err(Problem::new(
                format!("`{}` would have to be performed", paused.effect().key),
                "a replay from a bundle performs nothing: use a server for --refresh",
            )
            .into());
        }
    };
    let issuing = issuing(args, &source);
    let receipt = replay::receipt(&source, &spec, &replayed, &issuing).or_hint(
        "the receipt cannot be written",
        "check the bundle's own receipt with `reprise receipt verify`",
    )?;
    let mut report = Report {
        task: receipt.subject_id().to_owned(),
        source: source.task_id.to_string(),
        mode: spec.mode.as_str().to_owned(),
        status: replayed.end.status.as_str().to_owned(),
        failure: replayed.end.failure.clone(),
        answer: replayed.end.text.clone(),
        source_answer: replay::diff::answer(&source),
        receipt: Some(receipt.id().to_owned()),
        ..Report::default()
    };
    report.start(&replay::started(&source, &spec).into());
    report.end(
        replayed.end.broken.is_none(),
        &replayed.ended(&source).into(),
    );
    for emission in &replayed.emissions {
        let original = emission.original.and_then(|index| source.event(index));
        let payload = emission.payload.as_ref();
        let payload = payload.or_else(|| original.map(|event| &*event.payload));
        if let (Kind::EffectRecorded, Some(payload)) = (emission.kind, payload) {
            report.effect(&json!(payload), emission.override_key.as_deref());
        }
    }
    if args.receipt {
        std::io::stdout().write_all(&receipt.bytes())?;
    } else {
        let next = format!(
            "reprise replay --bundle {} --receipt > receipt.json, for its canonical bytes",
            file.display()
        );
        report.print(args.json, &[next])?;
    }
    Ok(report.exit())
}

/// Returns the request, and the content of the Artifacts that it names.
fn request(
    args: &ReplayArgs,
    source: &Source,
) -> anyhow::Result<(Map<String, Value>, BTreeMap<String, ReadArtifact>)> {
    let mut artifacts = BTreeMap::new();
    for (id, file) in &args.offline.artifact {
        let hint = "name a file with the content of the artifact";
        let bytes = std::fs::read(file).or_hint(format_args!("`{file}`"), hint)?;
        artifacts.insert(id.clone(), own(bytes));
    }
    let prepared = prepare(args, Names::Keys, |key| replay::question(source, key))?;
    Ok((prepared.into_local(&mut artifacts), artifacts))
}

fn issuing(args: &ReplayArgs, source: &Source) -> ReceiptIssuer {
    let receipt = source.receipt.as_ref().map(Receipt::as_map);
    let stated = |name: &str| {
        let issuer = receipt?.get("issuer")?;
        issuer.get(name)?.as_str().map(str::to_owned)
    };
    let offline = &args.offline;
    ReceiptIssuer {
        id: offline
            .issuer
            .clone()
            .or_else(|| stated("id"))
            .unwrap_or_else(|| "reprise".to_owned()),
        name: match &offline.issuer {
            // The name of one issuer is not the name of another.
            Some(_) => offline.issuer_name.clone(),
            None => offline.issuer_name.clone().or_else(|| stated("name")),
        },
        ordinal: offline.ordinal,
    }
}

fn refusal(error: &RequestError) -> anyhow::Error {
    let (place, hint) = match error {
        RequestError::Invalid { param, details, .. } => {
            let nearest = details.get("nearest_checkpoint_id").and_then(Value::as_str);
            let hint = match nearest {
                Some(nearest) => format!("the nearest earlier checkpoint is `{nearest}`"),
                None => "correct the request; --list shows keys and checkpoints".to_owned(),
            };
            (param.as_str(), hint)
        }
        RequestError::NotFound { object, param } if *object == "artifact" => (
            param.as_str(),
            "give its content with --artifact ID=FILE, or the value with --override KEY=FILE"
                .to_owned(),
        ),
        RequestError::NotFound { param, .. } => (
            param.as_str(),
            "--list shows keys and checkpoints".to_owned(),
        ),
        RequestError::DigestMismatch {
            expected: Some(expected),
            ..
        } => ("", format!("the digest of the value is {expected}")),
        RequestError::DigestMismatch { expected: None, .. } => {
            ("", "leave the digest of a secret out".to_owned())
        }
        RequestError::Forbidden { param, .. } => (
            param.as_str(),
            "a replay from a bundle performs nothing: leave --refresh out".to_owned(),
        ),
        RequestError::TooLarge { param } => (
            param.as_str(),
            "give the value with --override KEY=FILE".to_owned(),
        ),
    };
    let place = match place {
        "" => String::new(),
        place => format!(" (`{place}`)"),
    };
    Problem::new(format!("{error}{place}"), hint).into()
}
