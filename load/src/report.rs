//! Lines of a report: a value, its peer in the same run, a budget, a verdict.

use std::fmt::Write;
use std::process::ExitCode;

use serde_json::{Value, json};

use crate::figures::{Figure, Figures};
use crate::noise::Noise;

/// What a number counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Seconds, shown in the fitting part of one.
    Seconds,
    /// Something per second.
    PerSecond,
    /// Bytes; a megabyte is a million of them.
    Bytes,
    /// Things, or things per thing.
    Count,
}

/// What a line must not exceed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Budget {
    /// The value itself.
    Value(f64),
    /// The value divided by the peer's.
    Ratio(f64),
}

/// One line.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    /// The benchmark and what of it.
    pub(crate) name: &'static str,
    /// What was measured.
    pub(crate) value: f64,
    /// In this unit, the peer's too.
    pub(crate) unit: Unit,
    /// What it is held against, and its value in the same run.
    pub(crate) peer: Option<(&'static str, f64)>,
    /// The bound, when there is one.
    pub(crate) budget: Option<Budget>,
    /// What the machine did meanwhile; none when that cannot change the value.
    pub(crate) noise: Option<Noise>,
}

/// What is said of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Ok,
    Over,
    TooBusy,
    /// Nothing to keep.
    None,
}

impl Line {
    fn ratio(&self) -> Option<f64> {
        self.peer.map(|(_, peer)| self.value / peer)
    }

    fn verdict(&self, force: bool) -> Verdict {
        if !force && self.noise.is_some_and(Noise::is_too_much) {
            return Verdict::TooBusy;
        }
        let (found, most) = match self.budget {
            None => return Verdict::None,
            Some(Budget::Value(most)) => (self.value, most),
            Some(Budget::Ratio(most)) => (self.ratio().unwrap_or(f64::NAN), most),
        };
        // A figure that is no number keeps no budget.
        if found <= most {
            Verdict::Ok
        } else {
            Verdict::Over
        }
    }
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Over => "OVER",
            Verdict::TooBusy => "too busy",
            Verdict::None => "",
        }
    }
}

/// All lines of a run.
#[derive(Debug)]
pub(crate) struct Report {
    force: bool,
    lines: Vec<Line>,
}

impl Report {
    pub(crate) fn new(force: bool) -> Self {
        Self {
            force,
            lines: Vec::new(),
        }
    }

    /// Adds a line and shows it at once: a run takes minutes.
    pub(crate) fn add(&mut self, line: Line) {
        eprintln!("    {}", row(&line, self.force).join("  "));
        self.lines.push(line);
    }

    /// Returns the lines for people.
    pub(crate) fn table(&self) -> String {
        let heading = [
            "name", "value", "peer", "ratio", "budget", "waited", "verdict",
        ];
        let mut rows = vec![heading.map(str::to_owned)];
        rows.extend(self.lines.iter().map(|line| row(line, self.force)));
        let mut widths = [0; 7];
        for row in &rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = cell.chars().count().max(*width);
            }
        }
        let mut out = String::new();
        for row in &rows {
            let cells = row
                .iter()
                .zip(widths)
                .map(|(cell, width)| format!("{cell:width$}"));
            let text = cells.collect::<Vec<_>>().join("  ");
            // Writing to a string cannot fail.
            let _ = writeln!(out, "{}", text.trim_end());
        }
        out
    }

    /// Returns the lines for programs: plain seconds, bytes and counts.
    pub(crate) fn json(&self) -> Value {
        let lines: Vec<Value> = self
            .lines
            .iter()
            .map(|line| {
                json!({
                    "name": line.name,
                    "value": line.value,
                    "unit": unit_name(line.unit),
                    "peer": line.peer.map(|(name, value)| json!({"name": name, "value": value})),
                    "ratio": line.ratio(),
                    "budget": line.budget.map(|budget| match budget {
                        Budget::Value(most) => json!({"value": most}),
                        Budget::Ratio(most) => json!({"ratio": most}),
                    }),
                    "wait_per_run": line.noise.map(|noise| noise.wait_per_run),
                    "foreign_cores": line.noise.map(|noise| noise.foreign_cores),
                    "verdict": line.verdict(self.force).word(),
                })
            })
            .collect();
        json!({"forced": self.force, "lines": lines})
    }

    fn told(&self) -> impl Iterator<Item = (&Line, Figure)> {
        let lines = self.lines.iter();
        let lines = lines.filter(|line| line.verdict(self.force) != Verdict::TooBusy);
        lines.map(|line| {
            let (value, ratio) = (line.value, line.ratio());
            (line, Figure { value, ratio })
        })
    }

    /// Returns the figures worth keeping.
    pub(crate) fn figures(&self) -> Figures {
        let told = self.told();
        Figures(
            told.map(|(line, figure)| (line.name.to_owned(), figure))
                .collect(),
        )
    }

    /// Says what became worse since figures were kept.
    pub(crate) fn worse_than(&self, kept: &Figures) -> Vec<String> {
        let worse = |(line, figure): (&Line, Figure)| {
            kept.worse(line.name, figure, line.unit == Unit::PerSecond)
        };
        self.told().filter_map(worse).collect()
    }

    /// Returns the exit code: an exceeded budget is a no, a budget that could not be judged is no answer.
    pub(crate) fn exit(&self) -> ExitCode {
        let any = |verdict| {
            let mut budgeted = self.lines.iter().filter(|line| line.budget.is_some());
            budgeted.any(|line| line.verdict(self.force) == verdict)
        };
        if any(Verdict::Over) {
            ExitCode::from(1)
        } else if any(Verdict::TooBusy) {
            eprintln!(
                "load: the machine was too busy to judge every budget; try later, or say --force"
            );
            ExitCode::from(2)
        } else {
            ExitCode::SUCCESS
        }
    }
}

