//! The starter of the tests: what the program `reprise` is for its own tools.

use std::process::ExitCode;

fn main() -> ExitCode {
    effects::confine::enter_if_asked().unwrap_or(ExitCode::FAILURE)
}
