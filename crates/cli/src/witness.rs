//! Witnesses: third parties that sign the heads of the receipt log, and the client that asks them to.
//!
//! Which witnesses there are is a file of the data directory. A running server reads it again when it changes, and posts
//! each new head with its consistency proof (C2SP `tlog-witness`). What a witness answers is checked against its
//! configured key before it is stored. Nothing waits for a witness.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Subcommand;
use engine::{Caller, Engine};
use receipts::note::{KeyUse, NoteKey};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::args::DirectoryArgs;
use crate::exit::{Exit, OrHint, Problem};
use crate::output::{Output, Table, inform, is_quiet};

/// The file in the data directory.
const FILE: &str = "witnesses.json";
/// How often the newest head is looked at.
const PACE: Duration = Duration::from_secs(1);
/// How long a witness may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The longest pause after failures.
const PAUSE_MAX: Duration = Duration::from_secs(300);
/// The longest answer that is read.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// The most witnesses of one log; a note holds a hundred signatures.
const WITNESSES_MAX: usize = 32;

/// `reprise witness`
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Ask a witness to sign the heads of the receipt log from now on
    #[command(
        after_help = "VKEY is the witness's public key in the form `name+id+key`, for cosignature/v1. A running server takes it \
        up within a second.\n\n\
        Example:\n  reprise witness add https://witness.example/ witness.example+a1b2c3d4+BFl…"
    )]
    Add(AddArgs),
    /// List the witnesses
    #[command(after_help = "Example:\n  reprise witness list")]
    List(DirectoryArgs),
    /// Stop asking a witness
    #[command(after_help = "Example:\n  reprise witness remove witness.example")]
    Remove(RemoveArgs),
}

/// `reprise witness add`
#[derive(Debug, clap::Args)]
pub(crate) struct AddArgs {
    /// Where it takes checkpoints: the address before `/add-checkpoint`
    url: String,
    /// Its public key
    vkey: String,
    #[command(flatten)]
    directory: DirectoryArgs,
}

/// `reprise witness list`
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    directory: DirectoryArgs,
}

/// `reprise witness remove`
#[derive(Debug, clap::Args)]
pub(crate) struct RemoveArgs {
    /// Its name, the first part of its key
    name: String,
    #[command(flatten)]
    directory: DirectoryArgs,
}

/// One witness.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Witness {
    url: String,
    vkey: String,
}

impl Witness {
    fn key(&self) -> anyhow::Result<NoteKey> {
        let hint = "a witness's key for cosignature/v1 has the form `name+id+key`";
        let key = NoteKey::parse(&self.vkey).or_hint(format_args!("`{}`", self.vkey), hint)?;
        match key.key_use() {
            KeyUse::Cosignature => Ok(key),
            KeyUse::Note => {
                let message = format!("`{}` is a key for notes, not for cosignatures", self.vkey);
                Err(Problem::new(message, hint).into())
            }
        }
    }
}

/// Runs one of them.
pub(crate) fn run(command: Command) -> anyhow::Result<Exit> {
    match command {
        Command::Add(args) => add(&args),
        Command::List(args) => list(&args),
        Command::Remove(args) => remove(&args),
    }
}

fn add(args: &AddArgs) -> anyhow::Result<Exit> {
    let data = args.directory.data.data.as_path();
    let witness = Witness {
        url: args.url.trim_end_matches('/').to_owned(),
        vkey: args.vkey.clone(),
    };
    let is_address = ["http://", "https://"]
        .iter()
        .any(|scheme| witness.url.starts_with(scheme));
    if !is_address {
        let hint = "write it as https://witness.example";
        return Err(Problem::new(format!("`{}` is not an address", args.url), hint).into());
    }
    let key = witness.key()?;
    if !data.is_dir() {
        let hint = "name the directory that `reprise serve` uses";
        let message = format!("`{}` is not a data directory", data.display());
        return Err(Problem::new(message, hint).into());
    }
    if crate::signing::origin(data)?.is_some_and(|own| own == key.name()) {
        let hint = "a witness is somebody else: take the key that it publishes";
        let message = format!("`{}` is the name of this log itself", key.name());
        return Err(Problem::new(message, hint).into());
    }
    let mut known = read(data)?;
    known.retain(|other| other.key().is_ok_and(|other| other.name() != key.name()));
    if known.len() >= WITNESSES_MAX {
        let hint = "`reprise witness remove` makes room";
        return Err(Problem::new(format!("there are {WITNESSES_MAX} already"), hint).into());
    }
    let added = json!({"name": key.name(), "url": witness.url, "vkey": witness.vkey});
    known.push(witness);
    write(data, &known)?;
    match args.directory.json {
        true => Output::stdout().json(&added)?,
        false => inform(format_args!(
            "`{}` is asked to sign each new head",
            key.name()
        )),
    }
    Ok(Exit::Ok)
}

