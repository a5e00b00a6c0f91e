//! Long output on a terminal goes through the reader's pager.

use std::io::{IsTerminal, Write};
use std::process::{Child, Command, Stdio};

use super::{Output, Paint};

/// Standard output, behind a pager where somebody looks at it.
#[derive(Debug)]
pub(crate) struct Pager {
    out: Output,
    /// The program in between; none when lines go straight out.
    program: Option<Child>,
}

impl Pager {
    /// Starts what `PAGER` names, else `less`; on anything but a terminal, or when refused, lines go straight out.
    pub(crate) fn start(is_refused: bool) -> Self {
        let out = Output::stdout();
        let is_seen = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
        let program = (is_seen && !is_refused).then(spawn).flatten();
        Self { out, program }
    }

    /// Writes one line. A reader who quit has seen enough.
    pub(crate) fn line(&mut self, text: &str) -> anyhow::Result<()> {
        match self
            .program
            .as_mut()
            .and_then(|program| program.stdin.as_mut())
        {
            Some(stdin) => {
                let _ = writeln!(stdin, "{text}");
                Ok(())
            }
            None => self.out.line(text),
        }
    }

    /// Returns text in a colour, or as it is.
    pub(crate) fn paint(&self, paint: Paint, text: &str) -> String {
        self.out.paint(paint, text)
    }

    /// Waits until the reader is done.
    pub(crate) fn finish(mut self) {
        if let Some(mut program) = self.program.take() {
            drop(program.stdin.take());
            let _ = program.wait();
        }
    }
}

fn spawn() -> Option<Child> {
    let named = std::env::var("PAGER").ok();
    let named = named.filter(|name| !name.trim().is_empty());
    let mut command = match named {
        Some(line) => {
            let mut shell = Command::new("sh");
            shell.args(["-c", &line]);
            shell
        }
        None => Command::new("less"),
    };
    // As other programs do: quit when all fits, colours as they are, the text stays on the screen.
    if std::env::var_os("LESS").is_none() {
        command.env("LESS", "FRX");
    }
    command.stdin(Stdio::piped()).spawn().ok()
}
