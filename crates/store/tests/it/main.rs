//! The store on SQLite, from outside.

#[cfg(test)]
mod blocks;
#[cfg(test)]
mod crash;
#[cfg(test)]
mod damage;
#[cfg(test)]
mod erase;
#[cfg(test)]
mod full;
#[cfg(test)]
mod home;
#[cfg(test)]
mod loss;
#[cfg(test)]
mod migrating;
#[cfg(test)]
mod notes;
#[cfg(test)]
mod offline;
#[cfg(test)]
mod opening;
#[cfg(test)]
mod place;
#[cfg(test)]
mod prune;
#[cfg(test)]
mod rebuilding;
#[cfg(test)]
mod receipts;
#[cfg(test)]
mod repair;
#[cfg(test)]
mod sharing;
#[cfg(test)]
mod suite;

#[test]
fn no_file_of_this_folder_is_forgotten() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it");
    let listed = include_str!("main.rs");
    for file in std::fs::read_dir(folder).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        let module = name.trim_end_matches(".rs");
        assert!(
            module == "main" || listed.contains(&format!("\nmod {module};\n")),
            "{name}"
        );
    }
}