fn list(args: &DirectoryArgs) -> anyhow::Result<Exit> {
    let known = read(args.data.data.as_path())?;
    let mut out = Output::stdout();
    if args.json {
        out.json(&json!(known))?;
        return Ok(Exit::Ok);
    }
    if is_quiet() {
        let names: Vec<String> = known
            .iter()
            .filter_map(|witness| Some(witness.key().ok()?.name().to_owned()))
            .collect();
        out.ids(names.iter().map(String::as_str))?;
        return Ok(Exit::Ok);
    }
    let mut table = Table::new(&["NAME", "ADDRESS", "KEY"]);
    for witness in &known {
        let name = witness
            .key()
            .map_or_else(|_| "-".to_owned(), |key| key.name().to_owned());
        table.row([
            (name, None),
            (witness.url.clone(), None),
            (witness.vkey.clone(), None),
        ]);
    }
    if known.is_empty() {
        inform("no witnesses are configured");
    }
    table.print(&mut out, "")?;
    Ok(Exit::Ok)
}

fn remove(args: &RemoveArgs) -> anyhow::Result<Exit> {
    let data = args.directory.data.data.as_path();
    let mut known = read(data)?;
    let count = known.len();
    known.retain(|other| other.key().is_ok_and(|other| other.name() != args.name));
    if known.len() == count {
        let hint = "`reprise witness list` shows them";
        let message = format!("there is no witness `{}`", args.name);
        return Err(Problem::new(message, hint).answers_no().into());
    }
    write(data, &known)?;
    match args.directory.json {
        true => Output::stdout().json(&json!({"name": args.name, "removed": true}))?,
        false => inform(format_args!("`{}` is no longer asked", args.name)),
    }
    Ok(Exit::Ok)
}

fn path(directory: &Path) -> PathBuf {
    directory.join(FILE)
}

fn read(directory: &Path) -> anyhow::Result<Vec<Witness>> {
    let file = path(directory);
    let bytes = match std::fs::read(&file) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => {
            return Err(error).or_hint(
                format_args!("`{}`", file.display()),
                "let this user read it",
            );
        }
    };
    let hint = "`reprise witness add` writes it";
    serde_json::from_slice(&bytes).or_hint(format_args!("`{}`", file.display()), hint)
}

fn write(directory: &Path, witnesses: &[Witness]) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(witnesses).context("witnesses have no JSON form")?;
    files::write_durably(directory, FILE, format!("{text}\n").as_bytes()).or_hint(
        format_args!("`{}`", path(directory).display()),
        "check that the disk has room and lets this user write",
    )
}

/// What is known of a witness while the server runs.
#[derive(Debug, Default)]
struct Progress {
    /// The size of the newest head that it signed, as far as is known.
    size: u64,
    failures: u32,
    /// How many looks at the newest head are left out after failures.
    skip: u64,
}

/// Tells the engine which witnesses there are. A file that cannot be read is an error at the start.
pub(crate) fn load(directory: &Path, engine: &Engine) -> anyhow::Result<()> {
    engine.set_witnesses(keys(&read(directory)?)?);
    Ok(())
}

fn keys(witnesses: &[Witness]) -> anyhow::Result<Vec<NoteKey>> {
    witnesses.iter().map(Witness::key).collect()
}

