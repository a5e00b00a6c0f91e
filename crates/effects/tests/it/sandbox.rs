//! What a tool can reach. Each attempt is made twice: free, where it succeeds, and confined, where it must not.

use std::fs;
use std::path::{Path, PathBuf};

use effects::{Confinement, Outside};
use runs::workflow::{EffectKind, EffectOutcome};
use rustix::io::{FdFlags, fcntl_setfd};
use serde_json::json;

use crate::fixture::{config, confinement, perform, python};

/// What a tool must never see.
const CANARY: &str = "planted-canary";

/// Group `sandbox`: tests that need a kernel which can confine a process.
pub(crate) fn can_confine() -> Option<testing::Running> {
    testing::group("sandbox", effects::confine::support().err())
}

/// A data directory with a tool's folder beside it.
struct Place {
    root: tempfile::TempDir,
    data: PathBuf,
    folder: PathBuf,
}

const SECRETS: [&str; 4] = ["signing-keys.json", "api-key", "reprise.db", "vault/key"];

impl Place {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let (data, folder) = (root.path().join("data"), root.path().join("folder"));
        fs::create_dir_all(data.join("vault")).unwrap();
        fs::create_dir(&folder).unwrap();
        for name in SECRETS {
            fs::write(data.join(name), CANARY).unwrap();
        }
        // Links that somebody left in the folder.
        std::os::unix::fs::symlink(&data, folder.join("link")).unwrap();
        std::os::unix::fs::symlink(data.join("api-key"), folder.join("link-to-file")).unwrap();
        Self { root, data, folder }
    }

    fn outside(&self, more: &str) -> Outside {
        self.try_outside(&self.folder, more).unwrap()
    }

    fn try_outside(&self, folder: &Path, more: &str) -> Result<Outside, effects::ConfigError> {
        let text = format!(
            "[[tools]]\nname = \"run\"\nargv = [\"sh\", \"-c\", \"{{script}}\"]\nfolder = \"{}\"\n{more}\n\
             [tools.parameters]\ntype = \"object\"\nproperties = {{ script = {{ type = \"string\" }} }}\n",
            folder.display()
        );
        let confinement = Confinement {
            out_of_reach: vec![self.data.clone()],
            ..confinement()
        };
        Outside::new(config(&text), None, confinement)
    }
}

async fn run(outside: &Outside, script: &str) -> EffectOutcome {
    let request = json!({"tool": "run", "arguments": {"script": script}});
    perform(outside, EffectKind::LocalTool, request).await
}

fn said(performed: &EffectOutcome) -> String {
    assert!(performed.ok, "{performed:?}");
    format!(
        "{}{}",
        performed.value["stdout"].as_str().unwrap(),
        performed.value["stderr"].as_str().unwrap()
    )
}

