//! Beside events and documents: blobs, news, keys.

use canon::sha256;
use domain::{Blob, Position, Timestamp};
use tokio::sync::broadcast::error::{RecvError, TryRecvError};

use super::model::bare;
use super::{Model, Subject, wait};
use crate::port::{ApiKey, ReadEvents, Scope, SealedTurn};

pub(super) fn api_key(id: &str, text: &[u8]) -> ApiKey {
    ApiKey {
        workspaces: Some(vec!["workspace_a".to_owned(), "workspace_\"b".to_owned()]),
        ..ApiKey::new(
            id,
            sha256(text),
            "somebody",
            ["*"],
            Timestamp::from_micros(1),
        )
    }
}

/// Content comes back as it was put, alone or with a commit, and can be put again.
pub fn blobs_of_every_size_read_back<S: Subject>(make: impl Fn() -> S) {
    let subject = make();
    let store = subject.store();
    let sizes = [0, 1, 4_097, 131_071, 131_072, 131_073, 2_000_000];
    let blob = |size: usize, fill: u8| Blob::new(vec![fill; size]);
    for size in sizes {
        let alone = blob(size, 1);
        wait(store.put_blob(alone.clone())).unwrap();
        wait(store.put_blob(alone.clone())).unwrap();
        assert_eq!(
            wait(store.blob(alone.digest)).unwrap(),
            Some(alone.bytes),
            "{size} bytes"
        );
    }
    let mut commit = bare(10, SealedTurn::default());
    commit.blobs = sizes.iter().map(|size| blob(*size, 2)).collect();
    commit.blobs.push(blob(1, 1));
    let all = commit.blobs.clone();
    wait(store.commit(commit)).unwrap();
    // Several at once, in the order asked, with one that is not there.
    let mut asked: Vec<_> = all.iter().rev().map(|blob| blob.digest).collect();
    asked.insert(1, blob(3, 9).digest);
    let mut expected: Vec<_> = all
        .iter()
        .rev()
        .map(|blob| Some(blob.bytes.clone()))
        .collect();
    expected.insert(1, None);
    assert_eq!(wait(store.blobs_as_stored(asked)).unwrap(), expected);
    for blob in all {
        let found = wait(store.blob(blob.digest)).unwrap();
        assert_eq!(found, Some(blob.bytes));
    }
}

/// Whoever hears of an event can read it, and hears of all in order.
pub fn news_come_after_the_commit_and_in_order<S: Subject>(make: impl Fn() -> S) {
    let subject = make();
    let store = subject.store();
    let mut model = Model::new(&*store);
    let mut news = store.news();
    let order = model.workspace();
    model.run(&*store, order).unwrap();
    let order = model.session();
    model.run(&*store, order).unwrap();
    let mut late = store.news();
    for _ in 0..20 {
        let order = model.append(5);
        model.run(&*store, order).unwrap();
    }
    let mut heard = Vec::new();
    let mut commits = 0;
    while let Ok(commit) = news.try_recv() {
        commits += 1;
        for event in commit.events().iter() {
            assert!(store.head() >= event.position);
            let read = wait(store.events_at(vec![event.position])).unwrap();
            assert_eq!(read, vec![Some(event.clone())]);
            heard.push(event.clone());
        }
    }
    assert_eq!(commits, 22);
    assert_eq!(heard, model.events());
    let heard = late.try_recv().unwrap();
    assert_eq!(heard.events()[0].position, Position(4), "from then on");

    // A subscriber that waits hears at the moment of the commit.
    let waiting = std::thread::spawn(move || {
        while let Ok(commit) = wait(late.recv()) {
            if commit.events().iter().any(|event| event.position.0 == 44) {
                return true;
            }
        }
        false
    });
    let order = model.append(5);
    model.run(&*store, order).unwrap();
    assert!(waiting.join().unwrap());
}

/// A subscriber that does not listen is not waited for; it learns how much it missed and reads the log.
pub fn a_subscriber_that_lags_is_told<S: Subject>(make: impl Fn() -> S) {
    const COMMITS: u64 = 3_000;
    let subject = make();
    let store = subject.store();
    let mut model = Model::new(&*store);
    let mut news = store.news();
    let order = model.workspace();
    model.run(&*store, order).unwrap();
    for _ in 0..COMMITS {
        wait(store.commit(bare(10, SealedTurn::default()))).unwrap();
    }
    let missed = match wait(news.recv()) {
        Err(RecvError::Lagged(missed)) => missed,
        other => panic!("told nothing: {other:?}"),
    };
    let mut kept = 0;
    let end = loop {
        match news.try_recv() {
            Ok(commit) => {
                assert!(commit.events().is_empty());
                kept += 1;
            }
            Err(end) => break end,
        }
    };
    assert_eq!(end, TryRecvError::Empty);
    assert_eq!(missed + kept, COMMITS + 1);
    let read = ReadEvents {
        scope: Scope::All,
        after: Position::START,
        limit: 10,
    };
    assert_eq!(wait(store.events(read)).unwrap(), model.events());
}

/// Keys are found by digest, listed by age, and replaced by id where they stand.
pub fn api_keys_are_added_replaced_and_listed<S: Subject>(make: impl Fn() -> S) {
    let subject = make();
    let store = subject.store();
    let first = api_key("first", b"1");
    let second = ApiKey {
        workspaces: None,
        scopes: vec![],
        ..api_key("another", b"2")
    };
    for key in [&first, &second] {
        wait(store.put_api_key(key.clone())).unwrap();
    }
    assert_eq!(
        wait(store.api_keys()).unwrap(),
        vec![first.clone(), second.clone()]
    );
    let revoked = ApiKey {
        revoked_at: Some(Timestamp::from_micros(9)),
        digest: sha256(b"3"),
        ..first.clone()
    };
    wait(store.put_api_key(revoked.clone())).unwrap();
    assert_eq!(
        wait(store.api_keys()).unwrap(),
        vec![revoked.clone(), second.clone()]
    );
    assert_eq!(wait(store.api_key(first.digest)).unwrap(), None);
    assert_eq!(wait(store.api_key(revoked.digest)).unwrap(), Some(revoked));
    assert_eq!(wait(store.api_key(second.digest)).unwrap(), Some(second));
}
