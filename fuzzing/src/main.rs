//! Attacks all targets, or the named ones, for some time: `fuzzing SECONDS [TARGET …]`.

#![expect(clippy::print_stdout, reason = "a program for a terminal")]

use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fuzzing::{TARGETS, attack, bound_memory};

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let seconds = arguments.next().and_then(|text| text.parse().ok());
    let Some(seconds) = seconds else {
        eprintln!("usage: fuzzing SECONDS [TARGET …]");
        return ExitCode::from(2);
    };
    let named: Vec<String> = arguments.collect();
    let chosen: Vec<_> = TARGETS
        .iter()
        .filter(|target| named.is_empty() || named.iter().any(|name| name == target.name))
        .collect();
    if chosen.is_empty() {
        let known: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        eprintln!("there is no such target; there are {}", known.join(", "));
        return ExitCode::from(2);
    }
    bound_memory();
    let share = Duration::from_secs(seconds) / u32::try_from(chosen.len()).unwrap_or(1);
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let seed = now.unwrap_or_default().as_secs();
    let mut code = ExitCode::SUCCESS;
    for target in chosen {
        match attack(target, seed, u64::MAX, Some(Instant::now() + share)) {
            Ok(tried) => println!("{}: {tried} inputs, seed {seed}", target.name),
            Err(found) => {
                println!("{}: {}", found.target, found.problem);
                match found.keep() {
                    Ok(file) => println!("  kept as {}", file.display()),
                    Err(error) => println!("  cannot be kept: {error}"),
                }
                code = ExitCode::FAILURE;
            }
        }
    }
    code
}
