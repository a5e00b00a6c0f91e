//! The sandbox of programs that agents use: local commands, and MCP servers that are processes of ours.
//!
//! A program is started through two small steps of our own, usually this very program executed twice. The first, the
//! keeper ([`keeper`]), stays beside the program and ends everything that the program started. The second gives up what
//! the program must not have ([`view`], [`kernel`]) and then becomes the program. What it gives up cannot be got back, and
//! is passed on to everything that the program starts.
//!
//! A program can read system folders, its own file and what the configuration names. It can write to its folder, to a
//! temporary folder of its own and to what the configuration names. It has no network unless it is given one. The
//! folders that are out of reach (the data directory) must not overlap with any of these: a configuration that lets them
//! is refused, and so is a call if a link was moved since.

#[cfg(target_os = "linux")]
mod keeper;
#[cfg(target_os = "linux")]
mod kernel;
#[cfg(not(target_os = "linux"))]
#[path = "confine/elsewhere.rs"]
mod kernel;
#[cfg(target_os = "linux")]
mod view;

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use canon::Value;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tempfile::TempDir;
use tokio::process::Command;

use crate::config::SandboxMode;

/// The first argument that makes a program the keeper of another.
const ENTRY: &str = "__confined";
/// The first argument that makes a program become another, inside the sandbox.
const INSIDE: &str = "__confined_inside";
/// The first argument that makes a program find out whether it could see a view of its own.
const PROBE: &str = "__confined_probe";
/// How the starter ends when the program could not be started.
pub(crate) const NOT_STARTED: i32 = 125;
/// Where programs are looked for when the configuration passes no `PATH` on.
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// What every program can read and execute. Folders that are not there are passed over.
const SYSTEM: &[&str] = &[
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/etc",
    "/proc",
    "/sys/devices/system/cpu",
    "/sys/fs/cgroup",
    "/nix/store",
    "/run/current-system",
    "/run/resolvconf",
    "/run/systemd/resolve",
];
/// Devices that every program can use.
const DEVICES: &[&str] = &[
    "/dev/full",
    "/dev/null",
    "/dev/random",
    "/dev/urandom",
    "/dev/zero",
];

/// Who starts programs, and what they never reach.
#[derive(Debug, Clone)]
pub struct Confinement {
    /// The program that becomes the starter. It must call [`enter_if_asked`] before anything else.
    pub starter: PathBuf,
    /// Folders that no program can reach, such as the data directory.
    pub out_of_reach: Vec<PathBuf>,
}

impl Confinement {
    /// This program is the starter.
    pub fn by_this_program(out_of_reach: Vec<PathBuf>) -> Self {
        Self {
            // Also when the file was replaced by a newer one meanwhile.
            starter: PathBuf::from("/proc/self/exe"),
            out_of_reach,
        }
    }

    /// Returns the folder out of reach that a path contains, equals or lies in.
    fn overlap(&self, path: &Path) -> Option<&PathBuf> {
        let path = real(path);
        self.out_of_reach.iter().find(|folder| {
            let folder = real(folder);
            folder.starts_with(&path) || path.starts_with(&folder)
        })
    }
}

/// Returns whether programs can be confined here.
///
/// # Errors
/// Says what is missing.
pub fn support() -> Result<(), String> {
    kernel::level().map(drop)
}

/// Becomes the program that the arguments name, if this process was started to do that. Must be called first in `main`:
/// there must be no other thread.
///
/// Returns only when there is nothing to become, or when it did not work.
pub fn enter_if_asked() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    let entry = arguments.next()?;
    let is_keeper = entry == ENTRY;
    if entry == PROBE {
        return Some(ExitCode::from(u8::from(!kernel::can_view())));
    }
    if !is_keeper && entry != INSIDE {
        return None;
    }
    let sealed = arguments.next().unwrap_or_default();
    let order: Option<LaunchOrder> = serde_json::from_slice(sealed.as_encoded_bytes()).ok();
    let (Some(order), Some(program)) = (order, arguments.next()) else {
        eprintln!("`{ENTRY}` is for this program's own use");
        return Some(ExitCode::from(2));
    };
    if is_keeper {
        return Some(kernel::supervise(&order, &sealed, &program, arguments));
    }
    let problem = kernel::enter(&order, &program, arguments);
    eprintln!("{}{problem}", order.mark);
    Some(ExitCode::from(NOT_STARTED as u8))
}

