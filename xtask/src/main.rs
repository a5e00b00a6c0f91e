//! `cargo xtask COMMAND`: what a developer and CI run. See [`USAGE`].

#![expect(clippy::print_stdout, reason = "a program for a terminal")]

mod instructions;
mod node;
mod packages;
mod shell;
mod soak;
mod test;
mod tidy;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  test [--demand GROUP,…]
                  install what the tests need, then format, lint, tidy and every test (what CI runs); fails
                  when a test of a demanded group cannot run
  check           the fast part of it: format, lint, tidy, licences
  packages        licences, bans and sources of dependencies
  tidy            crate edges, file headers, machine paths, test names in coverage tables
  node            builds the Node package @reprise/replay and packs it as npm installs it
  soak [SEEDS]    more seeds of the simulator than the test command runs (default 20000)
  fuzz [SECONDS] [TARGET …]
                  damaged input for every decoder that others reach (default 300 seconds); what is found is kept in
                  fuzzing/corpus and tried by the test command from then on
  bench [NAME …]  the load program, as it is shipped; prints ratios in one run, and what became worse since `bench --keep`
  bench node [CALLS]
                  what a session of the Node package costs beside the model: processor time, memory, size
  bench instructions
                  instructions of the operations behind proofs and verdicts, each held against its limit (needs valgrind)
  bench verdicts  what a verdict of contracts costs and how that grows, beside the Cedar authorizer in the same run
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.split_first() {
        Some((command, rest)) => match command.as_str() {
            "test" => test::run(rest),
            "check" => test::check(),
            "tidy" => tidy::run(),
            "packages" => packages::run(),
            "node" => node::run(rest),
            "soak" => soak::run(rest),
            "fuzz" => soak::fuzz(rest),
            "bench" if *rest == ["instructions"] => instructions::run(),
            "bench" if *rest == ["verdicts"] => instructions::verdicts(),
            "bench" if rest.first().is_some_and(|name| name == "node") => {
                node::bench(rest.get(1..).unwrap_or_default())
            }
            "bench" => soak::bench(rest),
            "help" | "--help" | "-h" => {
                println!("{USAGE}");
                return ExitCode::SUCCESS;
            }
            _ => {
                eprint!("{USAGE}");
                return ExitCode::from(2);
            }
        },
        None => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
