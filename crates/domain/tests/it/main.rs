//! The domain through its public functions: decide, seal, apply.

#![expect(clippy::unwrap_used, reason = "tests")]

mod advance;
mod persona;
mod stored_bytes;
mod table;

#[test]
#[expect(clippy::disallowed_methods, reason = "the folder of the tests")]
fn no_file_in_this_folder_is_forgotten() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it");
    let main = include_str!("main.rs");
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
