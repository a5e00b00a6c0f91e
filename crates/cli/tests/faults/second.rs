//! A second server on a directory in use: refused, and the first does not notice.

use serde_json::json;
use testing::process::Server;

use crate::client::Ask;
use crate::host::Host;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_server_is_refused_and_the_first_goes_on() {
    let mut host = Host::new();
    let api = host.api();
    let session = api.session().await;
    let address = std::fs::read_to_string(host.world.data().join("address")).unwrap();
    let key = host.key();
    for number in 0..5 {
        // On the port of the first and on another one: the directory is what counts.
        let listen = match number % 2 {
            0 => host.address.as_str(),
            _ => "127.0.0.1:0",
        };
        let mut second = host.world.command(&["serve", "--listen", listen]);
        let Err(refused) = Server::start(&mut second) else {
            panic!("two servers work in one directory");
        };
        assert_eq!(refused.code, 2, "{refused:?}");
        let lines: Vec<&str> = refused.stderr.lines().collect();
        let [error, hint] = lines.as_slice() else {
            panic!("{refused:?}");
        };
        assert!(
            error.starts_with("error: data directory `") && error.contains("is in use by process "),
            "{error}"
        );
        assert_eq!(
            *hint,
            "hint: stop that process first, or give this one another data directory"
        );
        let said = api.ok(&Ask::message(&session, &number.to_string())).await;
        assert_eq!(said["parts"][0]["text"], json!(number.to_string()));
    }
    let task = api.ok(&Ask::task(&session, "agent", "Still there?")).await;
    assert_eq!(task["status"], "COMPLETED");
    assert_eq!(
        std::fs::read_to_string(host.world.data().join("address")).unwrap(),
        address
    );
    assert_eq!(host.key(), key);
    host.must_verify();
    let (status, _) = host.take().stop();
    assert_eq!(status.code(), Some(0));
}
