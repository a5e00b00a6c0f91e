//! `reprise receipt`: receipts on a server by id, in files and in bundles without any server.
//!
//! Does the input and output around the pure crate `receipts`; every verdict comes from there. Exit codes are 0 (valid),
//! 1 (not valid) and 2 (usage or fault).

mod bundle;
mod events;
mod file;
mod online;
mod replays;
mod report;
pub(crate) mod tlog;
mod trust;
mod witnessed;

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Subcommand;
use domain::Timestamp;
use serde_json::{Value, json};
use store::{Options, SqliteStore};

use crate::args::{Connection, DirectoryArgs, ServerArgs};
use crate::exit::{Exit, OrHint, Problem};
use crate::output::{Output, Paint, Table, inform, shorten};
use crate::signing;

use file::read_receipt;
pub(crate) use report::Findings;
use report::Question;

/// `reprise receipt`
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show a receipt: from a server by its id or its task's id, or from a file
    #[command(
        after_help = "A receipt counts as unverified until `verify` has said otherwise.\n\n\
        Examples:\n  reprise receipt show receipt_0123\n  reprise receipt show task_0123 --wire > receipt.json\n  \
        reprise receipt show receipt.json"
    )]
    Show(ShowArgs),
    /// Verify a receipt or a whole bundle; exit 0 when it is whole and a given key vouches for it, 1 otherwise
    #[command(
        after_help = "With an id the server verifies. With a file nothing but files is read: no server, no network.\n\
        Without --keys nobody vouches for what is in a file, and it is not valid.\n\n\
        Examples:\n  reprise receipt verify receipt_0123\n  \
        reprise receipt verify receipt.json --keys jwks.json \\\n    --previous earlier.json --proof proof.json\n  \
        reprise receipt verify --bundle backup-2026-11-15 --keys jwks.json"
    )]
    Verify(VerifyArgs),
    /// Print the proof that a receipt is in the log: from a server, or computed from a bundle
    #[command(
        after_help = "Examples:\n  reprise receipt proof receipt_0123 > proof.json\n  \
        reprise receipt proof receipt.json --bundle backup-2026-11-15 > proof.json"
    )]
    Proof(ProofArgs),
    /// Show who allowed an agent to do what, and check the chain of decisions
    #[command(
        after_help = "With an id the server is asked. With a file nothing but files is read.\n\n\
        Examples:\n  reprise receipt trust task_0123\n  reprise receipt trust session_0123 --json > trust.json\n  \
        reprise receipt trust trust.json --keys jwks.json --receipt receipt.json"
    )]
    Trust(TrustArgs),
    /// Sign with a new key from now on; the old one stays published, marked as ended
    #[command(
        after_help = "Stop the server first: it holds its key until it ends. --origin gives the log another name from then\n\
        on; both keys sign a statement with both names. --lost continues with a new key where the file with the\n\
        old ones is gone: nothing vouches for the new key but the next head, which says so.\n\n\
        Examples:\n  reprise receipt rotate-key\n  reprise receipt rotate-key --origin log.example.com/receipts"
    )]
    RotateKey(RotateArgs),
    /// Declare a key untrusted from a given time on, because somebody else may have it
    #[command(
        after_help = "Stop the server first. Rotate a key that is in use before you revoke it. What the key signed counts\n\
        from then on only together with its place in a log head that another key signed.\n\n\
        Example:\n  reprise receipt revoke-key key_0123456789abcdef --since 2026-11-15T10:00:00Z"
    )]
    RevokeKey(RevokeArgs),
}

/// `reprise receipt show`
#[derive(Debug, clap::Args)]
pub(crate) struct ShowArgs {
    /// A receipt's id, a task's id, or a file
    receipt: String,
    /// Print JSON
    #[arg(long, conflicts_with = "wire")]
    json: bool,
    /// Print the bytes that were hashed and signed
    #[arg(long)]
    wire: bool,
    #[command(flatten)]
    connection: Connection,
}