/// Posts heads to witnesses for as long as the process lives.
pub(crate) async fn post_heads(directory: PathBuf, engine: Engine) {
    // Made for the first witness: it keeps all certificates that the system trusts.
    let mut client = None;
    let mut progress: BTreeMap<String, Progress> = BTreeMap::new();
    let mut changed = None;
    let mut witnesses = Vec::new();
    loop {
        tokio::time::sleep(PACE).await;
        let now = std::fs::metadata(path(&directory))
            .and_then(|file| file.modified())
            .ok();
        if changed != Some(now) {
            changed = Some(now);
            match read(&directory).and_then(|read| Ok((keys(&read)?, read))) {
                Ok((keys, read)) => {
                    engine.set_witnesses(keys);
                    witnesses = read;
                }
                Err(error) => tracing::warn!(
                    error = format!("{error:#}"),
                    "the list of witnesses stays as it was"
                ),
            }
        }
        if client.is_none() && !witnesses.is_empty() {
            let made = reqwest::Client::builder()
                .timeout(TIMEOUT)
                .redirect(reqwest::redirect::Policy::none())
                .build();
            let Ok(made) = made else {
                tracing::warn!("witnesses are not asked: there is no HTTP client");
                return;
            };
            client = Some(made);
        }
        let Some(client) = &client else {
            continue;
        };
        for witness in &witnesses {
            let state = progress.entry(witness.vkey.clone()).or_default();
            if state.skip > 0 {
                state.skip -= 1;
                continue;
            }
            match ask(client, &engine, witness, state).await {
                Ok(()) => state.failures = 0,
                Err(error) => {
                    state.failures = state.failures.saturating_add(1);
                    let seconds = 1_u64 << state.failures.min(9);
                    state.skip = seconds.min(PAUSE_MAX.as_secs());
                    tracing::warn!(
                        witness = witness.url,
                        error = format!("{error:#}"),
                        "a witness did not sign"
                    );
                }
            }
        }
    }
}

/// Asks one witness for its signature on the newest head, unless that has it.
async fn ask(
    client: &reqwest::Client,
    engine: &Engine,
    witness: &Witness,
    state: &mut Progress,
) -> anyhow::Result<()> {
    let Some((batch, size, _)) = engine.newest_batch().await? else {
        return Ok(());
    };
    if state.size >= size && state.size > 0 {
        return Ok(());
    }
    let mut caller = Caller::system();
    caller.actor = "witness".to_owned();
    let key = witness.key()?;
    let id = domain::BatchId::parse(&batch.id)?;
    let checkpoint = engine.checkpoint_of(&batch).await?;
    let note = receipts::note::Note::read(checkpoint.as_bytes())?;
    if note.verify(&key).is_ok() {
        state.size = size;
        return Ok(());
    }
    // A witness that knows another size says so; then it gets the proof from there.
    for _ in 0..2 {
        if state.size > size {
            anyhow::bail!(
                "it has signed a head of {}, this log has {size}",
                state.size
            );
        }
        // Every log continues the empty one.
        let proof = match state.size {
            0 => Vec::new(),
            known => engine.prove_consistency(known, size).await?,
        };
        let mut body = format!("old {}\n", state.size);
        for hash in proof {
            body.push_str(&STANDARD.encode(hash.as_bytes()));
            body.push('\n');
        }
        body.push('\n');
        body.push_str(&checkpoint);
        let url = format!("{}/add-checkpoint", witness.url);
        let answer = client.post(&url).body(body).send().await?;
        let status = answer.status().as_u16();
        let text = read_answer(answer).await?;
        match status {
            200 => {
                for line in text.lines().filter(|line| !line.is_empty()) {
                    engine.cosign(&caller, id.clone(), line).await?;
                }
                state.size = size;
                return Ok(());
            }
            409 => {
                let stated = text
                    .trim()
                    .parse()
                    .context("it answered 409 without its size")?;
                if stated == state.size {
                    anyhow::bail!("it refuses a head that follows its own");
                }
                state.size = stated;
            }
            _ => anyhow::bail!("it answered {status}"),
        }
    }
    anyhow::bail!("its size changes while it is asked")
}

async fn read_answer(mut answer: reqwest::Response) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    while let Some(chunk) = answer.chunk().await? {
        bytes.extend_from_slice(&chunk);
        if bytes.len() > ANSWER_BYTES_MAX {
            anyhow::bail!("its answer is too long");
        }
    }
    String::from_utf8(bytes).context("its answer is not text")
}
