//! The Node package: the addon and the files around it, packed as npm installs them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell::{cargo, root, step, target};

/// How large the packed package may be.
const PACKAGE_KIB_MAX: u64 = 3 * 1024;

/// Builds the addon as it is shipped and packs the package. Says where the packed file is.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    if !arguments.is_empty() {
        bail!("usage: cargo xtask node");
    }
    let packed = packed()?;
    let size = fs::metadata(&packed)?.len();
    eprintln!("    {} ({} KiB)", packed.display(), size / 1024);
    Ok(())
}

/// Builds and packs.
pub(crate) fn packed() -> Result<PathBuf> {
    step(
        "build: addon for Node",
        cargo().args(["build", "--package", "node", "--profile", "dist"]),
    )?;
    let staged = target().join("node-package");
    let _ = fs::remove_dir_all(&staged);
    let package = root().join("packages/replay");
    copy(&package, &staged)?;
    let _ = fs::remove_dir_all(staged.join("test"));
    let native = staged.join("native");
    fs::create_dir_all(&native)?;
    let addon = native.join(format!("{}.node", platform()?));
    fs::copy(target().join("dist").join(library()), addon).context("the addon is not built")?;
    let mut pack = Command::new("npm");
    pack.args(["pack", "--silent", "--ignore-scripts"])
        .current_dir(&staged);
    step("pack: @reprise/replay", &mut pack)?;
    let version = env!("CARGO_PKG_VERSION");
    Ok(staged.join(format!("reprise-replay-{version}.tgz")))
}

/// Installs the client libraries that the package's tests run against, under the target directory.
pub(crate) fn libraries() -> Result<PathBuf> {
    let wanted = root().join("packages/replay/test/package.json");
    let folder = target().join("node-tests");
    let stamp = folder.join("installed.json");
    let text = fs::read(&wanted)?;
    if fs::read(&stamp).is_ok_and(|installed| installed == text) {
        return Ok(folder);
    }
    fs::create_dir_all(&folder)?;
    fs::write(folder.join("package.json"), &text)?;
    let mut npm = Command::new("npm");
    npm.args(["install", "--no-audit", "--no-fund", "--ignore-scripts"])
        .args(["--no-package-lock", "--legacy-peer-deps"])
        .current_dir(&folder);
    step("install: client libraries from npm", &mut npm)?;
    fs::write(&stamp, &text)?;
    Ok(folder)
}

/// What a session costs beside the model, as the package is shipped: processor time a call, growth of memory, size.
pub(crate) fn bench(arguments: &[String]) -> Result<()> {
    let packed = packed()?;
    let folder = libraries()?;
    let mut install = Command::new("npm");
    install
        .args(["install", "--no-save", "--no-package-lock", "--no-audit"])
        .args(["--no-fund", "--ignore-scripts", "--legacy-peer-deps"])
        .arg(&packed)
        .current_dir(&folder);
    step("install: the packed package", &mut install)?;
    let tests = folder.join("test");
    let _ = fs::remove_dir_all(&tests);
    copy(&root().join("packages/replay/test"), &tests)?;
    let kib = fs::metadata(&packed)?.len() / 1024;
    eprintln!("    package: {kib} KiB (limit {PACKAGE_KIB_MAX})");
    if kib > PACKAGE_KIB_MAX {
        bail!("the package is too large");
    }
    let calls = arguments.first().map_or("5000", String::as_str);
    let mut node = Command::new("node");
    node.args(["test/cost.mjs", calls]).current_dir(&folder);
    step(
        "cost of a call (limit 200 µs) and of an import (20 ms)",
        &mut node,
    )?;
    let mut node = Command::new("node");
    node.args(["--expose-gc", "test/memory.mjs"])
        .current_dir(&folder);
    step("memory after 1,000 and 100,000 calls", &mut node)
}

/// The name under which the package looks for the addon.
fn platform() -> Result<&'static str> {
    Ok(match (std::env::consts::OS, std::env::consts::ARCH) {
        ("linux", "x86_64") => "linux-x64-gnu",
        ("linux", "aarch64") => "linux-arm64-gnu",
        ("macos", "x86_64") => "darwin-x64",
        ("macos", "aarch64") => "darwin-arm64",
        (system, machine) => bail!("no addon is known for {system} on {machine}"),
    })
}

fn library() -> &'static str {
    if cfg!(target_os = "macos") {
        "libnode.dylib"
    } else {
        "libnode.so"
    }
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), &target)?;
        }
    }
    Ok(())
}
