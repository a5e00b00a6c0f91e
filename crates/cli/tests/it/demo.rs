//! `reprise demo`: the tour ends well and leaves nothing behind.

use testing::process::{Process, Stream};

use crate::world::World;

#[test]
fn the_tour_ends_with_0_and_removes_its_directory() {
    let world = World::new();
    let temporary = world.home.path().join("tmp");
    std::fs::create_dir(&temporary).unwrap();
    let mut command = world.command(&["demo", "--once"]);
    let output = command.env("TMPDIR", &temporary).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let talk = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}\n{talk}");
    assert_eq!(talk, "");
    assert_eq!(std::fs::read_dir(&temporary).unwrap().count(), 0);
    assert!(!text.contains("rpk_") && !text.contains('\u{1b}'), "{text}");
    for words in [
        "scripted",
        "kill -9",
        "the same task waits",
        "You read deploy logs. Be brief.",
        "as recorded",
        "confidence_weighted: ann's finding prevails",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    insta::assert_snapshot!(told(&text));
}

#[test]
fn the_tour_leaves_a_server_until_it_is_stopped() {
    let world = World::new();
    let mut running = Process::start(
        &mut world.command(&["demo", "--data", "reprise-data"]),
        Stream::Stdout,
    );
    let mut text = String::new();
    loop {
        let line = running.line().expect("the server stays");
        text.push_str(&line);
        text.push('\n');
        if line.starts_with("Ctrl-C stops") {
            break;
        }
    }
    // What it advises works.
    assert!(text.contains("export REPRISE_DATA=reprise-data"), "{text}");
    assert_eq!(
        world
            .json(&["task", "list", "--json"])
            .as_array()
            .unwrap()
            .len(),
        5
    );
    let begin = text.find("   curl ").unwrap();
    let end = text.find("\n\nCtrl-C").unwrap_or(text.len());
    let curl = std::process::Command::new("sh")
        .args(["-c", text[begin..end].trim()])
        .current_dir(world.home.path())
        .output()
        .unwrap();
    let tasks: serde_json::Value = serde_json::from_slice(&curl.stdout).unwrap();
    assert_eq!(tasks["data"].as_array().unwrap().len(), 5);
    running.signal("INT");
    assert_eq!(running.wait().code(), Some(0));
    world.ok(&["log", "verify"]);
}

/// True for the number of a duration: its unit comes next.
fn is_duration(word: &str, next: Option<&&str>) -> bool {
    let is_number = !word.is_empty()
        && word
            .bytes()
            .all(|byte| byte.is_ascii_digit() || byte == b'.');
    is_number && matches!(next, Some(&"ms" | &"s"))
}

/// Replaces what is different each time: times of day, ids, places, counts.
fn told(text: &str) -> String {
    let mut lines = Vec::new();
    for line in text.lines() {
        let split: Vec<&str> = line.split(' ').collect();
        let words = split.iter().enumerate().map(|(index, word)| {
            let word = *word;
            let is_time =
                word.len() == 12 && word.as_bytes()[2] == b':' && word.as_bytes()[8] == b'.';
            match word {
                _ if is_time => "hh:mm:ss.mmm".to_owned(),
                _ if word.len() > 20 && word.ends_with('Z') && word.as_bytes()[10] == b'T' => {
                    "TIME".to_owned()
                }
                _ if is_duration(word, split.get(index + 1)) => "N".to_owned(),
                _ if word.starts_with("http://127.0.0.1:") => "URL".to_owned(),
                _ if word.contains("/reprise-demo-") => "DIRECTORY".to_owned(),
                _ if word.ends_with("/reprise") => "reprise".to_owned(),
                _ if word.starts_with("sha256:") => "sha256:HASH".to_owned(),
                _ if word.starts_with("event_") => "event_ID".to_owned(),
                _ if word.starts_with("base64:") => "base64:SIGNATURE".to_owned(),
                _ if word.starts_with("`key_") => "`key_ID`".to_owned(),
                _ => match word.rsplit_once('_') {
                    Some((prefix, body))
                        if body.len() >= 16 && body.bytes().all(|b| b.is_ascii_hexdigit()) =>
                    {
                        format!("{prefix}_ID")
                    }
                    _ => word.to_owned(),
                },
            }
        });
        lines.push(words.collect::<Vec<_>>().join(" "));
    }
    lines.join("\n")
}