/// `reprise receipt verify`
#[derive(Debug, clap::Args)]
pub(crate) struct VerifyArgs {
    /// A receipt's id, a task's id, or a file
    #[arg(required_unless_present = "bundle", conflicts_with = "bundle")]
    receipt: Option<String>,
    /// A directory that `reprise log export` wrote
    #[arg(long, value_name = "DIR")]
    bundle: Option<PathBuf>,
    /// Check every signature of a bundle, also those that a signed checkpoint covers
    #[arg(long, requires = "bundle")]
    all_signatures: bool,
    /// The public keys (JSON Web Key Set) to trust
    #[arg(long, value_name = "FILE")]
    keys: Option<PathBuf>,
    /// The receipt before it in its session
    #[arg(long, value_name = "FILE", conflicts_with_all = ["bundle", "first"])]
    previous: Option<PathBuf>,
    /// Require that it is the first of its session
    #[arg(long, conflicts_with = "bundle")]
    first: bool,
    /// The proof that it is in the log
    #[arg(long, value_name = "FILE", conflicts_with = "bundle")]
    proof: Option<PathBuf>,
    /// A signed checkpoint of the log [default: the one in the proof or the bundle]
    #[arg(long, value_name = "FILE")]
    checkpoint: Option<PathBuf>,
    /// A key, by id or thumbprint, that must have signed
    #[arg(long, value_name = "KEY")]
    trust_anchor: Option<String>,
    /// The time at which keys must have been valid [default: the time of issue]
    #[arg(long, value_name = "TIME", conflicts_with = "bundle")]
    at_time: Option<String>,
    /// The public key (`name+id+key`) of a witness that must have signed the checkpoint; repeat for more
    #[arg(long, value_name = "VKEY")]
    witness: Vec<String>,
    /// How many of these witnesses must have signed [default: all]
    #[arg(long, value_name = "N", requires = "witness")]
    quorum: Option<usize>,
    /// Ask only whether a file or bundle is whole, not who vouches for it
    #[arg(long, conflicts_with_all = ["keys", "trust_anchor", "at_time"])]
    unsigned: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// `reprise receipt proof`
#[derive(Debug, clap::Args)]
pub(crate) struct ProofArgs {
    /// A receipt's id, a task's id, or a file
    receipt: String,
    /// Compute the proof from a directory that `reprise log export` wrote
    #[arg(long, value_name = "DIR")]
    bundle: Option<PathBuf>,
    /// Print JSON, which this command always does
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: Connection,
}

/// `reprise receipt trust`
#[derive(Debug, clap::Args)]
pub(crate) struct TrustArgs {
    /// A session's id, a task's id, or a file
    chain: String,
    /// The public keys (JSON Web Key Set) to trust [default: the server's]
    #[arg(long, value_name = "FILE")]
    keys: Option<PathBuf>,
    /// A receipt whose approvals must be in the chain
    #[arg(long, value_name = "FILE")]
    receipt: Option<PathBuf>,
    /// Ask only whether the chain is whole, not who vouches for it
    #[arg(long, conflicts_with = "keys")]
    unsigned: bool,
    /// Print the chain as JSON (`opentrustgraph-chain/v0`)
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: Connection,
}

/// `reprise receipt rotate-key`
#[derive(Debug, clap::Args)]
pub(crate) struct RotateArgs {
    /// The name of the log in signed heads from now on [default: as before]
    #[arg(long, value_name = "NAME")]
    origin: Option<String>,
    /// Continue with a new key because `signing-keys.json` is lost
    #[arg(long)]
    lost: bool,
    #[command(flatten)]
    directory: DirectoryArgs,
}

/// `reprise receipt revoke-key`
#[derive(Debug, clap::Args)]
pub(crate) struct RevokeArgs {
    /// The key's id
    key: String,
    /// The time from which its signatures no longer count by their own date [default: now]
    #[arg(long, value_name = "TIME", value_parser = crate::time::since)]
    since: Option<Timestamp>,
    #[command(flatten)]
    directory: DirectoryArgs,
}

/// Runs one of them.
pub(crate) fn run(command: Command) -> anyhow::Result<Exit> {
    match command {
        Command::Show(args) => show(&args),
        Command::Verify(args) => verify(&args),
        Command::Proof(args) => proof(&args),
        Command::Trust(args) => trust::run(&trust::Request {
            name: &args.chain,
            keys: args.keys.as_deref(),
            receipt: args.receipt.as_deref(),
            question: match args.unsigned {
                true => Question::Whole,
                false => Question::Valid,
            },
            json: args.json,
            connection: &args.connection,
        }),
        Command::RotateKey(args) => rotate(&args),
        Command::RevokeKey(args) => revoke(&args),
    }
}

/// What was named: a file when there is one, otherwise an id.
fn names_file(text: &str) -> bool {
    text == "-" || std::path::Path::new(text).is_file()
}

fn show(args: &ShowArgs) -> anyhow::Result<Exit> {
    let mut out = Output::stdout();
    let (shown, bare, verdict) = if names_file(&args.receipt) {
        let handed = read_receipt(args.receipt.as_ref())?;
        let bare = handed.bytes;
        (
            value_of(&args.receipt, &bare)?,
            bare,
            "not verified yet; run `receipt verify`".to_owned(),
        )
    } else {
        let shown = crate::wait(online::receipt(&args.connection, &args.receipt))?;
        let bare = shown.pointer("/wire/payload").map(canon::jcs);
        let verdict = online::last_verdict(&shown);
        (shown, bare.unwrap_or_default(), verdict)
    };
    if args.wire {
        out.write(&String::from_utf8_lossy(&bare))?;
    } else if args.json {
        out.json(&shown)?;
    } else {
        describe(&mut out, &shown, &verdict)?;
    }
    Ok(Exit::Ok)
}

fn value_of(file: &str, bytes: &[u8]) -> anyhow::Result<Value> {
    canon::read(bytes, canon::Integers::Safe).or_hint(
        format_args!("`{file}` is not a receipt"),
        "name a file that holds one receipt as JSON or CBOR",
    )
}

/// Prints what a person looks for first.
fn describe(out: &mut Output, receipt: &Value, verdict: &str) -> anyhow::Result<()> {
    let text = |pointer: &str| match receipt.pointer(pointer) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Null) | None => "none".to_owned(),
        Some(other) => other.to_string(),
    };
    let count = |pointer: &str| {
        let list = receipt.pointer(pointer).and_then(Value::as_array);
        list.map_or(0, Vec::len)
    };
    let signers: Vec<String> = receipt
        .pointer("/signatures")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.get("key_id")?.as_str().map(str::to_owned))
        .collect();
    let signers = match signers.as_slice() {
        [] => "nobody".to_owned(),
        keys => keys.join(", "),
    };
    let rows = [
        ("receipt", text("/receipt_id")),
        (
            "subject",
            format!("{} {}", text("/subject/object"), text("/subject/id")),
        ),
        (
            "ended",
            format!(
                "{} at {}",
                text("/lifecycle/final_state"),
                text("/lifecycle/completed_at")
            ),
        ),
        (
            "issued",
            format!("{} by {}", text("/issued_at"), text("/issuer/id")),
        ),
        (
            "model",
            format!(
                "{} {}",
                text("/model_route/chosen_model/provider"),
                text("/model_route/chosen_model/model")
            ),
        ),
        ("cost", cost(receipt)),
        ("tokens", tokens(receipt)),
        ("tools", tools(receipt)),
        ("approvals", approvals(receipt)),
        ("materials", count("/replay_input/materials").to_string()),
        ("artifacts", count("/final_artifacts").to_string()),
        ("deltas", count("/deltas").to_string()),
        ("redactions", count("/redactions").to_string()),
        ("hash", text("/chain/receipt_hash")),
        ("previous", text("/chain/previous_receipt_hash")),
        ("signed by", signers),
        ("verdict", verdict.to_owned()),
    ];
    let mut table = Table::default();
    for (name, value) in rows {
        let value = crate::output::shorten(&value, 200);
        table.row([(name.to_owned(), Some(Paint::Quiet)), (value, None)]);
    }
    table.print(out, "")?;
    deltas(out, receipt)
}