/// What the starter is told.
#[derive(Debug, Serialize, Deserialize)]
struct LaunchOrder {
    read: Vec<PathBuf>,
    write: Vec<PathBuf>,
    network: bool,
    /// Whether everything else is seen as on a read-only medium.
    view: bool,
    /// Folders that must be out of reach.
    kept: Vec<PathBuf>,
    /// The process whose end is the program's end.
    server: u32,
    /// Stands before the starter's own complaints, so that a program cannot make one up.
    mark: String,
}

/// What a program may reach, as the configuration says it.
#[derive(Debug, Clone)]
pub(crate) struct SandboxAccess {
    pub(crate) folder: Option<PathBuf>,
    pub(crate) read: Vec<PathBuf>,
    pub(crate) write: Vec<PathBuf>,
    pub(crate) network: bool,
    pub(crate) mode: SandboxMode,
}

/// The sandbox of one tool or server.
#[derive(Debug, Clone)]
pub(crate) struct Sandbox {
    confinement: Arc<Confinement>,
    reach: SandboxAccess,
    /// What the kernel offers; none when the sandbox is off.
    level: Option<u32>,
    /// Whether modes, owners and times outside its folders are held back too.
    view: bool,
}

/// A command that is ready to start, and what must live as long as it runs.
pub(crate) struct ConfinedCommand {
    pub(crate) command: Command,
    pub(crate) temporary: Option<TempDir>,
    /// Stands before a complaint of the starter; empty without one.
    pub(crate) mark: String,
    /// Whether the process that starts is a keeper, which is asked to end what it keeps.
    pub(crate) kept: bool,
}

impl Sandbox {
    /// Checks what the configuration says.
    pub(crate) fn new(
        confinement: &Arc<Confinement>,
        mut reach: SandboxAccess,
    ) -> Result<Self, String> {
        for path in (reach.folder.iter_mut())
            .chain(&mut reach.read)
            .chain(&mut reach.write)
        {
            *path = std::path::absolute(&*path)
                .map_err(|error| format!("`{}`: {error}", path.display()))?;
        }
        let level = match reach.mode {
            SandboxMode::Off => None,
            SandboxMode::On => Some(kernel::level().map_err(|missing| {
                format!(
                    "cannot be confined: {missing}; `sandbox = \"off\"` runs it without limits, with the server's own rights"
                )
            })?),
        };
        let sandbox = Self {
            confinement: Arc::clone(confinement),
            reach,
            level,
            view: level.is_some() && kernel::can_give_view(&confinement.starter),
        };
        sandbox.check()?;
        Ok(sandbox)
    }

    /// Refuses what would reach into a folder that is out of reach.
    fn check(&self) -> Result<(), String> {
        if self.level.is_none() {
            return Ok(());
        }
        let named = |member: &'static str| move |path: &PathBuf| (member, path.clone());
        let reach = &self.reach;
        let all = (reach.folder.iter().map(named("`folder`")))
            .chain(reach.read.iter().map(named("`read`")))
            .chain(reach.write.iter().map(named("`write`")))
            .chain(
                SYSTEM
                    .iter()
                    .map(|path| ("the system folder", PathBuf::from(path))),
            );
        for (member, path) in all {
            if let Some(kept) = self.confinement.overlap(&path) {
                return Err(format!(
                    "{member} `{}` overlaps with the data directory `{}`, which no tool may reach",
                    path.display(),
                    kept.display()
                ));
            }
        }
        Ok(())
    }

    /// Returns the places that the configuration names.
    pub(crate) fn places(&self) -> Vec<&PathBuf> {
        let reach = &self.reach;
        (reach.folder.iter())
            .chain(&reach.read)
            .chain(&reach.write)
            .collect()
    }

    /// Returns whether it is confined, but could change modes, owners and times of files outside its folders.
    pub(crate) fn leaves_modes(&self) -> bool {
        self.level.is_some() && !self.view
    }

