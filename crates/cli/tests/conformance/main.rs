//! The conformance runner against the real program: whole, broken on purpose, and beside a runner of others.

#[cfg(test)]
mod broken;
#[cfg(test)]
mod described;
#[cfg(test)]
mod memory;
#[cfg(test)]
mod subject;
#[cfg(test)]
mod whole;
#[cfg(test)]
#[path = "../it/world.rs"]
#[expect(
    dead_code,
    reason = "the other tests of the program use the rest of it"
)]
mod world;

#[test]
fn no_file_of_this_folder_is_forgotten() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/conformance");
    let listed = include_str!("main.rs");
    for entry in std::fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let Some(module) = name.strip_suffix(".rs") else {
            continue;
        };
        let line = format!("\nmod {module};\n");
        assert!(
            module == "main" || listed.contains(&line),
            "{name} is not listed"
        );
    }
}
