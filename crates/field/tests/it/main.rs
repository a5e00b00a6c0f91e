//! The field seen from outside: every requirement, published vectors, oracles, hostile input.

#![expect(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking; the exemption for tests does not reach their helpers"
)]

mod again;
mod attune;
mod clock;
mod common;
mod compact;
mod conflicts;
mod coordination;
mod coverage;
mod disputes;
mod envelope;
mod hidden;
mod hostile;
mod oracle;
mod picture;
mod quality;
mod record;
mod register;
mod replay;
mod segments;
mod vectors;

#[test]
#[expect(clippy::disallowed_methods, reason = "the folder of the tests")]
fn no_file_of_this_folder_is_forgotten() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it");
    let main = include_str!("main.rs");
    for entry in std::fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let module = name.strip_suffix(".rs").unwrap_or(&name);
        assert!(
            module == "main" || main.contains(&format!("mod {module};")),
            "{name}"
        );
    }
}