/// U24.
#[tokio::test]
async fn u24_a_tool_reaches_the_keys_of_the_server_by_no_path() {
    let Some(_running) = can_confine() else {
        return;
    };
    let place = Place::new();
    // Whoever started the server left a file open for everybody.
    let inherited = fs::File::open(place.data.join("signing-keys.json")).unwrap();
    fcntl_setfd(&inherited, FdFlags::empty()).unwrap();
    let number = std::os::fd::AsRawFd::as_raw_fd(&inherited);
    let data = place.data.display();
    let server = std::process::id();
    let mut attempts = vec![
        format!("cat /proc/self/fd/{number}"),
        format!("cat <&{number}"),
        "cat link/api-key".to_owned(),
        "cat link-to-file".to_owned(),
        "cd link && cat api-key".to_owned(),
        format!("cat /proc/{server}/fd/{number}"),
        format!("cat /proc/{server}/root{data}/api-key"),
        format!("ln -s {data}/api-key new-link && cat new-link"),
        format!("cp -r {data} copy && cat copy/api-key"),
        format!("/usr/bin/env python3 -c \"print(open('{data}/api-key').read())\""),
    ];
    for name in SECRETS {
        attempts.push(format!("cat {data}/{name}"));
        attempts.push(format!("cat ../data/{name}"));
        attempts.push(format!("cat /proc/self/cwd/../data/{name}"));
        attempts.push(format!("cat /proc/self/root{data}/{name}"));
        attempts.push(format!("cat /proc/$$/root{data}/{name}"));
        attempts.push(format!("dd if={data}/{name}"));
    }
    let (free, confined) = (place.outside("sandbox = \"off\""), place.outside(""));
    for attempt in &attempts {
        let script = format!("rm -rf new-link copy; {attempt}");
        let seen = said(&run(&confined, &script).await);
        assert!(!seen.contains(CANARY), "`{attempt}`: {seen}");
        // One descriptor is read to its end once.
        if attempt != &format!("cat <&{number}") {
            let seen = said(&run(&free, &script).await);
            assert!(seen.contains(CANARY), "cannot fail: `{attempt}`: {seen}");
        }
    }
    let seen = said(
        &run(
            &confined,
            &format!("ls {data}; ls ..; ls /proc/{server}/fd"),
        )
        .await,
    );
    assert!(!seen.contains("api-key"), "{seen}");
    drop(place.root);
}

