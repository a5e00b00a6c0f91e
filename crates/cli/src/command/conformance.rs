//! `reprise conformance`: the black-box runner against any server.

use std::time::Duration;

use conformance::{Suite, SuiteError, Verdict};

use crate::args::ConformanceArgs;
use crate::exit::{Exit, Problem};
use crate::output::{Output, Paint, counter, talk};

/// Runs every check.
pub(crate) async fn run(args: ConformanceArgs) -> anyhow::Result<Exit> {
    let suite = Suite {
        url: args.url,
        key: args.key,
        other_key: args.other_key,
        approver_key: args.approver_key,
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
