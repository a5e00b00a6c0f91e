//! What comes from outside as a bundle is read or refused with its line; nothing makes it panic or take more than it holds.

use proptest::prelude::*;

use super::*;

const WHOLE: &[u8] = include_bytes!("../../../../../conformance/vectors/replay/agent.bundle");

fn lines() -> Vec<Vec<u8>> {
    let lines = WHOLE
        .strip_suffix(b"\n")
        .unwrap()
        .split(|byte| *byte == b'\n');
    lines.map(<[u8]>::to_vec).collect()
}

fn joined(lines: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = lines.join(&b'\n');
    bytes.push(b'\n');
    bytes
}

/// Reads bytes, and what is read as far as a replay would.
fn outcome(bytes: &[u8]) -> Result<Bundle, ReadBundleError> {
    let read = Bundle::read(bytes)?;
    let _ = read.clone().into_source();
    Ok(read)
}

fn replaced(at: usize, from: &str, to: &str) -> Vec<u8> {
    let mut lines = lines();
    let text = String::from_utf8(lines[at].clone()).unwrap();
    assert!(text.contains(from), "{text}");
    lines[at] = text.replacen(from, to, 1).into_bytes();
    joined(&lines)
}

#[test]
fn a_bundle_is_read_whole() {
    let read = outcome(WHOLE).unwrap();
    assert_eq!((read.events.len(), read.blobs.len()), (34, 3));
    assert!(read.receipt.is_some());
    assert!(read.into_source().is_ok());
}

#[test]
fn each_way_to_be_no_bundle_is_refused_with_its_line() {
    let all = lines();
    let without = |at: usize| {
        let mut lines = all.clone();
        lines.remove(at);
        joined(&lines)
    };
    let with = |at: usize, line: &[u8]| {
        let mut lines = all.clone();
        lines.insert(at, line.to_vec());
        joined(&lines)
    };
    let deep = [b"{\"blobs\":".to_vec(), b"[".repeat(100_000)].concat();
    let cases: Vec<(&str, Vec<u8>, usize, &str)> = vec![
        ("nothing", Vec::new(), 1, "ends here"),
        ("a line feed", b"\n".to_vec(), 1, ""),
        (
            "no line feed at the end",
            WHOLE[..WHOLE.len() - 1].to_vec(),
            39,
            "ends here",
        ),
        ("other bytes", b"PK\x03\x04\xff\xfe\n".to_vec(), 1, ""),
        ("a list", b"[]\n".to_vec(), 1, "header"),
        ("a deep first line", deep, 1, ""),
        (
            "another format",
            replaced(0, "bundle-1", "bundle-2"),
            1,
            "format",
        ),
        (
            "white space",
            replaced(0, "\"events\":34", "\"events\": 34"),
            1,
            "canonical",
        ),
        (
            "a member twice",
            replaced(0, "\"events\":34", "\"events\":34,\"events\":34"),
            1,
            "",
        ),
        (
            "one more member",
            replaced(0, "\"events\":34", "\"events\":34,\"extra\":1"),
            1,
            "does not know",
        ),
        (
            "no task",
            replaced(
                0,
                "\"task_id\":\"task_00000004\"",
                "\"task_id\":\"session_1\"",
            ),
            1,
            "task_id",
        ),
        (
            "a digest that is none",
            replaced(0, "sha256:4", "sha256:x"),
            1,
            "log_sha256",
        ),
        (
            "a negative count",
            replaced(0, "\"events\":34", "\"events\":-1"),
            1,
            "events",
        ),
        (
            "more events than there are",
            replaced(0, "\"events\":34", "\"events\":35"),
            36,
            "event must come",
        ),
        (
            "so many that no machine holds them",
            replaced(0, "\"events\":34", "\"events\":9007199254740991"),
            36,
            "event must come",
        ),
        (
            "fewer events than there are",
            replaced(0, "\"events\":34", "\"events\":33"),
            35,
            "blob",
        ),
        (
            "more blobs than there are",
            replaced(0, "\"blobs\":3", "\"blobs\":9007199254740991"),
            39,
            "blob",
        ),
        (
            "no receipt is announced",
            replaced(0, "\"receipt\":true", "\"receipt\":false"),
            39,
            "more lines",
        ),
        ("an event is missing", without(7), 35, "event must come"),
        ("a blob is missing", without(36), 38, "blob"),
        ("the receipt is missing", without(38), 39, "ends here"),
        ("a line too many", with(39, b"{}"), 40, "more lines"),
        ("an empty line", with(3, b""), 4, "event must come"),
        ("carriage returns", replaced(3, "}", "}\r"), 4, ""),
        (
            "an event that is none",
            replaced(4, "\"sequence\":", "\"sequenze\":"),
            5,
            "not a stored event",
        ),
        (
            "an event of deep nesting",
            with(5, &[EVENT_OPENS, &b"[".repeat(100_000)].concat()),
            6,
            "event must come",
        ),
        (
            "blobs out of order",
            {
                let mut lines = all.clone();
                lines.swap(35, 36);
                joined(&lines)
            },
            37,
            "order",
        ),
        ("a blob twice", with(36, &all[35]), 37, "order"),
        (
            "a blob that is not base64",
            replaced(35, "\"base64\":\"", "\"base64\":\"!"),
            36,
            "blob",
        ),
        (
            "a blob with more members",
            replaced(35, "{\"blob\":{", "{\"blob\":{\"a\":1,"),
            36,
            "nothing else",
        ),
        (
            "a receipt that is none",
            replaced(38, "\"receipt_id\"", "\"receipt_it\""),
            39,
            "",
        ),
    ];
    for (what, bytes, line, problem) in cases {
        let error = outcome(&bytes).map(drop).unwrap_err();
        assert_eq!(error.line, line, "{what}: {error}");
        assert!(error.problem.contains(problem), "{what}: {error}");
    }
}

/// Lines taken out, doubled, swapped and cut: whatever is read nevertheless is not taken for the bundle it was.
#[test]
fn what_was_changed_is_refused_or_is_another_bundle() {
    let whole = Bundle::read(WHOLE).unwrap();
    let all = lines();
    let mut read = 0;
    let mut check = |bytes: &[u8], what: String| {
        if let Ok(other) = outcome(bytes) {
            read += 1;
            assert!(other != whole, "{what}");
        }
    };
    for at in 0..all.len() {
        let (mut gone, mut double, mut swapped) = (all.clone(), all.clone(), all.clone());
        gone.remove(at);
        double.insert(at, all[at].clone());
        swapped.swap(at, (at + 1) % all.len());
        for (lines, how) in [(gone, "gone"), (double, "double"), (swapped, "swapped")] {
            check(&joined(&lines), format!("line {at} {how}"));
        }
    }
    for at in (0..WHOLE.len()).step_by(97) {
        check(&WHOLE[..at], format!("cut at {at}"));
        // Not the bit of letter case: digests are read in any.
        for change in [1, 2, 0x80] {
            let mut bytes = WHOLE.to_vec();
            bytes[at] ^= change;
            check(&bytes, format!("byte {at} ^ {change}"));
        }
    }
    assert!(read > 0, "some changes leave a bundle, of another task");
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..300),
        at in 0..WHOLE.len(),
        len in 0..40_usize,
    ) {
        let _ = outcome(&bytes);
        // In the place of some of a bundle, and between its bytes.
        let end = (at + len).min(WHOLE.len());
        let _ = outcome(&[&WHOLE[..at], &bytes, &WHOLE[end..]].concat());
    }
}