/// Returns how many tokens were read and written, as far as the receipt says it.
fn tokens(receipt: &Value) -> String {
    let consumed = |name: &str| {
        let place = format!("/autonomy_budget/consumed/{name}");
        receipt.pointer(&place).and_then(Value::as_u64)
    };
    match (consumed("input_tokens"), consumed("output_tokens")) {
        (Some(read), Some(written)) => format!("{read} read, {written} written"),
        _ => "not stated".to_owned(),
    }
}

/// Returns which tools were used, how often, and how often one failed.
fn tools(receipt: &Value) -> String {
    let calls = receipt.pointer("/side_effects/tool_calls");
    let calls = calls.and_then(Value::as_array);
    let mut used: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for call in calls.into_iter().flatten() {
        let text = |name: &str| call.get(name).and_then(Value::as_str);
        let (count, failed) = used.entry(text("tool").unwrap_or("unknown")).or_default();
        *count += 1;
        *failed += usize::from(text("status") != Some("succeeded"));
    }
    let told = used.into_iter().map(|(tool, (count, failed))| {
        let times = match count {
            1 => String::new(),
            count => format!(" ×{count}"),
        };
        match failed {
            0 => format!("{tool}{times}"),
            failed => format!("{tool}{times} ({failed} did not succeed)"),
        }
    });
    none_or(told.collect())
}

