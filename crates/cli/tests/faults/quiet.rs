//! An exact replay touches nothing outside, and a crash in the middle of one changes nothing, seen from outside the
//! process.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use testing::process::Server;

use crate::client::{Api, Ask, text};
use crate::host::{Host, generator};
use crate::world::World;

const SETTINGS: &[(&str, &str)] = &[("REPRISE_CONFIG", "reprise.toml")];

/// A model that uses a local command, and a persona that may.
fn configure(world: &World) {
    let home = world.home.path();
    std::fs::create_dir_all(home.join("work")).unwrap();
    let config = r#"
[[providers]]
id = "script"
kind = "scripted"
file = "answers.yaml"

[[tools]]
name = "touch"
description = "Makes a file."
argv = ["touch", "--", "{file}"]
folder = "work"
repeatable = true
[tools.parameters]
type = "object"
required = ["file"]
[tools.parameters.properties]
file = { type = "string" }
"#;
    std::fs::write(home.join("reprise.toml"), config).unwrap();
    let answers = r#"
answers:
  - when: { key: "llm:main:1" }
    tool_calls:
      - { name: touch, arguments: { file: one } }
      - { name: touch, arguments: { file: two } }
  - when: { key: "llm:main:2" }
    tool_calls:
      - { name: touch, arguments: { file: three } }
  - answer: Three files.
"#;
    std::fs::write(home.join("answers.yaml"), answers).unwrap();
}

/// Runs an agent that starts processes, and returns the finished Task.
async fn run(api: &Api) -> Value {
    let persona = json!({
        "name": "toucher", "version": "1", "entry_workflow": "agent", "description": "touches files",
        "autonomy_tier": "act_auto", "receipt_policy": "required", "tools": ["touch"],
    });
    let persona = api.ok(&Ask::post("/v1/personas", persona)).await;
    let session = api.session().await;
    let body = json!({"input": {"goal": "three files"}, "persona_id": persona["id"]});
    let path = format!("/v1/sessions/{session}/tasks");
    let task = api.ok(&Ask::post(&path, body).with_key("run")).await;
    api.until(&format!("/v1/tasks/{}", text(&task["id"])), |task| {
        ["COMPLETED", "FAILED"].contains(&task["status"].as_str().unwrap())
    })
    .await
}

/// Lines of a trace that open a socket or start a process. A new thread is neither.
fn outward(trace: &str) -> Vec<&str> {
    trace
        .lines()
        .filter(|line| {
            let call = line
                .split_once(' ')
                .map_or("", |(_, call)| call.trim_start());
            let name = call.split('(').next().unwrap_or_default();
            match name {
                "socket" | "socketpair" | "connect" | "bind" | "execve" | "execveat" | "fork"
                | "vfork" => true,
                "clone" | "clone3" => !call.contains("CLONE_THREAD"),
                _ => false,
            }
        })
        .collect()
}

fn read(file: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(file).unwrap()).into_owned()
}

/// AP-RPL-05: without `refresh` nobody performs anything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exact_replay_opens_no_socket_and_starts_no_process() {
    let Some(_running) = testing::strace() else {
        return;
    };
    const CALLS: &str =
        "trace=socket,socketpair,connect,bind,execve,execveat,fork,vfork,clone,clone3";
    let world = World::new();
    configure(&world);
    let file = world.home.path().join("trace");
    let server = world.command(&["serve", "--listen", "127.0.0.1:0"]);
    let mut command = Command::new("strace");
    // The tracer steps aside, so that the signal that stops the server reaches the server.
    command
        .args(["-D", "-f", "-e", CALLS, "-o"])
        .arg(&file)
        .arg(server.get_program())
        .args(server.get_args())
        .current_dir(world.home.path())
        .stdin(std::process::Stdio::null());
    for (name, value) in server.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.envs(SETTINGS.iter().copied());
    command.env("REPRISE_LOG_LEVEL", "warn");
    let server = Server::start(&mut command).unwrap_or_else(|said| panic!("{said:?}"));
    let key = std::fs::read_to_string(world.data().join("api-key")).unwrap();
    let api = Api::new(&server.url, key.trim());
    let start = read(&file).len();
    let task = run(&api).await;
    assert_eq!(task["status"], "COMPLETED", "{task}");
    let ran = read(&file);
    let commands = outward(&ran[start..]);
    let commands = commands
        .iter()
        .filter(|line| line.contains("execve(") && line.contains("touch"));
    assert!(
        commands.count() >= 3,
        "the run itself is seen to start processes"
    );
    // Over the connection that is open already: exact, with an answer changed, and from a boundary.
    let (from, path) = (ran.len(), format!("/v1/tasks/{}/replay", text(&task["id"])));
    let events = api
        .get(&format!("/v1/tasks/{}/events?limit=200", text(&task["id"])))
        .await;
    let boundary = events["data"]
        .as_array()
        .unwrap()
        .iter()
        .find_map(|event| event["payload"]["checkpoint_id"].as_str());
    let changed = json!({"mode": "with_overrides", "override": {"llm:main:2": {
        "kind": "llm_provider_response", "value": {"choices": [{"message": {"content": "Two."}}]},
    }}});
    for body in [
        json!({}),
        changed,
        json!({"mode": "from_checkpoint", "checkpoint_id": boundary.unwrap()}),
    ] {
        let replay = api.ok(&Ask::post(&path, body)).await;
        api.until_status(&text(&replay["id"]), "COMPLETED").await;
    }
    let replayed = read(&file);
    assert_eq!(outward(&replayed[from..]), Vec::<&str>::new());
    let (status, _) = server.stop();
    assert_eq!(status.code(), Some(0));
}

