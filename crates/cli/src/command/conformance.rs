//! `reprise conformance`: the black-box runner against any server.

use std::time::Duration;

use conformance::{AkashikSuite, Outcome, Report, Suite, SuiteError, Verdict};

use crate::args::{ConformanceArgs, Connection};
use crate::client::Target;
use crate::exit::{Exit, Problem};
use crate::output::{Output, Paint, Progress, inform};

/// Runs every check.
pub(crate) async fn run(args: ConformanceArgs) -> anyhow::Result<Exit> {
    let json = args.json;
    let progress = Progress::begin("asking the server");
    let mut seen = 0;
    let judged = judge(args, |_| {
        seen += 1;
        progress.count("requirements judged", seen);
    })
    .await;
    drop(progress);
    let exit = show(&judged?, json)?;
    inform(
        "what the run created stays on that server: workspaces, sessions, tasks and open questions, which a log never forgets",
    );
    Ok(exit)
}

async fn judge(args: ConformanceArgs, progress: impl FnMut(&Outcome)) -> anyhow::Result<Report> {
    let connection = Connection {
        // Whoever names a key for another machine means it; a found one is not sent in the clear.
        allow_plain_http: args.key.is_some(),
        url: args.akashik.clone().flatten().or(args.url),
        key: args.key,
        data: args.data,
        ca: None,
    };
    let target = Target::find(&connection)?;
    let timeout = Duration::from_secs(args.timeout);
    if args.akashik.is_some() {
        let suite = AkashikSuite {
            url: target.url.to_string(),
            key: target.key,
            other_key: args.other_key,
            restart: args.restart,
            timeout,
            skip: Vec::new(),
        };
        return suite.run(progress).await.map_err(not_begun);
    }
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
        timeout,
        skip: Vec::new(),
    };
    suite.run(progress).await.map_err(not_begun)
}

fn not_begun(error: SuiteError) -> anyhow::Error {
    let hint = match &error {
        SuiteError::Address { .. } => "an address looks like http://127.0.0.1:8080",
        _ => "start a server with `reprise serve`, or name one with --url",
    };
    Problem::new(error.to_string(), hint).into()
}

fn show(report: &Report, json: bool) -> anyhow::Result<Exit> {
    let mut out = Output::stdout();
    if json {
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
    inform(report.summary());
    Ok(if report.failed() == 0 {
        Exit::Ok
    } else {
        Exit::No
    })
}
