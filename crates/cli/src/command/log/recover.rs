//! `reprise log recover`: goes on with a log that has lost what was acknowledged, openly.

use domain::BatchId;
use engine::port::{Clock, Ids, Store};
use serde_json::json;
use server::world::{RandomIds, SystemClock};
use store::{Options, SqliteStore};

use crate::args::LogRecoverArgs;
use crate::exit::{Exit, OrHint, Problem};
use crate::output::{Output, inform};
use crate::signing;

pub(super) fn run(args: &LogRecoverArgs) -> anyhow::Result<Exit> {
    let data = args.directory.data.data.as_path();
    if !args.accept_loss {
        return Err(Problem::new(
            "nothing is recovered without `--accept-loss`",
            "`reprise log verify` says what is lost; restore a backup if there is one, because the lost events do not come back",
        )
        .into());
    }
    let opened = SqliteStore::open_accepting_loss(data, Options::default()).map_err(|error| {
        let hint = error.hint();
        Problem::new(error.to_string(), hint)
    })?;
    let Some((store, lost)) = opened else {
        inform("nothing is lost, and nothing was changed");
        return Ok(Exit::Ok);
    };
    // Makes the file when the directory has none: then no head was ever signed.
    signing::authority(data, store.name().log())?;
    let (old, new) = signing::renew_origin(data)?;
    let authority = signing::authority(data, store.name().log())?;
    let recovered = json!({
        "origin": old,
        "reason": lost.loss.to_string(),
        "last_position": lost.found.0,
        "acknowledged_position": lost.acknowledged.map(|position| position.0),
        "head": lost.tree.map(|(size, root)| json!({"size": size, "root": root})),
    });
    let id = BatchId::from_body(&RandomIds.body());
    let now = SystemClock.now();
    let first = crate::wait(async {
        let begins = engine::HeadReason::Recovery(recovered.clone());
        engine::seal_first(&store, &authority, (id, now), begins)
            .await
            .or_hint(
                "the first head under the new origin cannot be sealed",
                "run the command again",
            )
    })?;
    store.close();
    if args.directory.json {
        Output::stdout().json(&json!({
            "recovered": recovered,
            "origin": new,
            "first_position": first.0,
            "kept_in": lost.aside.display().to_string(),
        }))?;
        return Ok(Exit::Ok);
    }
    let mut out = Output::stdout();
    out.line(format_args!(
        "the log ends at position {} and continues at {} under the origin `{new}`; what was found is kept in `{}`",
        lost.found.0,
        first.0,
        lost.aside.display()
    ))?;
    Ok(Exit::Ok)
}
