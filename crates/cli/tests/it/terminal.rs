//! What somebody at a terminal sees, and what nobody sees in a pipe. The terminal is one that `script` makes.

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use testing::process::Server;
use testing::process::{signal, without_settings};

use crate::world::World;

/// Runs the program in a terminal. `type_after` is typed once its first text has appeared.
fn at_terminal(world: &World, args: &[&str], type_after: Option<(&str, &str)>) -> String {
    let program = env!("CARGO_BIN_EXE_reprise");
    let words: Vec<String> = [program]
        .iter()
        .chain(args)
        .map(|word| format!("'{word}'"))
        .collect();
    let mut command = Command::new("script");
    let mut child = without_settings(&mut command)
        .args(["-qefc", &words.join(" "), "/dev/null"])
        .current_dir(world.home.path())
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut seen = Vec::new();
    let mut waits_for = type_after;
    loop {
        let mut bytes = [0; 4096];
        match stdout.read(&mut bytes) {
            Ok(0) | Err(_) => break,
            Ok(count) => seen.extend_from_slice(&bytes[..count]),
        }
        if let Some((after, text)) = waits_for
            && String::from_utf8_lossy(&seen).contains(after)
        {
            wait_for_silence(child.id());
            writeln!(stdin, "{text}").unwrap();
            waits_for = None;
        }
    }
    child.wait().unwrap();
    String::from_utf8_lossy(&seen).into_owned()
}

/// Waits until the program in the terminal of `script` has turned the echo off: what is typed before that is thrown away.
fn wait_for_silence(script: u32) {
    let children = format!("/proc/{script}/task/{script}/children");
    for _ in 0..100 {
        let program = std::fs::read_to_string(&children).unwrap();
        let terminal = format!("/proc/{}/fd/0", program.trim());
        let settings = Command::new("stty").args(["-a", "-F", &terminal]).output();
        if String::from_utf8_lossy(&settings.unwrap().stdout).contains(" -echo ") {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("the echo stays on");
}

/// Lets a server stand still for a while.
fn stall(server: &Server, time: Duration) -> std::thread::JoinHandle<()> {
    server.signal("STOP");
    let pid = server.pid();
    std::thread::spawn(move || {
        std::thread::sleep(time);
        signal(pid, "CONT");
    })
}

#[test]
fn what_takes_longer_than_a_second_shows_a_sign_of_life_at_a_terminal_alone() {
    let world = World::new();
    let server = world.serve();
    let task = world.submit("agent");
    world.ok(&["task", "watch", &task]);
    let waiting = stall(&server, Duration::from_millis(2_000));
    let seen = at_terminal(&world, &["task", "export", &task, "slow.bundle"], None);
    waiting.join().unwrap();
    assert!(seen.contains("waiting for http://"), "{seen:?}");
    assert!(seen.contains("wrote task_"), "{seen:?}");

    let seen = at_terminal(&world, &["task", "export", &task, "fast.bundle"], None);
    assert!(!seen.contains("waiting for"), "{seen:?}");

    let waiting = stall(&server, Duration::from_millis(2_000));
    let said = world.run(&["task", "export", &task, "piped.bundle"]);
    waiting.join().unwrap();
    assert_eq!(said.code, 0, "{said:?}");
    assert!(!said.stderr.contains("waiting for"), "{said:?}");
}

/// Colours are for the terminal, and nothing of them is shown as text.
#[test]
fn a_verdict_in_colour_is_readable() {
    let world = World::new();
    let _server = world.serve();
    let task = world.submit("agent");
    world.ok(&["task", "watch", &task]);
    let receipt = world.ok(&["receipt", "show", &task, "--wire"]);
    let forged = receipt.replace("SUCCEEDED", "CANCELED");
    std::fs::write(world.home.path().join("forged.json"), forged).unwrap();
    let seen = at_terminal(
        &world,
        &["receipt", "verify", "forged.json", "--unsigned"],
        None,
    );
    assert!(seen.contains("\u{1b}[31mFAIL\u{1b}[0m"), "{seen:?}");
    assert!(!seen.contains('\u{fffd}'), "{seen:?}");
}

#[test]
fn a_secret_is_asked_for_and_not_shown() {
    let world = World::new();
    let typed = Some(("value of `openai`", "sk-very-secret"));
    let seen = at_terminal(&world, &["vault", "set", "openai"], typed);
    assert!(!seen.contains("sk-very-secret"), "{seen:?}");
    assert!(world.ok(&["vault", "list"]).contains("openai"), "{seen:?}");
}
