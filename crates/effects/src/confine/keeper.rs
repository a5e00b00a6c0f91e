//! The keeper of a confined program: the process between the server and the program.
//!
//! A program can leave its process group, and a server can be killed; both would leave processes running that nobody
//! knows. The keeper adopts whatever the program leaves behind, and ends all of it when the program ends, when the
//! server asks for it (`SIGTERM`), or when the server is gone. It runs outside the sandbox, where the program cannot
//! signal it, and ends the way the program did.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{
    Pid, PidfdFlags, WaitOptions, WaitStatus, getppid, kill_process, kill_process_group,
    pidfd_open, wait,
};

use super::{INSIDE, LaunchOrder, NOT_STARTED};

/// How long processes that do not die are waited for.
const PATIENCE: Duration = Duration::from_secs(10);
/// How many rounds of killing follow each other without a pause: a process that forks all the time must be outrun.
const ROUNDS_AT_ONCE: u32 = 200;

/// What the keeper waits for.
struct Watch {
    signals: SignalFd,
    server: std::os::fd::OwnedFd,
}

/// Keeps a program until it has ended, and returns how. Complaints go to the error output, behind the order's mark.
pub(super) fn supervise(
    order: &LaunchOrder,
    sealed: &OsStr,
    program: &OsStr,
    arguments: impl Iterator<Item = OsString>,
) -> ExitCode {
    let kept = start(order).and_then(|watch| {
        let child = Command::new("/proc/self/exe")
            .arg(INSIDE)
            .arg(sealed)
            .arg(program)
            .args(arguments)
            .process_group(0)
            .spawn()
            .map_err(|error| error.to_string())?;
        let id = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        Ok((watch, id.ok_or("a process without an id")?))
    });
    let (watch, program) = match kept {
        Ok(kept) => kept,
        Err(problem) => {
            eprintln!("{}{problem}", order.mark);
            return ExitCode::from(NOT_STARTED as u8);
        }
    };
    // The program alone holds its input and outputs now, so that their ends are seen where they happen.
    let _ = let_go();
    let end = until_it_ends(&watch, program);
    end_all(program);
    as_it_ended(end)
}

/// Makes this process the one that adopts, and finds out whom to watch.
fn start(order: &LaunchOrder) -> Result<Watch, String> {
    let failed = |what: &str, error: std::io::Error| format!("{what}: {error}");
    nix::sys::prctl::set_child_subreaper(true)
        .map_err(|error| failed("cannot adopt processes", error.into()))?;
    children().map_err(|error| failed("cannot list processes", error))?;
    let mut mask = SigSet::empty();
    for signal in [
        Signal::SIGCHLD,
        Signal::SIGTERM,
        Signal::SIGINT,
        Signal::SIGHUP,
    ] {
        mask.add(signal);
    }
    let signals = mask
        .thread_block()
        .and_then(|()| SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK))
        .map_err(|error| failed("cannot wait for signals", error.into()))?;
    let gone = || "the server is gone".to_owned();
    let server = i32::try_from(order.server)
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(gone)?;
    let watched = pidfd_open(server, PidfdFlags::empty())
        .map_err(|error| failed("cannot watch the server", error.into()))?;
    // Asked after the descriptor was opened: it is the server's own, not that of a later process with its number.
    if getppid() != Some(server) {
        return Err(gone());
    }
    Ok(Watch {
        signals,
        server: watched,
    })
}

fn let_go() -> nix::Result<()> {
    let nothing = File::options().read(true).write(true).open("/dev/null");
    let nothing = nothing.map_err(|_| nix::errno::Errno::ENOENT)?;
    nix::unistd::dup2_stdin(&nothing)?;
    nix::unistd::dup2_stdout(&nothing)?;
    nix::unistd::dup2_stderr(&nothing)
}

/// Returns how the program ended, or nothing when it has to be ended.
fn until_it_ends(watch: &Watch, program: Pid) -> Option<WaitStatus> {
    loop {
        let mut events = [
            PollFd::new(&watch.signals, PollFlags::IN),
            PollFd::new(&watch.server, PollFlags::IN),
        ];
        match poll(&mut events, None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return None,
        }
        if events
            .iter()
            .skip(1)
            .any(|event| !event.revents().is_empty())
        {
            return None;
        }
        while let Ok(Some(signal)) = watch.signals.read_signal() {
            if signal.ssi_signo != Signal::SIGCHLD as u32 {
                return None;
            }
        }
        // Others that ended are collected on the way.
        while let Ok(Some((process, status))) = wait(WaitOptions::NOHANG) {
            if process == program {
                return Some(status);
            }
        }
    }
}

/// Kills whatever is left: children, and theirs as soon as they are adopted.
fn end_all(program: Pid) {
    let began = Instant::now();
    // Nobody is left in it when all have ended by themselves.
    let _ = kill_process_group(program, rustix::process::Signal::KILL);
    for round in 0_u32.. {
        for child in children().unwrap_or_default() {
            let _ = kill_process(child, rustix::process::Signal::KILL);
        }
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some(_)) => {}
                Ok(None) => break,
                // There are no children any more.
                Err(_) => return,
            }
        }
        if began.elapsed() > PATIENCE {
            return;
        }
        if round > ROUNDS_AT_ONCE {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn children() -> std::io::Result<Vec<Pid>> {
    let list = std::fs::read_to_string("/proc/thread-self/children")?;
    Ok(list
        .split_ascii_whitespace()
        .filter_map(|number| number.parse().ok().and_then(Pid::from_raw))
        .collect())
}

/// Ends this process as the program ended.
fn as_it_ended(status: Option<WaitStatus>) -> ExitCode {
    let signal = match status {
        Some(status) => match status.exit_status() {
            Some(code) => return ExitCode::from(code.to_le_bytes()[0]),
            None => status
                .terminating_signal()
                .and_then(|signal| Signal::try_from(signal).ok())
                .unwrap_or(Signal::SIGKILL),
        },
        None => Signal::SIGKILL,
    };
    // The signal alone is to be passed on, not a picture of this process.
    let none = rustix::process::Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Core, none);
    let _ = SigSet::empty().thread_set_mask();
    // Twice: the first one may only end the runtime's own handling of it.
    let _ = nix::sys::signal::raise(signal);
    let _ = nix::sys::signal::raise(signal);
    // This process ignores it (a closed pipe): said as shells say it.
    ExitCode::from(128_u8.saturating_add((signal as i32).to_le_bytes()[0]))
}