/// U24.
#[tokio::test]
async fn u24_a_tool_changes_nothing_outside_its_folders() {
    let Some(_running) = can_confine() else {
        return;
    };
    let place = Place::new();
    let (read, write) = (
        place.root.path().join("read"),
        place.root.path().join("write"),
    );
    for folder in [&read, &write] {
        fs::create_dir(folder).unwrap();
        fs::write(folder.join("there"), "there").unwrap();
    }
    let confined = place.outside(&format!(
        "read = [\"{}\"]\nwrite = [\"{}\"]",
        read.display(),
        write.display()
    ));
    let data = place.data.display();
    for attempt in [
        format!("rm {data}/api-key"),
        format!(": > {data}/api-key"),
        format!("truncate -s 0 {data}/reprise.db"),
        format!("mv {data}/api-key ."),
        format!("ln {data}/api-key hard"),
        format!("touch {data}/new"),
        format!("echo x >> {}/there", read.display()),
        format!("touch {}/new", read.display()),
        "touch ../new".to_owned(),
        "touch /tmp/reprise-sandbox-test".to_owned(),
        "touch /var/tmp/reprise-sandbox-test".to_owned(),
        "touch /etc/reprise-sandbox-test".to_owned(),
    ] {
        let performed = run(&confined, &attempt).await;
        assert_ne!(
            performed.value["exit_code"], 0,
            "`{attempt}`: {performed:?}"
        );
    }
    for name in SECRETS {
        assert_eq!(fs::read_to_string(place.data.join(name)).unwrap(), CANARY);
    }
    assert!(!place.data.join("new").exists());
    let script = format!(
        "touch here && touch $TMPDIR/temporary && touch {}/new && cat {}/there && echo > /dev/null && echo $TMPDIR",
        write.display(),
        read.display()
    );
    let performed = run(&confined, &script).await;
    assert_eq!(performed.value["exit_code"], 0, "{performed:?}");
    assert!(place.folder.join("here").exists() && write.join("new").exists());
    let temporary = said(&performed);
    let temporary = temporary.trim_start_matches("there").trim();
    assert!(temporary.contains("reprise-tool-"), "{temporary}");
    for _ in 0..100 {
        if !Path::new(temporary).exists() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert!(!Path::new(temporary).exists(), "{temporary} is left behind");
}

/// Tries to make a socket of each kind and says which it got.
const SOCKETS: &str = r#"
import socket, ctypes
for name, make in [
    ('tcp', lambda: socket.socket(2, 1)), ('udp', lambda: socket.socket(2, 2)),
    ('tcp6', lambda: socket.socket(10, 1)), ('udp6', lambda: socket.socket(10, 2)),
    ('raw', lambda: socket.socket(2, 3, 1)), ('raw6', lambda: socket.socket(10, 3, 58)),
    ('unix', lambda: socket.socket(1, 1)), ('unix_datagram', lambda: socket.socket(1, 2)),
    ('netlink_route', lambda: socket.socket(16, 3, 0)), ('netlink_audit', lambda: socket.socket(16, 3, 9)),
    ('packet', lambda: socket.socket(17, 3, 0)), ('pair_datagram', lambda: socket.socketpair(1, 2)),
    ('pair_stream', lambda: socket.socketpair(1, 1)),
]:
    try:
        make()
        print(name)
    except OSError as error:
        assert error.errno == 1, (name, error)
libc = ctypes.CDLL(None, use_errno=True)
buffer = ctypes.create_string_buffer(120)
for name, number in [('io_uring', 425), ('x32_socket', 0x40000000 + 41)]:
    if libc.syscall(number, 2, buffer) >= 0: print(name)
"#;

/// U24.
#[tokio::test]
async fn u24_a_tool_without_the_network_gets_no_socket_of_any_family() {
    let Some(_running) = can_confine() else {
        return;
    };
    let place = Place::new();
    fs::write(place.folder.join("sockets.py"), SOCKETS).unwrap();
    let got = async |more: &str| {
        let performed = run(&place.outside(more), "python3 sockets.py").await;
        assert_eq!(performed.value["exit_code"], 0, "{performed:?}");
        said(&performed)
    };
    assert_eq!(got("").await, "pair_stream\n");
    assert_eq!(
        got("network = true").await,
        "tcp\nudp\ntcp6\nudp6\nnetlink_route\npair_stream\n"
    );
    // Without a sandbox these at least are there, for whoever runs the test.
    let free = got_free(&place).await;
    for name in [
        "tcp",
        "udp",
        "unix",
        "unix_datagram",
        "netlink_route",
        "pair_datagram",
    ] {
        assert!(free.contains(name), "cannot fail: {free}");
    }
}

/// Sets limits of its parent, which is the server: without the sandbox nothing keeps the same user from it.
const LIMITS: &str = "import os, resource\n\
    def attempt(name, act):\n\
    \x20   try:\n\
    \x20       act()\n\
    \x20       print(name, 'done')\n\
    \x20   except OSError as error:\n\
    \x20       print(name, error.errno)\n\
    server = os.getppid()\n\
    now = resource.prlimit(0, resource.RLIMIT_CORE)\n\
    attempt('own', lambda: resource.prlimit(0, resource.RLIMIT_CORE, now))\n\
    attempt('limit', lambda: resource.prlimit(server, resource.RLIMIT_CORE))\n\
    attempt('priority', lambda: os.setpriority(os.PRIO_PROCESS, server, os.getpriority(os.PRIO_PROCESS, server)))\n\
    attempt('cores', lambda: os.sched_setaffinity(server, os.sched_getaffinity(server)))\n";

#[tokio::test]
async fn u24_a_tool_sets_no_limits_of_other_processes() {
    let Some(_running) = can_confine() else {
        return;
    };
    let place = Place::new();
    fs::write(place.folder.join("limits.py"), LIMITS).unwrap();
    let confined = said(&run(&place.outside(""), "python3 limits.py").await);
    assert_eq!(confined.trim(), "own done\nlimit 1\npriority 1\ncores 1");
    let free = said(&run(&place.outside("sandbox = \"off\""), "python3 limits.py").await);
    assert_eq!(
        free.trim(),
        "own done\nlimit done\npriority done\ncores done"
    );
}

async fn got_free(place: &Place) -> String {
    let script = SOCKETS.replace("assert error.errno == 1, (name, error)", "pass");
    fs::write(place.folder.join("sockets.py"), script).unwrap();
    said(&run(&place.outside("sandbox = \"off\""), "python3 sockets.py").await)
}

/// U24.
#[test]
fn u24_a_tool_that_would_reach_the_data_directory_is_refused_at_start() {
    let Some(_running) = can_confine() else {
        return;
    };
    let place = Place::new();
    let data = place.data.display().to_string();
    let root = place.root.path().display().to_string();
    let link = place.folder.join("link").display().to_string();
    for (folder, more) in [
        (place.root.path(), String::new()),
        (&place.data, String::new()),
        (&place.data.join("vault"), String::new()),
        (Path::new(&link), String::new()),
        (&place.folder, format!("read = [\"{root}\"]")),
        (&place.folder, format!("read = [\"{data}/api-key\"]")),
        (&place.folder, format!("write = [\"{link}\"]")),
        (&place.folder, "read = [\"/\"]".to_owned()),
    ] {
        let error = place.try_outside(folder, &more).unwrap_err().to_string();
        assert!(
            error.contains("overlaps with the data directory"),
            "{error}"
        );
    }
    place.outside("");
    // The operator may take the risk, by name.
    place.try_outside(&place.data, "sandbox = \"off\"").unwrap();
}

/// A folder that is moved behind a running server is looked at again before each call.
#[tokio::test]
async fn a_folder_that_became_a_link_to_the_data_directory_is_refused() {
    let Some(_running) = can_confine() else {
        return;
    };
    let place = Place::new();
    let outside = place.outside("");
    assert!(run(&outside, "true").await.ok);
    fs::rename(&place.folder, place.root.path().join("moved")).unwrap();
    std::os::unix::fs::symlink(&place.data, &place.folder).unwrap();
    let performed = run(&outside, "cat api-key").await;
    assert!(!performed.ok, "{performed:?}");
    assert_eq!(performed.value["code"], "tool_not_started");
    assert!(!performed.value.to_string().contains(CANARY));
}

/// U4: what is said of the limits is what they are.
#[tokio::test]
async fn u4_the_limits_are_told_with_the_result() {
    let Some(_running) = can_confine() else {
        return;
    };
    let place = Place::new();
    let limits = |performed: EffectOutcome| performed.observed.unwrap().sandbox.unwrap();
    let told = limits(run(&place.outside("network = true\nread = [\"/opt\"]"), "true").await);
    let level = &told["landlock_abi"];
    assert!((3..=6).contains(&level.as_u64().unwrap()), "{told}");
    assert_eq!(
        told,
        json!({"enforced": true, "landlock_abi": level, "modes_protected": told["modes_protected"],
            "network": true, "read": ["/opt"], "write": [place.folder.display().to_string()]})
    );
    let told = limits(run(&place.outside("sandbox = \"off\""), "true").await);
    assert_eq!(told, json!({"enforced": false}));
}

#[tokio::test]
async fn a_program_that_cannot_start_says_so_and_cannot_be_imitated() {
    let Some(_running) = can_confine() else {
        return;
    };
    let place = Place::new();
    let performed = run(&place.outside(""), "echo no such file >&2; exit 125").await;
    assert!(performed.ok, "{performed:?}");
    assert_eq!(performed.value["exit_code"], 125);
    // A file that is there and is no program.
    fs::write(place.folder.join("text"), "not a program").unwrap();
    let text = format!(
        "[[tools]]\nname = \"run\"\nargv = [\"./text\"]\nfolder = \"{}\"\n",
        place.folder.display()
    );
    let outside = Outside::new(config(&text), None, confinement()).unwrap();
    let performed = perform(&outside, EffectKind::LocalTool, json!({"tool": "run"})).await;
    assert_eq!(performed.value["code"], "tool_not_started", "{performed:?}");
}

/// A program outside the system folders runs without its folder being named: its own file is enough.
#[tokio::test]
async fn a_program_can_read_its_own_file() {
    let Some(_running) = can_confine() else {
        return;
    };
    let place = Place::new();
    let program = place.root.path().join("program");
    fs::write(&program, "#!/bin/sh\ncat \"$0\" | head -1; pwd\n").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    fs::set_permissions(&program, mode).unwrap();
    let text = format!(
        "[[tools]]\nname = \"run\"\nargv = [\"{}\"]\n",
        program.display()
    );
    let outside = Outside::new(config(&text), None, confinement()).unwrap();
    let performed = perform(&outside, EffectKind::LocalTool, json!({"tool": "run"})).await;
    let said = said(&performed);
    assert!(said.starts_with("#!/bin/sh\n"), "{said}");
    // Without a folder it runs in its temporary one.
    assert!(said.contains("reprise-tool-"), "{said}");
}

/// U24: servers are confined as commands are.
#[tokio::test]
async fn u24_an_mcp_server_that_is_a_process_is_confined() {
    let Some(_running) = can_confine() else {
        return;
    };
    let place = Place::new();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mcp/faulty.py");
    let secret = place.data.join("signing-keys.json");
    // Where the data directory is covered, there is no such file.
    let refusals = ["Permission denied", "No such file or directory"].as_slice();
    for (mode, expected) in [("on", refusals), ("off", &[CANARY])] {
        let text = format!(
            "[[mcp_servers]]\nid = \"faulty\"\ncommand = [\"{1}\", \"{0}\"]\nread = [\"{0}\"]\nsandbox = \"{mode}\"\n",
            script.display(),
            python()
        );
        let confinement = Confinement {
            out_of_reach: vec![place.data.clone()],
            ..confinement()
        };
        let outside = Outside::new(config(&text), None, confinement).unwrap();
        let request = json!({"server": "faulty", "tool": "open", "arguments": {"path": secret}});
        let performed = perform(&outside, EffectKind::McpTool, request).await;
        assert!(performed.ok, "{performed:?}");
        let text = performed.value["content"][0]["text"].as_str().unwrap();
        assert!(expected.contains(&text), "{text}");
        let limits = performed.observed.unwrap().sandbox.unwrap();
        assert_eq!(limits["enforced"], mode == "on");
        outside.shutdown().await;
    }
}

/// What cannot work is said when it is said, not when it is used.
#[test]
fn missing_folders_and_unknown_secrets_are_warned_about_at_start() {
    let (_folder, vault) = crate::fixture::vault(&[("known", "planted-canary")]);
    let text = "[[providers]]\nid = \"p\"\nkind = \"openai\"\napi_key = { secret = \"none\" }\n\
        [[tools]]\nname = \"a\"\nargv = [\"true\"]\nfolder = \"/reprise-no-such-folder\"\nsecrets = { A = \"known\", B = \"other\" }\n\
        [[mcp_servers]]\nid = \"s\"\ncommand = [\"true\"]\nread = [\"/reprise-no-such-file\"]\nsandbox = \"off\"\n\
        [[tools]]\nname = \"fine\"\nargv = [\"true\"]\nsandbox = \"off\"\nfolder = \"/\"\nsecrets = { A = \"known\" }\n";
    let text = text.replacen("argv", "sandbox = \"off\"\nargv", 1);
    let outside = Outside::new(config(&text), Some(vault), confinement()).unwrap();
    let warnings = outside.warnings();
    let about = |start: &str, end: &str| {
        let found = |warning: &&String| warning.starts_with(start) && warning.contains(end);
        assert_eq!(
            warnings.iter().filter(found).count(),
            1,
            "{start} {end}: {warnings:?}"
        );
    };
    about("tool `a`: ", "there is no `/reprise-no-such-folder`");
    about("tool `a`: ", "`other`");
    about("MCP server `s`: ", "there is no `/reprise-no-such-file`");
    about("provider `p`: ", "`none`");
    assert_eq!(warnings.len(), 4, "{warnings:?}");
}