/// Returns who decided what.
fn approvals(receipt: &Value) -> String {
    let approvals = receipt.get("approvals").and_then(Value::as_array);
    let told = approvals.into_iter().flatten().map(|approval| {
        let text = |name: &str| {
            let found = approval.get(name).and_then(Value::as_str);
            found.unwrap_or("unknown")
        };
        format!(
            "{} {} by {}",
            text("action"),
            text("decision"),
            text("actor")
        )
    });
    none_or(told.collect())
}

fn none_or(words: Vec<String>) -> String {
    match words.is_empty() {
        true => "none".to_owned(),
        false => words.join(", "),
    }
}

/// Returns what it cost. What nobody knows is no nothing.
fn cost(receipt: &Value) -> String {
    let Some(cost) = receipt.get("cost").filter(|cost| cost.is_object()) else {
        return "none".to_owned();
    };
    let total = cost.get("total").map(Value::to_string).unwrap_or_default();
    let currency = cost.get("currency").and_then(Value::as_str);
    let total = format!("{total} {}", currency.unwrap_or_default());
    let redactions = receipt.get("redactions").and_then(Value::as_array);
    let unknown = redactions.into_iter().flatten().filter_map(|redaction| {
        let is_price = redaction.get("reason")?.as_str()? == "price_unknown";
        let field = redaction.get("field")?.as_str().filter(|_| is_price)?;
        let steps = field.strip_prefix("/cost/provider_breakdown/")?;
        Some(steps.replace("~1", "/").replace("~0", "~"))
    });
    let unknown: Vec<String> = unknown.collect();
    match unknown.as_slice() {
        [] => total,
        names => format!(
            "{total} + unknown: no price is known for {}",
            names.join(", ")
        ),
    }
}

/// Prints what a replay changed or performed live.
fn deltas(out: &mut Output, receipt: &Value) -> anyhow::Result<()> {
    let deltas = receipt.get("deltas").and_then(Value::as_array);
    let deltas = deltas.map(Vec::as_slice).unwrap_or_default();
    if deltas.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(&["DELTA", "OPERATION", "BEFORE", "AFTER", "REASON"]);
    for delta in deltas {
        let text = |name: &str| delta.get(name).and_then(Value::as_str);
        let digest = |name: &str| {
            let hex = text(name).map(|text| text.trim_start_matches("sha256:"));
            hex.map_or("none".to_owned(), |hex| shorten(hex, 13))
        };
        let key = text("override_key").or_else(|| text("path"));
        table.row([
            (shorten(key.unwrap_or_default(), 100), None),
            (shorten(text("operation").unwrap_or_default(), 20), None),
            (digest("before_sha256"), Some(Paint::Quiet)),
            (digest("after_sha256"), Some(Paint::Quiet)),
            (shorten(text("reason").unwrap_or_default(), 120), None),
        ]);
    }
    out.line("")?;
    table.print(out, "")
}

