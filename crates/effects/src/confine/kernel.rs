//! Giving up rights on Linux: descriptors, files (Landlock), system calls (seccomp). No root is needed.
//!
//! Landlock holds back files by where they are, whatever path leads to them. It does not know UDP, raw, netlink and Unix
//! sockets; these are held back by a filter of system calls, which looks at numbers only. Nor does it know modes, owners
//! and times of files; these are held back by a view of the file system ([`view`]), where the system allows one.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetStatus, Scope, path_beneath_rules,
};
use nix::libc;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

pub(super) use super::keeper::supervise;
pub(super) use super::view::probe as can_view;
use super::{LaunchOrder, PROBE, view};

/// The oldest interface that holds back every way to change a file; before it, any file could be truncated.
const OLDEST: (ABI, u32) = (ABI::V3, 3);

/// Calls that no tool needs and that lead around the rest: to files without a path, to sockets without `socket`, to other
/// mounts, into other processes and the kernel, to the keys and the clock of the machine.
const REFUSED: &[i64] = &[
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_bpf,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_finit_module,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_init_module,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    libc::SYS_kcmp,
    libc::SYS_kexec_file_load,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_migrate_pages,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_move_pages,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_perf_event_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pivot_root,
    libc::SYS_process_madvise,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_setns,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_umount2,
    libc::SYS_userfaultfd,
];

/// Calls that set limits and priorities, of any process of the same user, and which argument names the process; 0 is the
/// caller itself.
const FOR_ITSELF_ONLY: &[(i64, u8)] = &[
    (libc::SYS_ioprio_set, 1),
    (libc::SYS_prlimit64, 0),
    (libc::SYS_sched_setaffinity, 0),
    (libc::SYS_sched_setattr, 0),
    (libc::SYS_sched_setparam, 0),
    (libc::SYS_sched_setscheduler, 0),
    (libc::SYS_setpriority, 1),
];

/// Calls that make files of any kind, and which argument says the kind. Pipes and plain files are left.
const MAKE_NODES: &[(i64, u8)] = &[
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_mknod, 1),
    (libc::SYS_mknodat, 2),
];

/// An old way to ask for whole packets.
const SOCK_PACKET: u64 = 10;
/// The lower bits of a socket's type; above them are flags.
const TYPE: u64 = 0xf;
/// Set in the numbers of the calls of x32 programs, which pass for x86-64.
#[cfg(target_arch = "x86_64")]
const X32: i64 = 0x4000_0000;

/// Returns the newest interface of Landlock whose rights this kernel knows, as far as we use them.
pub(super) fn level() -> Result<u32, String> {
    let files = |abi| {
        let ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
        ruleset.handle_access(AccessFs::from_all(abi))
    };
    files(OLDEST.0)
        .and_then(Ruleset::create)
        .map_err(|_| "this kernel has no Landlock, or one that is too old (Linux 6.2 has it, if it is switched on)".to_owned())?;
    filter(false)?;
    let newer = |abi, number| {
        let ruleset = files(abi).ok()?;
        let scoped = match number {
            6.. => ruleset.scope(Scope::from_all(abi)).ok()?,
            _ => ruleset,
        };
        scoped.create().ok().map(|_| number)
    };
    Ok(newer(ABI::V6, 6)
        .or_else(|| newer(ABI::V5, 5))
        .unwrap_or(OLDEST.1))
}

/// Gives up everything but what the order says, and becomes the program. Returns why it could not.
pub(super) fn enter(
    order: &LaunchOrder,
    program: &OsStr,
    arguments: impl Iterator<Item = OsString>,
) -> String {
    let confined = start_as_a_program()
        .and_then(|()| close_descriptors())
        .and_then(|()| match order.view {
            true => view::enter(&order.write, &order.kept),
            false => Ok(()),
        })
        .and_then(|()| hold_back_files(order))
        .and_then(|()| {
            seccompiler::apply_filter(&filter(order.network)?)
                .map_err(|error| format!("cannot be confined: {error}"))
        });
    match confined {
        Err(problem) => problem,
        Ok(()) => Command::new(program).args(arguments).exec().to_string(),
    }
}

/// Returns whether programs can be given a view of their own here. Another process tries it once, because whoever has one
/// cannot get rid of it.
pub(super) fn can_give_view(starter: &Path) -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let tried = Command::new(starter)
            .arg(PROBE)
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        tried.is_ok_and(|status| status.success())
    })
}

/// Undoes what the keeper set for itself, and ends with it if somebody kills it.
fn start_as_a_program() -> Result<(), String> {
    let failed = |error: nix::Error| format!("cannot be kept: {error}");
    nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL).map_err(failed)?;
    nix::sys::signal::SigSet::empty()
        .thread_set_mask()
        .map_err(failed)
}

