//! One damaged document and one damaged event: the check names each of them, and nothing else.

use rusqlite::Connection;

use crate::client::Ask;
use crate::host::Host;

/// A stopped server's files, with the ids of two Sessions.
async fn written() -> (Host, [String; 2]) {
    let mut host = Host::new();
    let api = host.api();
    let sessions = [api.session().await, api.session().await];
    for session in &sessions {
        for workflow in ["agent", "ask", "hold"] {
            api.ok(&Ask::task(session, workflow, "Do it").at_once())
                .await;
        }
    }
    let (status, _) = host.take().stop();
    assert_eq!(status.code(), Some(0));
    host.must_verify();
    (host, sessions)
}

/// Runs the check, which must find exactly these.
fn finds(host: &Host, problems: &[String]) {
    let said = host.world.run(&["log", "verify"]);
    assert_eq!(said.code, 1, "{said:?}");
    let lines: Vec<&str> = said.stdout.lines().collect();
    assert_eq!(lines.len(), problems.len(), "{said:?}");
    for problem in problems {
        let named = lines.iter().any(|line| line.starts_with(problem.as_str()));
        assert!(named, "{problem} is not in {said:?}");
    }
    let noun = if problems.len() == 1 {
        "problem"
    } else {
        "problems"
    };
    let count = format!("{} {noun} found", problems.len());
    assert!(said.stderr.contains(&count), "{said:?}");
    let report = host.world.run(&["log", "verify", "--json"]);
    assert_eq!(report.code, 1);
    let report: serde_json::Value = serde_json::from_str(&report.stdout).unwrap();
    assert_eq!(report["problems"].as_array().unwrap().len(), problems.len());
    assert_eq!(host.world.run(&["log", "rebuild"]).code, 1);
}

fn database(host: &Host) -> Connection {
    Connection::open(host.world.data().join("reprise.db")).unwrap()
}

/// The position of a Session's last event.
fn last_event(database: &Connection, session: &str) -> i64 {
    let query = "SELECT max(position) FROM events WHERE resource = \
                 (SELECT key FROM documents WHERE id = ?1)";
    database
        .query_row(query, [session], |row| row.get(0))
        .unwrap()
}

fn execute(database: &Connection, statement: &str, parameters: impl rusqlite::Params) {
    assert_eq!(database.execute(statement, parameters).unwrap(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ap_evt_04_a_damaged_document_and_a_damaged_event_are_named() {
    let (host, [one, two]) = written().await;
    let database = database(&host);
    execute(
        &database,
        "UPDATE documents SET updated_at = updated_at + 1 WHERE id = ?1",
        [&one],
    );
    let document = format!("document `{one}`: differs from the fold of its events in ");
    finds(&host, std::slice::from_ref(&document));
    let position = last_event(&database, &two);
    // One letter of a member's name.
    execute(
        &database,
        "UPDATE events SET bytes = CAST(replace(CAST(bytes AS TEXT), 'message_id', 'massage_id') AS BLOB) \
         WHERE position = ?1",
        [position],
    );
    finds(
        &host,
        &[
            document,
            format!("event at position {position}: its bytes are damaged"),
        ],
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_document_of_garbage_and_an_event_in_the_place_of_another_are_named() {
    let (host, [one, two]) = written().await;
    let database = database(&host);
    execute(
        &database,
        "UPDATE documents SET body = x'ff00ff' WHERE id = ?1",
        [&one],
    );
    let position = last_event(&database, &two);
    // Whole and with the right checksum, but of another position.
    execute(
        &database,
        "UPDATE events SET (bytes, checksum) = (SELECT bytes, checksum FROM events WHERE position = 1) \
         WHERE position = ?1",
        [position],
    );
    finds(
        &host,
        &[
            format!("document `{one}`: "),
            format!("event at position {position}: its id is `event_"),
        ],
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_document_and_a_missing_event_are_named() {
    let (host, [one, two]) = written().await;
    let database = database(&host);
    execute(&database, "DELETE FROM documents WHERE id = ?1", [&one]);
    let position = last_event(&database, &two);
    execute(
        &database,
        "DELETE FROM events WHERE position = ?1",
        [position],
    );
    let said = host.world.run(&["log", "verify"]);
    assert_eq!(said.code, 1, "{said:?}");
    assert!(
        said.stdout
            .contains(&format!("document `{one}`: is missing")),
        "{said:?}"
    );
    assert!(
        said.stdout.contains(&format!("document `{two}`: ")),
        "{said:?}"
    );
}