/// Returns what is left of a log without ids, positions, times and what a recovery adds.
fn outline(events: &[Value]) -> Vec<String> {
    let mut lines: Vec<String> = events
        .iter()
        .filter(|event| event["payload"]["reason"] != "recovered")
        .map(|event| {
            let payload = &event["payload"];
            let said = [
                &payload["effect_key"],
                &payload["value"],
                &payload["output"],
                &payload["parts"],
            ];
            format!("{} {}", event["event"], json!(said))
        })
        .collect();
    // Commands that run at once may end in any order.
    lines.sort();
    lines
}

/// SIGKILL while an agent works and while it is replayed: the outcome and the log are those of an undisturbed run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_during_runs_and_replays_change_nothing() {
    const KILLS: usize = 6;
    let mut rng = generator();
    let world = World::new();
    configure(&world);
    let calm = Host::with(world, SETTINGS);
    let task = run(&calm.api()).await;
    let log = async |api: Api, task: String| {
        let page = api.get(&format!("/v1/tasks/{task}/events?limit=200")).await;
        outline(page["data"].as_array().unwrap())
    };
    let source = log(calm.api(), text(&task["id"])).await;
    let path = format!("/v1/tasks/{}/replay", text(&task["id"]));
    let replay = calm.api().ok(&Ask::post(&path, json!({}))).await;
    let replay = calm
        .api()
        .until_status(&text(&replay["id"]), "COMPLETED")
        .await;
    let repeated = log(calm.api(), text(&replay["id"])).await;
    for _ in 0..KILLS {
        let world = World::new();
        configure(&world);
        let mut host = Host::with(world, SETTINGS);
        for (replays, expected) in [(false, &source), (true, &repeated)] {
            let api = host.api();
            let wait = Duration::from_micros(rng.u64(0..60_000));
            let begun = tokio::spawn(async move {
                if !replays {
                    return run(&api).await["id"].clone();
                }
                let task = api.list("/v1/tasks").await.remove(0);
                let path = format!("/v1/tasks/{}/replay", text(&task["id"]));
                let ask = Ask::post(&path, json!({})).with_key("replay");
                match api.send(&ask).await {
                    Ok(answer) => answer.json()["id"].clone(),
                    Err(_) => Value::Null,
                }
            });
            tokio::time::sleep(wait).await;
            host.kill();
            begun.await.ok();
            host.start();
            // Whatever was not acknowledged is asked for again, under the same key.
            let api = host.api();
            let done = if replays {
                let source = api.list("/v1/tasks").await;
                let source = source
                    .iter()
                    .find(|task| task["parent_task_id"].is_null())
                    .unwrap();
                let path = format!("/v1/tasks/{}/replay", text(&source["id"]));
                let ask = Ask::post(&path, json!({})).with_key("replay");
                let replay = api.ok(&ask).await;
                api.until_status(&text(&replay["id"]), "COMPLETED").await
            } else {
                again(&api).await
            };
            assert_eq!(done["status"], "COMPLETED", "{done}");
            assert_eq!(log(host.api(), text(&done["id"])).await, *expected);
        }
        host.kill();
        host.must_verify();
    }
}

/// Asks for the run once more: in the session that the first attempt made, when it came so far.
async fn again(api: &Api) -> Value {
    let tasks = api.list("/v1/tasks").await;
    match tasks.first() {
        Some(task) => {
            let path = format!("/v1/tasks/{}", text(&task["id"]));
            api.until(&path, |task| {
                ["COMPLETED", "FAILED"].contains(&task["status"].as_str().unwrap())
            })
            .await
        }
        None => run(api).await,
    }
}