/// Closes whatever was inherited beyond input, output and errors.
fn close_descriptors() -> Result<(), String> {
    let failed = |error| format!("cannot list open descriptors: {error}");
    let mut open = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd").map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        open.extend(name.to_str().and_then(|name| name.parse::<i32>().ok()));
    }
    for descriptor in open.into_iter().filter(|descriptor| *descriptor > 2) {
        // One of them was the list itself, which is closed by now.
        let _ = nix::unistd::close(descriptor);
    }
    Ok(())
}

fn hold_back_files(order: &LaunchOrder) -> Result<(), String> {
    let newest = ABI::V6;
    let hold_back = || {
        Ruleset::default()
            .set_compatibility(CompatLevel::HardRequirement)
            .handle_access(AccessFs::from_all(OLDEST.0))?
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(newest))?
            .scope(Scope::from_all(newest))?
            .create()?
            .add_rules(path_beneath_rules(&order.read, AccessFs::from_read(newest)))?
            .add_rules(path_beneath_rules(&order.write, AccessFs::from_all(newest)))?
            .restrict_self()
    };
    match hold_back() {
        Ok(status) if status.ruleset != RulesetStatus::NotEnforced => Ok(()),
        Ok(_) => Err("cannot be confined: Landlock did not take effect".to_owned()),
        Err(error) => Err(format!("cannot be confined: {error}")),
    }
}

fn filter(network: bool) -> Result<BpfProgram, String> {
    let failed = |error| format!("cannot be confined: {error}");
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        REFUSED.iter().map(|call| (*call, Vec::new())).collect();
    let sockets = match network {
        // Everything.
        false => Vec::new(),
        true => internet_only().map_err(failed)?,
    };
    rules.insert(libc::SYS_socket, sockets);
    rules.insert(libc::SYS_socketpair, streams_only().map_err(failed)?);
    for (call, process) in FOR_ITSELF_ONLY {
        let of_another = argument(*process, SeccompCmpOp::Ne, 0)
            .and_then(|condition| SeccompRule::new(vec![condition]));
        rules.insert(*call, vec![of_another.map_err(failed)?]);
    }
    for (call, kind) in MAKE_NODES {
        rules.insert(*call, devices(*kind).map_err(failed)?);
    }
    #[cfg(target_arch = "x86_64")]
    rules.extend(
        rules
            .clone()
            .into_iter()
            .map(|(call, rules)| (call | X32, rules)),
    );
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(failed)?;
    let refusal = SeccompAction::Errno(libc::EPERM as u32);
    SeccompFilter::new(rules, SeccompAction::Allow, refusal, arch)
        .and_then(BpfProgram::try_from)
        .map_err(failed)
}

type Rules = Result<Vec<SeccompRule>, seccompiler::BackendError>;

fn argument(
    index: u8,
    op: SeccompCmpOp,
    value: u64,
) -> Result<SeccompCondition, seccompiler::BackendError> {
    SeccompCondition::new(index, SeccompCmpArgLen::Dword, op, value)
}

/// Refuses sockets of any family but IPv4 and IPv6, raw ones of these, and netlink but for the questions about routes
/// and addresses that the look-up of names asks.
fn internet_only() -> Rules {
    let (v4, v6) = (libc::AF_INET as u64, libc::AF_INET6 as u64);
    let netlink = libc::AF_NETLINK as u64;
    let mut rules = vec![
        SeccompRule::new(vec![
            argument(0, SeccompCmpOp::Ne, v4)?,
            argument(0, SeccompCmpOp::Ne, v6)?,
            argument(0, SeccompCmpOp::Ne, netlink)?,
        ])?,
        SeccompRule::new(vec![
            argument(0, SeccompCmpOp::Eq, netlink)?,
            argument(2, SeccompCmpOp::Ne, libc::NETLINK_ROUTE as u64)?,
        ])?,
    ];
    for family in [v4, v6] {
        for raw in [libc::SOCK_RAW as u64, SOCK_PACKET] {
            rules.push(SeccompRule::new(vec![
                argument(0, SeccompCmpOp::Eq, family)?,
                argument(1, SeccompCmpOp::MaskedEq(TYPE), raw)?,
            ])?);
        }
    }
    Ok(rules)
}

/// Refuses nodes of devices.
fn devices(kind: u8) -> Rules {
    let mask = u64::from(libc::S_IFMT);
    [libc::S_IFCHR, libc::S_IFBLK]
        .map(|device| {
            let is_device = argument(kind, SeccompCmpOp::MaskedEq(mask), u64::from(device))?;
            SeccompRule::new(vec![is_device])
        })
        .into_iter()
        .collect()
}

/// Refuses pairs of sockets but streams, with which a program talks to its own children. One end of any other kind can be
/// turned to somebody else.
fn streams_only() -> Rules {
    let mut rules = vec![SeccompRule::new(vec![argument(
        0,
        SeccompCmpOp::Ne,
        libc::AF_UNIX as u64,
    )?])?];
    for other in (0..=TYPE).filter(|kind| *kind != libc::SOCK_STREAM as u64) {
        rules.push(SeccompRule::new(vec![argument(
            1,
            SeccompCmpOp::MaskedEq(TYPE),
            other,
        )?])?);
    }
    Ok(rules)
}
