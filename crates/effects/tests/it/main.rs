//! The outside as it is met: HTTP servers that speak the providers' formats, real processes, real files.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a test that meets what it does not expect stops"
)]

mod anthropic;
mod failures;
mod fixture;
mod mcp;
mod mcp_everything;
mod mcp_http;
mod openai;
mod providers;
mod sandbox;
mod sandbox_attacks;
mod scrubbing;
mod tools;

/// Every file in this folder is compiled in: a forgotten one would test nothing.
#[test]
fn no_file_of_this_folder_is_forgotten() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it");
    let main = std::fs::read_to_string(folder.join("main.rs")).unwrap();
    for entry in std::fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let Some(module) = name.strip_suffix(".rs") else {
            continue;
        };
        assert!(
            module == "main" || main.contains(&format!("mod {module};")),
            "{name}"
        );
    }
}
