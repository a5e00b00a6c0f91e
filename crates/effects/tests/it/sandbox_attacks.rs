//! Ways around the sandbox that somebody tried: each is made free, where it works, and confined, where it must not.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::time::Duration;

use effects::{Confinement, Outside};
use runs::workflow::{EffectKind, EffectOutcome};
use serde_json::json;

use crate::fixture::{config, confinement, is_gone, perform, python};
use crate::sandbox::can_confine;

const CANARY: &str = "planted-canary";

/// A data directory, and a tool's folder beside it.
struct Place {
    root: tempfile::TempDir,
    data: PathBuf,
    folder: PathBuf,
}

impl Place {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let (data, folder) = (root.path().join("data"), root.path().join("folder"));
        for made in [&data, &folder] {
            fs::create_dir(made).unwrap();
        }
        fs::write(data.join("api-key"), CANARY).unwrap();
        set_mode(&data, 0o700);
        set_mode(&data.join("api-key"), 0o600);
        Self { root, data, folder }
    }

    fn outside(&self, more: &str) -> Outside {
        let text = format!(
            "[[tools]]\nname = \"run\"\nargv = [\"sh\", \"-c\", \"{{script}}\"]\nfolder = \"{}\"\nenv = [\"PATH\", \"HOME\"]\n{more}\n\
             [tools.parameters]\ntype = \"object\"\nproperties = {{ script = {{ type = \"string\" }} }}\n",
            self.folder.display()
        );
        let confinement = Confinement {
            out_of_reach: vec![self.data.clone()],
            ..confinement()
        };
        Outside::new(config(&text), None, confinement).unwrap()
    }

    /// What another user would need to know.
    fn modes(&self) -> Vec<(u32, i64, u32)> {
        [&self.data, &self.data.join("api-key")]
            .map(|path| {
                let found = fs::metadata(path).unwrap();
                (found.mode(), found.mtime(), found.uid())
            })
            .to_vec()
    }
}