fn verify(args: &VerifyArgs) -> anyhow::Result<Exit> {
    let question = match args.unsigned {
        true => Question::Whole,
        false => Question::Valid,
    };
    let witnesses = witnessed::Witnesses::read(&args.witness, args.quorum)?;
    let findings = match (&args.bundle, &args.receipt) {
        (Some(directory), _) => bundle::verify(&bundle::Request {
            directory,
            keys: args.keys.as_deref(),
            checkpoint: args.checkpoint.as_deref(),
            trust_anchor: args.trust_anchor.as_deref(),
            all_signatures: args.all_signatures,
            witnesses: &witnesses,
            question,
        })?,
        (None, Some(name)) if names_file(name) => file::verify(&file::Request {
            receipt: name.as_ref(),
            keys: args.keys.as_deref(),
            previous: args.previous.as_deref(),
            first: args.first,
            proof: args.proof.as_deref(),
            checkpoint: args.checkpoint.as_deref(),
            trust_anchor: args.trust_anchor.as_deref(),
            at_time: args.at_time.as_deref(),
            witnesses: &witnesses,
            question,
        })?,
        (None, Some(name)) => {
            let needs_file = args.keys.is_some()
                || args.previous.is_some()
                || args.first
                || args.unsigned
                || !args.witness.is_empty()
                || args.proof.is_some()
                || args.checkpoint.is_some();
            if needs_file {
                return Err(Problem::new(
                    format!("there is no file `{name}`"),
                    "--keys, --unsigned, --previous, --first, --proof and --checkpoint go with a file; a server has its own",
                )
                .into());
            }
            let options = json!({"trust_anchor": args.trust_anchor, "at_time": args.at_time});
            let findings = crate::wait(online::verify(&args.server.connection, name, options))?;
            inform(
                "the server itself says so; to check without it: reprise receipt show ID --wire > receipt.json, \
                 then reprise receipt verify receipt.json --keys jwks.json",
            );
            findings
        }
        (None, None) => {
            let hint = "name a receipt, or a directory with --bundle";
            return Err(Problem::new("nothing to verify", hint).into());
        }
    };
    findings.print(&mut Output::stdout(), args.server.json)?;
    Ok(findings.exit())
}

fn proof(args: &ProofArgs) -> anyhow::Result<Exit> {
    let proof = match &args.bundle {
        Some(directory) => bundle::prove(directory, &args.receipt)?,
        None => crate::wait(online::proof(&args.connection, &args.receipt))?,
    };
    Output::stdout().json(&proof)?;
    Ok(Exit::Ok)
}

/// Opens a data directory. Holding it keeps servers away: one that runs would go on with the old key.
fn hold(data: &std::path::Path) -> Result<SqliteStore, Problem> {
    if !data.exists() {
        return Err(Problem::new(
            format!("`{}` is not a data directory", data.display()),
            "name the directory that `reprise serve` uses",
        ));
    }
    SqliteStore::open(data, Options::default()).map_err(|error| {
        let hint = error.hint();
        Problem::new(error.to_string(), hint)
    })
}

fn revoke(args: &RevokeArgs) -> anyhow::Result<Exit> {
    let data = args.directory.data.data.as_path();
    let since = match args.since {
        None => jiff::Timestamp::now().as_second(),
        Some(time) => time.as_micros().div_euclid(1_000_000),
    };
    let store = hold(data)?;
    let rotated = signing::revoke(data, &store, &args.key, since)?;
    store.close();
    if args.directory.json {
        let active = rotated.map(|rotated| rotated.new);
        let value = json!({"revoked": args.key, "since": since, "rotated_to": active});
        Output::stdout().json(&value)?;
    } else {
        inform(format_args!("`{}` is revoked", args.key));
    }
    Ok(Exit::Ok)
}

fn rotate(args: &RotateArgs) -> anyhow::Result<Exit> {
    let data = args.directory.data.data.as_path();
    let store = hold(data)?;
    if args.lost {
        let new = signing::replace_lost(data, &store, args.origin.as_deref())?;
        store.close();
        if args.directory.json {
            Output::stdout().json(&json!({"active": new, "previous": null}))?;
        } else {
            inform(format_args!(
                "receipts are signed with `{new}` from now on, and the log says that the keys before it are lost; give those \
                 who verify the new key set, and keep the old one for what it signed"
            ));
        }
        return Ok(Exit::Ok);
    }
    let rotated = signing::rotate_to(data, &store, args.origin.as_deref())?;
    store.close();
    if args.directory.json {
        let value = json!({"active": rotated.new, "previous": rotated.old});
        Output::stdout().json(&value)?;
    } else {
        inform(format_args!(
            "receipts are signed with `{}` from now on; `{}` stays published for those it signed",
            rotated.new, rotated.old
        ));
    }
    Ok(Exit::Ok)
}
