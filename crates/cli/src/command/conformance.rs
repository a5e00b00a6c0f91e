//! `reprise conformance`: the black-box runner against any server.

use std::time::Duration;

use conformance::{Suite, SuiteError, Verdict};

use crate::args::{ConformanceArgs, Connection};
use crate::client::Target;
use crate::exit::{Exit, Problem};
use crate::output::{Output, Paint, counter, talk};

/// Runs every check.
pub(crate) async fn run(args: ConformanceArgs) -> anyhow::Result<Exit> {
    let connection = Connection {
        // Whoever names a key for another machine means it; a found one is not sent in the clear.
        allow_plain_http: args.key.is_some(),
        url: args.url,
        key: args.key,
        data: args.data,
        ca: None,
    };
    let target = Target::find(&connection)?;
    // Found together or not at all: the approver of one server decides nothing on another.
    let approver_key = match (&args.approver_key, &connection.key) {
        (None, None) => Target::find_approver(&connection)
            .ok()
            .map(|approver| approver.key)
            .filter(|key| *key != target.key),
        (given, _) => given.clone(),
    };
    let suite = Suite {
        url: target.url.to_string(),
        key: target.key,
        other_key: args.other_key,
        approver_key,
        dead_keys: args.dead_key,
        expired_keys: args.expired_key,
        make_key: args.make_key,
        restart: args.restart,
        published: args.suite,
        timeout: Duration::from_secs(args.timeout),
        skip: Vec::new(),
    };
    let bar = counter();
    let report = suite
        .run(|outcome| {
            bar.inc(1);
            bar.set_message(outcome.id);
        })
        .await;
    bar.finish_and_clear();
    let report = report.map_err(|error| {
        let hint = match &error {
            SuiteError::Address { .. } => "an address looks like http://127.0.0.1:8080",
            _ => "start a server with `reprise serve`, or name one with --url",
        };
        Problem::new(error.to_string(), hint)
    })?;
    let mut out = Output::stdout();
    if args.json {
        out.json(&report.json())?;
    } else {
        for outcome in &report.outcomes {
            let paint = match outcome.verdict {
                Verdict::Ok { .. } => None,
                Verdict::Fail { .. } => Some(Paint::Bad),
                Verdict::Differs { .. } | Verdict::NotCovered { .. } => Some(Paint::Quiet),
            };
            let line = crate::output::printable(&outcome.line());
            match paint {
                Some(paint) => out.line(out.paint(paint, &line))?,
                None => out.line(line)?,
            }
        }
    }
    talk(report.summary());
    Ok(if report.failed() == 0 {
        Exit::Ok
    } else {
        Exit::No
    })
}
