//! Tools of a running server against the server: what they cannot read, and that they end when it does.

use std::path::Path;
use std::time::{Duration, Instant};

use testing::process::{PATIENCE, Server};

use crate::world::World;

const ANSWERS: &str =
    "answers: [{when: {key: 'llm:main:1'}, tool_calls: [{name: run}]}, {answer: done}]";
const PERSONA: &str = "name: runner\nversion: '1'\nentry_workflow: agent\ndescription: Runs\nautonomy_tier: act_auto\n\
    receipt_policy: required\ntools: [run]\n";
const SERVE: [&str; 4] = ["--listen", "127.0.0.1:0", "--config", "reprise.toml"];

/// Group `sandbox`: tests that need a kernel which can confine a process.
fn can_confine() -> Option<testing::Running> {
    testing::group("sandbox", effects::confine::support().err())
}

/// A server with one tool, which runs a script in the folder `work`.
fn serve(world: &World, more: &str, script: &str) -> Server {
    let home = world.home.path();
    let config = format!(
        "[[providers]]\nid = 'script'\nkind = 'scripted'\nfile = 'answers.yaml'\n\
         [[tools]]\nname = 'run'\nfolder = 'work'\nargv = ['sh', 'script']\n{more}\n"
    );
    std::fs::create_dir_all(home.join("work")).unwrap();
    for (name, text) in [
        ("reprise.toml", config.as_str()),
        ("answers.yaml", ANSWERS),
        ("runner.yaml", PERSONA),
        ("work/script", script),
    ] {
        std::fs::write(home.join(name), text).unwrap();
    }
    let server = world.serve_with(&SERVE);
    world.ok(&["persona", "apply", "runner.yaml"]);
    server
}

fn submit(world: &World) -> String {
    let task = world.json(&["task", "submit", "Go", "--persona", "runner", "--json"]);
    task["id"].as_str().unwrap().to_owned()
}

/// Says the numbers of three processes: one of its own group, one that left it, one that left it twice.
const ESCAPE: &str = "setsid sh -c 'setsid sleep 600 & echo $! >> pids; echo $$ >> pids; exec sleep 600' &\n\
    echo $$ >> pids\nsleep 600\n";

fn pids(world: &World) -> Vec<String> {
    let began = Instant::now();
    loop {
        let text = std::fs::read_to_string(world.home.path().join("work/pids")).unwrap_or_default();
        if text.lines().count() == 3 {
            return text.lines().map(str::to_owned).collect();
        }
        assert!(began.elapsed() < PATIENCE, "{text}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A process that nobody has collected yet has ended too.
fn is_running(process: &str) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(process).join("stat"));
    stat.is_ok_and(|stat| !stat.rsplit(") ").next().unwrap().starts_with('Z'))
}

fn all_end(processes: &[String]) {
    let began = Instant::now();
    while processes.iter().any(|process| is_running(process)) {
        assert!(
            began.elapsed() < Duration::from_secs(5),
            "left: {processes:?}"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_server_that_is_killed_leaves_no_tool_running() {
    let Some(_running) = can_confine() else {
        return;
    };
    let world = World::new();
    let server = serve(&world, "", ESCAPE);
    submit(&world);
    let processes = pids(&world);
    assert!(processes.iter().all(|process| is_running(process)));
    server.kill();
    all_end(&processes);
}

#[test]
fn a_canceled_task_leaves_no_tool_running() {
    let Some(_running) = can_confine() else {
        return;
    };
    let world = World::new();
    let _server = serve(&world, "", ESCAPE);
    let task = submit(&world);
    let processes = pids(&world);
    world.ok(&["task", "cancel", &task]);
    all_end(&processes);
}

/// U24: the attack of `steal.py`, on a server with its real keys and database.
#[test]
fn u24_a_tool_reads_no_file_of_a_running_server_in_any_way_that_was_thought_of() {
    let Some(_running) = can_confine() else {
        return;
    };
    let python = Path::new("/usr/bin/python3");
    let missing = (!python.exists()).then(|| format!("`{}` does not exist", python.display()));
    let Some(_installed) = testing::group("sandboxed-programs", missing) else {
        return;
    };
    let attack = include_str!("steal.py");
    let mut found = Vec::new();
    for more in ["", "sandbox = 'off'"] {
        let world = World::new();
        // What the server keeps is known to the script; its process is found out by it.
        let script = format!(
            "export SHELL_PARENT=$PPID\nexec {} steal.py {} $(cat server) > said 2> complaints\n",
            python.display(),
            world.data().display()
        );
        let server = serve(&world, more, &script);
        let work = world.home.path().join("work");
        std::fs::write(work.join("steal.py"), attack).unwrap();
        std::fs::write(work.join("server"), server.pid().to_string()).unwrap();
        let task = submit(&world);
        world.run(&["task", "watch", &task]);
        let said = std::fs::read_to_string(work.join("said")).unwrap_or_default();
        let complaints = std::fs::read_to_string(work.join("complaints")).unwrap_or_default();
        assert!(said.contains("tried"), "{said}{complaints}");
        found.push(said);
    }
    assert_eq!(found[0].lines().count(), 1, "{}", found[0]);
    for way in [
        "absolute api-key",
        "relative signing-keys.json",
        "own root api-key",
        "root of server api-key",
        "folder of server approver-key",
        "link api-key",
        "hard link reprise.db",
        "handle signing-keys.json",
        "handle of folder signing-keys.json",
        "descriptor of server reprise.db",
        "program in memory api-key",
        "copy reprise.db-wal",
        "map signing-keys.json",
        "mode api-key",
        "the program itself api-key",
    ] {
        assert!(found[1].contains(way), "cannot fail: {way}: {}", found[1]);
    }
}
