//! `reprise tlog`: comparing heads of a receipt log, as anybody can who kept one.

use std::path::PathBuf;

use canon::Digest;
use clap::Subcommand;
use receipts::merkle;
use receipts::note::{Checkpoint, Note};
use receipts::tiles::{self, Tile};

use super::file::{check_checkpoint, read_file, read_keys};
use super::report::{Findings, Question};
use super::witnessed::Witnesses;
use crate::exit::{Exit, OrHint, Problem};
use crate::output::Output;

/// `reprise tlog`
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Check that a newer head of a log continues an older one
    #[command(
        after_help = "Exit 0 when the newer head only added to the older one and a given key signed both, 1 otherwise.\n\
        The hashes in between come from the log's public tiles.\n\n\
        Example:\n  reprise tlog check monday.checkpoint friday.checkpoint \\\n    --keys jwks.json --url https://server.example"
    )]
    Check(CheckArgs),
}

/// `reprise tlog check`
#[derive(Debug, clap::Args)]
pub(crate) struct CheckArgs {
    /// The older checkpoint
    old: PathBuf,
    /// The newer checkpoint
    new: PathBuf,
    /// The public keys (JSON Web Key Set) to trust
    #[arg(long, value_name = "FILE")]
    keys: Option<PathBuf>,
    /// The server whose tiles hold what lies between
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs one of them.
pub(crate) fn run(command: Command) -> anyhow::Result<Exit> {
    let Command::Check(args) = command;
    let keys = args.keys.as_deref().map(read_keys).transpose()?;
    let mut findings = Findings::of(Question::Valid);
    let mut heads = Vec::new();
    for (name, path) in [("old", &args.old), ("new", &args.new)] {
        let bytes = read_file(path)?;
        let note = Note::read(&bytes)
            .or_hint(format_args!("`{}`", path.display()), "name a checkpoint")?;
        let head = Checkpoint::read(note.text());
        heads.push(head.or_hint(format_args!("`{}`", path.display()), "name a checkpoint")?);
        match &keys {
            Some(keys) => {
                let none = Witnesses::default();
                if let Some(signed) =
                    check_checkpoint(&bytes, Some(keys), None, &none, &mut findings)
                {
                    findings.signed_by(&signed.key_id);
                }
            }
            None => {
                let expected = Some("the log's keys, --keys".to_owned());
                findings.fail(name, "signature_not_checked", expected, None);
            }
        }
    }
    let [old, new] = heads.as_slice() else {
        return Err(Problem::new("two checkpoints are needed", "name both").into());
    };
    findings.compare("origin", "other_log", &old.origin, &new.origin);
    if old.size == new.size {
        findings.compare("root", "split_view", old.root, new.root);
    } else if old.size > new.size {
        let found = Some(format!("{} receipts after {}", new.size, old.size));
        findings.fail("consistency", "log_shrunk", None, found);
    } else {
        let path = crate::wait(consistency(args.url.as_deref(), old.size, new.size))?;
        let holds = merkle::verify_consistency(old.size, new.size, &old.root, &new.root, &path);
        match holds {
            true => findings.pass("consistency"),
            false => {
                let expected = Some(format!("a log that begins with root {}", old.root));
                let found = Some("one that was rewritten, or tiles of another log".to_owned());
                findings.fail("consistency", "split_view", expected, found);
            }
        }
    }
    findings.print(&mut Output::stdout(), args.json)?;
    Ok(findings.exit())
}

/// Computes the proof between two sizes from the public tiles.
async fn consistency(url: Option<&str>, old: u64, new: u64) -> anyhow::Result<Vec<Digest>> {
    // Every tree continues the empty one.
    if old == 0 {
        return Ok(Vec::new());
    }
    let Some(url) = url else {
        let hint = "give --url, the address of the server that keeps the log";
        return Err(Problem::new("the heads differ in size", hint).into());
    };
    let hint = "name a server that serves its log under /tlog";
    let client = reqwest::Client::builder().timeout(std::time::Duration::from_secs(30));
    let client = client.build().or_hint("no HTTP client", hint)?;
    let mut fetched: Vec<(Tile, Vec<u8>)> = Vec::new();
    for tile in tiles::consistency_tiles(old, new).or_hint("the sizes", hint)? {
        let address = format!("{}/tlog/{}", url.trim_end_matches('/'), tile.path());
        let answer = client
            .get(&address)
            .send()
            .await
            .or_hint(format_args!("`{address}`"), hint)?;
        let answer = answer
            .error_for_status()
            .or_hint(format_args!("`{address}`"), hint)?;
        let bytes = answer
            .bytes()
            .await
            .or_hint(format_args!("`{address}`"), hint)?;
        fetched.push((tile, bytes.to_vec()));
    }
    let read = |wanted: Tile| {
        let found = fetched.iter().find(|(tile, _)| *tile == wanted);
        found.map(|(_, bytes)| bytes.clone())
    };
    tiles::consistency(read, old, new).or_hint("the tiles", hint)
}
