//! What a traced server did to its files and its sockets, in order, and whether an answer left too early.
//!
//! Reads the output of `strace -f -y`. A call that other threads interrupt is two lines: it counts as begun with the
//! first and as done with the second.

use std::collections::BTreeMap;

/// Writes to one file, counted.
#[derive(Debug, Default)]
struct File {
    begun: u64,
    done: u64,
    durable: u64,
}

/// Follows a trace line by line.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    files: BTreeMap<String, File>,
    /// Calls that have not returned, by thread: the file, and for a sync how many of its writes it covers.
    pending: BTreeMap<String, (String, Option<u64>)>,
    /// Writes to files at the last answer.
    before: u64,
    /// Successful answers.
    pub(crate) answers: usize,
    /// What is wrong, in words.
    pub(crate) violations: Vec<String>,
}

impl Trace {
    pub(crate) fn of(text: &str) -> Self {
        let mut trace = Self::default();
        for line in text.lines() {
            trace.line(line);
        }
        trace
    }

    fn line(&mut self, line: &str) {
        let Some((thread, call)) = line.split_once(' ') else {
            return;
        };
        let call = call.trim_start();
        if call.starts_with("<... ") {
            if let Some((path, covers)) = self.pending.remove(thread) {
                self.done(&path, covers, call);
            }
            return;
        }
        let Some((name, arguments)) = call.split_once('(') else {
            return;
        };
        let first = arguments
            .split_once(['>', ','])
            .map_or("", |(first, _)| first);
        let path = first.split_once('<').map_or("", |(_, path)| path);
        let is_sync = matches!(name, "fsync" | "fdatasync");
        if path.ends_with("-wal") || path.contains("/blobs/") {
            let file = self.files.entry(path.to_owned()).or_default();
            let covers = is_sync.then_some(file.done);
            if !is_sync {
                file.begun += 1;
            }
            if call.ends_with("<unfinished ...>") {
                self.pending
                    .insert(thread.to_owned(), (path.to_owned(), covers));
            } else {
                self.done(path, covers, call);
            }
        } else if !is_sync && arguments.contains("\"HTTP/1.1 2") {
            self.answer(line);
        }
    }

    fn done(&mut self, path: &str, covers: Option<u64>, call: &str) {
        let file = self.files.entry(path.to_owned()).or_default();
        match covers {
            None => file.done += 1,
            Some(covers) if call.ends_with("= 0") => file.durable = file.durable.max(covers),
            Some(_) => {}
        }
    }

    /// The client sends one request after another, so whatever was written belongs to this answer or an earlier one.
    fn answer(&mut self, line: &str) {
        self.answers += 1;
        for (path, file) in &self.files {
            if file.durable < file.begun {
                self.violations.push(format!(
                    "{} of {} writes to {path} are durable at: {line}",
                    file.durable, file.begun
                ));
            }
        }
        let written = self.files.values().map(|file| file.begun).sum();
        if written == self.before {
            self.violations
                .push(format!("nothing was written before: {line}"));
        }
        self.before = written;
    }
}

#[test]
fn an_answer_before_its_sync_has_returned_is_seen() {
    const WAL: &str = "/d/reprise.db-wal";
    let check = |lines: &[&str], violations: usize| {
        let text = lines.join("\n").replace("WAL", WAL);
        let trace = Trace::of(&text);
        assert_eq!(trace.violations.len(), violations, "{trace:?}");
        assert_eq!(trace.answers, 1);
    };
    let write = "7 pwrite64(9<WAL>, \"\\0\"..., 24, 0) = 24";
    let sync = "7 fdatasync(9<WAL>) = 0";
    let answer = "8 writev(12<socket:[5]>, [{iov_base=\"HTTP/1.1 201 Created\\r\\n\"..., iov_len=9}], 1) = 9";
    check(&[write, sync, answer], 0);
    check(&[write, answer, sync], 1);
    check(&[sync, answer], 1);
    check(
        &[
            write,
            "7 fdatasync(9<WAL>) = -1 EIO (Input/output error)",
            answer,
        ],
        1,
    );
    let begun = "7 fdatasync(9<WAL> <unfinished ...>";
    let returned = "7 <... fdatasync resumed>) = 0";
    check(&[write, begun, returned, answer], 0);
    check(&[write, begun, answer, returned], 1);
    // A write that is not done when the sync begins is not covered by it.
    let writing = "6 pwrite64(9<WAL>, \"\\0\"..., 24, 0 <unfinished ...>";
    let written = "6 <... pwrite64 resumed>) = 24";
    check(&[writing, begun, written, returned, answer], 1);
    check(
        &[
            write,
            sync,
            "7 write(10</d/blobs/ab/cd.tmp>, \"x\", 1) = 1",
            answer,
        ],
        1,
    );
}