fn row(line: &Line, force: bool) -> [String; 7] {
    [
        line.name.to_owned(),
        shown(line.value, line.unit),
        line.peer.map_or(String::new(), |(name, value)| {
            format!("{} {name}", shown(value, line.unit))
        }),
        line.ratio()
            .map_or(String::new(), |ratio| format!("{ratio:.2}×")),
        match line.budget {
            None => String::new(),
            Some(Budget::Value(most)) => shown(most, line.unit),
            Some(Budget::Ratio(most)) => format!("{most}×"),
        },
        line.noise.map_or(String::new(), |noise| noise.to_string()),
        line.verdict(force).word().to_owned(),
    ]
}

fn unit_name(unit: Unit) -> &'static str {
    match unit {
        Unit::Seconds => "s",
        Unit::PerSecond => "1/s",
        Unit::Bytes => "B",
        Unit::Count => "1",
    }
}

fn shown(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Seconds if value < 1e-3 => format!("{:.0} µs", value * 1e6),
        Unit::Seconds if value < 1.0 => format!("{:.2} ms", value * 1e3),
        Unit::Seconds => format!("{value:.2} s"),
        Unit::PerSecond => format!("{value:.0}/s"),
        Unit::Bytes if value < 1e6 => format!("{:.1} kB", value / 1e3),
        Unit::Bytes => format!("{:.1} MB", value / 1e6),
        Unit::Count => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(value: f64, budget: Budget, noise: Noise) -> Line {
        Line {
            name: "x",
            value,
            unit: Unit::Seconds,
            peer: Some(("y", 2.0)),
            budget: Some(budget),
            noise: Some(noise),
        }
    }

    const QUIET: Noise = Noise {
        wait_per_run: 0.0,
        foreign_cores: 0.0,
    };
    const LOUD: Noise = Noise {
        wait_per_run: 9.0,
        foreign_cores: 2.0,
    };

    #[test]
    fn a_budget_holds_the_value_or_the_ratio() {
        let check = |value, budget, expect| {
            assert_eq!(line(value, budget, QUIET).verdict(false), expect);
        };
        check(4.0, Budget::Ratio(2.0), Verdict::Ok);
        check(4.1, Budget::Ratio(2.0), Verdict::Over);
        check(4.0, Budget::Value(4.0), Verdict::Ok);
        check(4.1, Budget::Value(4.0), Verdict::Over);
        check(f64::NAN, Budget::Value(4.0), Verdict::Over);
    }

    #[test]
    fn a_busy_machine_gives_no_verdict_unless_forced() {
        let busy = line(9.0, Budget::Value(1.0), LOUD);
        assert_eq!(busy.verdict(false), Verdict::TooBusy);
        assert_eq!(busy.verdict(true), Verdict::Over);
    }

    #[test]
    fn an_exceeded_budget_beats_one_that_could_not_be_judged() {
        let exit = |lines: Vec<Line>| {
            let report = Report {
                force: false,
                lines,
            };
            report.exit()
        };
        let good = line(1.0, Budget::Value(1.0), QUIET);
        let over = line(2.0, Budget::Value(1.0), QUIET);
        let busy = line(2.0, Budget::Value(1.0), LOUD);
        assert_eq!(exit(vec![good.clone()]), ExitCode::SUCCESS);
        assert_eq!(exit(vec![good.clone(), busy.clone()]), ExitCode::from(2));
        assert_eq!(exit(vec![good, busy, over]), ExitCode::from(1));
    }
}