    /// Returns the effective limits, for the record.
    pub(crate) fn limits_record(&self) -> Value {
        let Some(level) = self.level else {
            return json!({"enforced": false});
        };
        let shown = |paths: &[PathBuf]| -> Vec<String> {
            let paths = paths.iter();
            paths.map(|path| path.display().to_string()).collect()
        };
        let mut write = shown(self.reach.folder.as_slice());
        write.extend(shown(&self.reach.write));
        json!({
            "enforced": true,
            "landlock_abi": level,
            "modes_protected": self.view,
            "network": self.reach.network,
            "read": shown(&self.reach.read),
            "write": write,
        })
    }

    /// Makes a command that starts a program with nothing but what it may have.
    pub(crate) fn command(
        &self,
        argv: &[String],
        environment: Vec<(String, String)>,
    ) -> Result<ConfinedCommand, String> {
        let (program, words) = argv.split_first().ok_or("there is no program")?;
        if let Some(folder) = &self.reach.folder
            && !folder.is_dir()
        {
            return Err(format!("there is no folder `{}`", folder.display()));
        }
        if self.level.is_none() {
            let mut command = Command::new(program);
            command.args(words).env_clear().envs(environment);
            if let Some(folder) = &self.reach.folder {
                command.current_dir(folder);
            }
            return Ok(ConfinedCommand {
                command,
                temporary: None,
                mark: String::new(),
                kept: false,
            });
        }
        // Again: a folder may have become a link to somewhere else.
        self.check()?;
        let program = self.find(program, &environment)?;
        let temporary = tempfile::Builder::new()
            .prefix("reprise-tool-")
            .tempdir()
            .map_err(|error| format!("cannot make a temporary folder: {error}"))?;
        let mark = mark()?;
        let reach = &self.reach;
        let order = LaunchOrder {
            read: (SYSTEM.iter().map(PathBuf::from))
                .chain(reach.read.iter().cloned())
                .chain([program.clone()])
                .collect(),
            write: (DEVICES.iter().map(PathBuf::from))
                .chain(reach.folder.iter().cloned())
                .chain(reach.write.iter().cloned())
                .chain([temporary.path().to_owned()])
                .collect(),
            network: reach.network,
            view: self.view,
            kept: self.confinement.out_of_reach.clone(),
            server: std::process::id(),
            mark: mark.clone(),
        };
        let order = serde_json::to_string(&order)
            .map_err(|error| format!("a path of the configuration: {error}"))?;
        let mut command = Command::new(&self.confinement.starter);
        command
            .arg(ENTRY)
            .arg(order)
            .arg(program)
            .args(words)
            .env_clear()
            .envs(environment)
            .env("TMPDIR", temporary.path())
            .current_dir(reach.folder.as_deref().unwrap_or(temporary.path()));
        Ok(ConfinedCommand {
            command,
            temporary: Some(temporary),
            mark,
            kept: true,
        })
    }

    /// Finds a program as the starter's `exec` would, so that its own file can be read.
    fn find(&self, program: &str, environment: &[(String, String)]) -> Result<PathBuf, String> {
        let here = match &self.reach.folder {
            Some(folder) => folder.clone(),
            None => std::env::current_dir().map_err(|error| error.to_string())?,
        };
        let found = if program.contains('/') {
            Some(here.join(program)).filter(|path| path.is_file())
        } else {
            let given = environment.iter().rev().find(|(name, _)| name == "PATH");
            let folders = given.map_or_else(|| OsString::from(PATH), |(_, path)| path.into());
            std::env::split_paths(&folders)
                .map(|folder| here.join(folder).join(program))
                .find(|path| is_executable(path))
        };
        found.ok_or_else(|| format!("there is no program `{program}`"))
    }
}

fn is_executable(path: &Path) -> bool {
    let found = std::fs::metadata(path);
    found.is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// The place that a path means, links followed as far as it exists.
fn real(path: &Path) -> PathBuf {
    if let Ok(real) = std::fs::canonicalize(path) {
        return real;
    }
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) if parent != Path::new("") => real(parent).join(name),
        _ => std::path::absolute(path).unwrap_or_else(|_| path.to_owned()),
    }
}

fn mark() -> Result<String, String> {
    let mut random = [0_u8; 16];
    getrandom::fill(&mut random).map_err(|error| error.to_string())?;
    let hex: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{hex}: "))
}