fn set_mode(path: &std::path::Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

async fn run(outside: &Outside, script: &str) -> EffectOutcome {
    let request = json!({"tool": "run", "arguments": {"script": script}});
    perform(outside, EffectKind::LocalTool, request).await
}

fn said(performed: &EffectOutcome) -> String {
    let text = |member: &str| performed.value[member].as_str().unwrap_or_default();
    format!("{}{}", text("stdout"), text("stderr"))
}

/// Calls by number what no command of the system calls; prints what went through.
const CALLS: &str = r#"
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
data, server = sys.argv[1].encode(), int(sys.argv[2])
key = data + b'/api-key'
times = (ctypes.c_long * 4)(1, 0, 1, 0)
value = ctypes.create_string_buffer(b'x', 64)
path = os.open(data, os.O_PATH)
try: file = os.open(key, os.O_PATH)
except OSError: file = -1
if os.path.exists(key): print('seen')
for name, number, arguments in [
    ('chmod', 90, (key, 0o644)), ('fchmodat', 268, (-100, key, 0o644)),
    ('fchmodat by descriptor', 268, (path, b'api-key', 0o644)),
    ('fchmodat2', 452, (file, b'', 0o644, 0x1000)),
    ('fchmodat by link', 268, (-100, b'/proc/self/fd/%d' % file, 0o644)),
    ('utimensat', 280, (-100, key, times, 0)), ('utime', 132, (key, times)), ('utimes', 235, (key, times)),
    ('futimesat', 261, (-100, key, times)),
    ('chown', 92, (key, os.getuid(), os.getgid())), ('lchown', 94, (key, os.getuid(), os.getgid())),
    ('fchownat', 260, (-100, key, os.getuid(), os.getgid(), 0)),
    ('setxattr', 188, (key, b'user.x', value, 1, 0)), ('lsetxattr', 189, (key, b'user.y', value, 1, 0)),
]:
    if libc.syscall(number, *arguments) >= 0: print(name)
"#;

/// Landlock does not know modes; the view of the file system does.
#[tokio::test]
async fn u24_a_tool_changes_modes_owners_and_times_in_its_folders_only() {
    let Some(_running) = can_confine() else {
        return;
    };
    let place = Place::new();
    let confined = place.outside("");
    let told = run(&confined, "true")
        .await
        .observed
        .unwrap()
        .sandbox
        .unwrap();
    // The record says it where there are none.
    let missing = (told["modes_protected"] != true).then_some("there are no user namespaces");
    let Some(_protected) = testing::group("namespaces", missing) else {
        return;
    };
    assert!(confined.warnings().is_empty(), "{:?}", confined.warnings());
    let script = place.folder.join("calls.py");
    fs::write(&script, CALLS).unwrap();
    let attempt = format!(
        "{} calls.py {} {}",
        python(),
        place.data.display(),
        std::process::id()
    );
    let before = place.modes();
    let performed = run(&confined, &attempt).await;
    assert_eq!(performed.value["exit_code"], 0, "{performed:?}");
    assert_eq!(said(&performed), "");
    assert_eq!(place.modes(), before);
    // Not by a descriptor of a folder that it may read either.
    let readable = place.root.path().join("readable");
    fs::write(&readable, "x").unwrap();
    let with_read = place.outside(&format!("read = [\"{}\"]", readable.display()));
    let script = format!(
        "{} -c \"import os; os.fchmod(os.open('{}', os.O_RDONLY), 0o666)\"",
        python(),
        readable.display()
    );
    assert_ne!(run(&with_read, &script).await.value["exit_code"], 0);
    // In its own folder all of it works.
    let own = "touch f && chmod 640 f && touch -d 2001-01-01 f && chown $(id -u):$(id -g) f && stat -c %a,%Y f && \
        touch $TMPDIR/g && chmod 600 $TMPDIR/g";
    let performed = run(&confined, own).await;
    assert_eq!(performed.value["exit_code"], 0, "{performed:?}");
    assert!(said(&performed).starts_with("640,9783"), "{performed:?}");
    // Each of these calls does it where nothing is held back.
    let free = said(&run(&place.outside("sandbox = \"off\""), &attempt).await);
    assert!(free.starts_with("seen\n"), "{free}");
    assert!(
        free.contains("chmod\nfchmodat\nfchmodat by descriptor\n"),
        "{free}"
    );
    assert!(
        free.contains("utimensat\nutime\nutimes\nfutimesat\nchown\nlchown\nfchownat\n"),
        "{free}"
    );
    assert_ne!(place.modes(), before);
}

/// Leaves process group and session, twice, and waits; says its number first.
const ESCAPE: &str = "setsid sh -c 'setsid sleep 600 & echo $! >> pids; echo $$ >> pids; exec sleep 600' & \
    sh -c 'trap \"\" TERM HUP INT; echo $$ >> pids; sleep 600' & \
    while [ $(wc -l < pids 2> /dev/null || echo 0) -lt 3 ]; do sleep 0.02; done;";

async fn pids(place: &Place) -> Vec<String> {
    let file = place.folder.join("pids");
    for _ in 0..500 {
        let text = fs::read_to_string(&file).unwrap_or_default();
        if text.lines().count() == 3 {
            return text.lines().map(str::to_owned).collect();
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the tool did not start");
}

async fn all_gone(place: &Place) {
    for process in pids(place).await {
        assert!(is_gone(&process).await, "{process} is still there");
    }
}

#[tokio::test]
async fn nothing_that_a_tool_started_outlives_its_call() {
    let Some(_running) = can_confine() else {
        return;
    };
    let place = Place::new();
    let performed = run(&place.outside(""), &format!("{ESCAPE} exit 3")).await;
    assert_eq!(performed.value["exit_code"], 3, "{performed:?}");
    all_gone(&place).await;
}

#[tokio::test]
async fn nothing_that_a_tool_started_outlives_a_timeout() {
    let Some(_running) = can_confine() else {
        return;
    };
    let place = Place::new();
    let performed = run(
        &place.outside("timeout_ms = 2000"),
        &format!("{ESCAPE} sleep 600"),
    )
    .await;
    assert_eq!(performed.value["code"], "tool_timeout", "{performed:?}");
    all_gone(&place).await;
}

#[tokio::test]
async fn nothing_that_a_tool_started_outlives_an_interrupt() {
    let Some(_running) = can_confine() else {
        return;
    };
    let place = Place::new();
    let outside = place.outside("");
    let running = tokio::spawn(async move { run(&outside, &format!("{ESCAPE} sleep 600")).await });
    let started = pids(&place).await;
    assert_eq!(started.len(), 3);
    running.abort();
    all_gone(&place).await;
}

/// A chain of processes, each in a session of its own, each gone when the next is there.
#[tokio::test]
async fn a_process_that_is_never_there_for_long_is_ended_too() {
    let Some(_running) = can_confine() else {
        return;
    };
    let place = Place::new();
    let hop = "import os, time\nend = time.time() + 60\n\
        while time.time() < end:\n\
        \x20   if os.fork(): os._exit(0)\n\
        \x20   os.setsid()\n\
        \x20   open('hop', 'a').write('x')\n";
    fs::write(place.folder.join("hop.py"), hop).unwrap();
    let script = format!("{} hop.py; sleep 0.5", python());
    let performed = run(&place.outside(""), &script).await;
    assert_eq!(performed.value["exit_code"], 0, "{performed:?}");
    let hops = || fs::metadata(place.folder.join("hop")).unwrap().len();
    let before = hops();
    assert!(before > 1, "{before}");
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(hops(), before, "the chain goes on");
}

#[tokio::test]
async fn a_tool_cannot_end_its_keeper_and_is_told_as_it_ended() {
    let Some(_running) = can_confine() else {
        return;
    };
    let place = Place::new();
    let confined = place.outside("");
    let level = run(&confined, "true")
        .await
        .observed
        .unwrap()
        .sandbox
        .unwrap()["landlock_abi"]
        .clone();
    if level.as_u64() >= Some(6) {
        let performed = run(
            &confined,
            "kill -9 $PPID; kill -TERM $PPID; echo still here",
        )
        .await;
        assert!(said(&performed).starts_with("still here"), "{performed:?}");
    }
    for (script, signal) in [
        ("kill -9 $$", 9),
        ("kill -SEGV $$", 11),
        ("kill -TERM $$", 15),
    ] {
        let performed = run(&confined, script).await;
        assert_eq!(performed.value["code"], "tool_killed", "{performed:?}");
        assert_eq!(performed.value["signal"], signal, "{performed:?}");
    }
    let performed = run(&confined, "kill -PIPE $$").await;
    assert_eq!(performed.value["exit_code"], 128 + 13, "{performed:?}");
}

/// What looks into other processes, and what makes devices. As root nothing but the sandbox is in the way.
const PEEK: &str = r#"
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long] * 4
libc.mmap.restype = ctypes.c_void_p
server = int(sys.argv[1])
def call(name, number, *arguments):
    if libc.syscall(number, *arguments) >= 0: print(name)
def read(name, path):
    try:
        if open(path, 'rb').read(1): print(name)
    except OSError: pass
read('environ', f'/proc/{server}/environ')
read('maps', f'/proc/{server}/maps')
try:
    memory = open(f'/proc/{server}/mem', 'rb'); print('mem')
except OSError: pass
call('ptrace', 101, 0x4206, server, 0, 0)
buffer = ctypes.create_string_buffer(8)
class Vector(ctypes.Structure): _fields_ = [('base', ctypes.c_void_p), ('length', ctypes.c_size_t)]
own = Vector(ctypes.addressof(buffer), 8)
maps = None
try: maps = int(open(f'/proc/{server}/maps').readline().split('-')[0], 16)
except OSError: maps = ctypes.addressof(buffer)
call('process_vm_readv', 310, server, ctypes.byref(own), 1, ctypes.byref(Vector(maps, 8)), 1, 0)
handle = libc.syscall(434, server, 0)
call('pidfd_getfd', 438, handle, 0, 0)
call('kcmp', 312, os.getpid(), server, 2, 0, 0)
for name, kind in [('mknod char', 0o020600), ('mknod block', 0o060600)]:
    call(name, 133, name.encode(), kind, os.makedev(1, 8))
    call(name + ' at', 259, -100, name.encode() + b'2', kind, os.makedev(1, 8))
call('fifo', 133, b'fifo', 0o010600, 0)
call('plain', 259, -100, b'plain', 0o100600, 0)
# Harmless even where nothing is held back: all of it names a place that is not there.
def known(name, number, *arguments):
    if libc.syscall(number, *arguments) >= 0 or ctypes.get_errno() != 1: print(name)
nowhere = b'/reprise-no-such-place'
known('mount', 165, nowhere, nowhere, b'', 4096, 0)
known('umount2', 166, nowhere, 0)
known('mount_setattr', 442, -100, nowhere, 0, (ctypes.c_uint64 * 4)(0, 0, 0, 0), 32)
known('open_tree', 428, -100, nowhere, 0)
known('setns', 308, -1, 0)
"#;

#[tokio::test]
async fn u24_a_tool_looks_into_no_other_process_and_makes_no_device() {
    let Some(_running) = can_confine() else {
        return;
    };
    let place = Place::new();
    fs::write(place.folder.join("peek.py"), PEEK).unwrap();
    let script = format!("{} peek.py {}", python(), std::process::id());
    let confined = run(&place.outside(""), &script).await;
    assert_eq!(said(&confined), "fifo\nplain\n", "{confined:?}");
    for made in ["fifo", "plain"] {
        fs::remove_file(place.folder.join(made)).unwrap();
    }
    let free = said(&run(&place.outside("sandbox = \"off\""), &script).await);
    for name in [
        "environ",
        "maps",
        "fifo",
        "plain",
        "mount",
        "umount2",
        "open_tree",
        "setns",
    ] {
        assert!(free.contains(name), "cannot fail: {free}");
    }
    // In a user namespace, as in some containers, root is not the machine's.
    let users = fs::read_to_string("/proc/self/uid_map").unwrap();
    let is_whole = users.split_whitespace().eq(["0", "0", "4294967295"]);
    if rustix::process::geteuid().is_root() && is_whole {
        for name in [
            "mem\n",
            "ptrace",
            "process_vm_readv",
            "pidfd_getfd",
            "mount_setattr",
            "mknod char at",
            "mknod block at",
        ] {
            assert!(free.contains(name), "cannot fail: {name}: {free}");
        }
    }
}

/// Programs that people give to agents.
#[tokio::test]
async fn git_python_node_and_tar_work_in_a_sandbox() {
    let Some(_running) = can_confine() else {
        return;
    };
    let place = Place::new();
    let home = place.folder.join("home");
    fs::create_dir(&home).unwrap();
    let confined = place.outside("");
    let git = "export HOME=$PWD/home; git init -q repo && cd repo && git config user.name a && git config user.email a@b && \
        echo x > f && chmod +x f && git add f && git commit -qm one && git log --format=%s && git clone -q . ../clone && \
        git -C ../clone config x.y z && stat -c %a ../clone/f";
    let python = format!(
        "{} -c \"import shutil, os, subprocess; open('a','w').write('x'); os.chmod('a', 0o750); shutil.copy2('a', 'b'); \
         print(oct(os.stat('b').st_mode)); print(subprocess.run(['id', '-u'], start_new_session=True).returncode)\"",
        crate::fixture::python()
    );
    let tar = "mkdir -p t && echo 1 > t/x && chmod 700 t/x && tar cf t.tar t && rm -r t && tar xf t.tar && stat -c %a t/x && \
        cp -a t u && mv u v && timeout 0.1 sleep 5; echo after";
    let node = "node -e \"const fs=require('fs');fs.writeFileSync('n','x');fs.chmodSync('n',0o700);fs.utimesSync('n',1,1);\
        fs.copyFileSync('n','m');require('child_process').spawn('true',{detached:true}).on('exit',c=>console.log('exit',c))\"";
    for (program, script, expected) in [
        ("git", git, "one\n755\n"),
        ("python3", python.as_str(), "0o100750\n0\n0\n"),
        ("tar", tar, "700\nafter\n"),
        ("/usr/bin/node", node, "exit 0\n"),
    ] {
        let there = std::process::Command::new(program)
            .arg("--version")
            .output();
        let missing = there.err().map(|error| format!("`{program}`: {error}"));
        let Some(_installed) = testing::group("sandboxed-programs", missing) else {
            continue;
        };
        let performed = run(&confined, script).await;
        assert_eq!(performed.value["exit_code"], 0, "{performed:?}");
        let user = rustix::process::geteuid().as_raw();
        let expected = expected.replace("0o100750\n0\n", &format!("{user}\n0o100750\n"));
        let mut lines: Vec<_> = expected.lines().collect();
        let text = said(&performed);
        let mut found: Vec<_> = text.lines().collect();
        lines.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, lines, "{program}: {performed:?}");
    }
}
