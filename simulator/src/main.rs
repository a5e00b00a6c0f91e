//! `simulator SEEDS [FIRST]`: runs seeds twice each and says which one failed, with the command that repeats it.

#![expect(clippy::print_stdout, reason = "a program for a terminal")]

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let (Some(Ok(count)), first) = (arguments.next(), arguments.next()) else {
        eprintln!("usage: simulator SEEDS [FIRST]");
        return ExitCode::from(2);
    };
    let first = first.and_then(Result::ok).unwrap_or(1);
    let mut events = 0;
    for seed in first..first + count {
        let once = simulator::run(seed);
        let again = simulator::run(seed);
        match once {
            Ok(report) if Ok(&report) == again.as_ref() => events += report.events,
            Ok(report) => {
                println!("seed {seed}: two runs differ: {report:?} and {again:?}");
                println!("repeat with: cargo run --package simulator -- 1 {seed}");
                return ExitCode::FAILURE;
            }
            Err(problem) => {
                println!("seed {seed}: {problem}");
                println!("repeat with: cargo run --package simulator -- 1 {seed}");
                return ExitCode::FAILURE;
            }
        }
    }
    println!("{count} seeds, each twice with equal result, {events} events");
    ExitCode::SUCCESS
}
