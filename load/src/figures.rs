//! The figures of the last run that somebody kept, in the tree, so that a run says what became slower.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

/// A figure is compared by its ratio to the peer of its own run, and by itself only where it has none.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub(crate) struct Figure {
    /// In seconds, bytes, or as a count.
    pub(crate) value: f64,
    /// The value divided by the peer's.
    pub(crate) ratio: Option<f64>,
}

/// Worse by more than this counts as slower: less is chance.
const SLOWER: f64 = 1.15;

/// Figures by the names of their lines.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Figures(pub(crate) BTreeMap<String, Figure>);

impl Figures {
    /// Reads the kept figures; none when there is no file.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        if !path.exists() {
            return Ok(Self::default());
        }
        let text = std::fs::read_to_string(path)?;
        let figures =
            toml::from_str(&text).with_context(|| format!("cannot read `{}`", path.display()))?;
        Ok(Self(figures))
    }

    /// Keeps these figures and those of lines that were not run now.
    pub(crate) fn keep(mut self, now: Figures, path: &Path) -> Result<()> {
        self.0.extend(now.0);
        std::fs::write(path, self.text())
            .with_context(|| format!("cannot write `{}`", path.display()))
    }

    fn text(&self) -> String {
        let mut out = String::from(
            "# The last figures that `cargo xtask bench --keep` kept: seconds, bytes, counts and rates as measured, and the ratio\n\
             # to the peer of the same run, by which a later run is compared.\n\n",
        );
        for (name, figure) in &self.0 {
            // Writing to a string cannot fail.
            let _ = write!(out, "\"{name}\" = {{ value = {:?}", round(figure.value));
            if let Some(ratio) = figure.ratio {
                let _ = write!(out, ", ratio = {:?}", round(ratio));
            }
            out.push_str(" }\n");
        }
        out
    }

    /// Says how a figure has changed for the worse; none when it has not, or was not kept.
    pub(crate) fn worse(&self, name: &str, now: Figure, more_is_better: bool) -> Option<String> {
        let before = self.0.get(name)?;
        let (was, is, sign) = match (before.ratio, now.ratio) {
            (Some(was), Some(is)) => (was, is, "×"),
            _ => (before.value, now.value, ""),
        };
        let change = match more_is_better {
            true => was / is,
            false => is / was,
        };
        (change > SLOWER).then(|| {
            format!("{name} became worse by a factor of {change:.2}: it was {was:.3e}{sign}, it is {is:.3e}{sign}")
        })
    }
}

/// Three digits are more than a run can tell.
fn round(value: f64) -> f64 {
    format!("{value:.2e}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(value: f64, ratio: Option<f64>) -> Figure {
        Figure { value, ratio }
    }

    #[test]
    fn what_was_kept_reads_back_and_other_lines_stay() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("figures.toml");
        assert_eq!(Figures::read(&path).unwrap(), Figures::default());
        let of =
            |name: &str, value, ratio| Figures([(name.to_owned(), figure(value, ratio))].into());
        of("a.b", 5.125e-5, Some(2.0))
            .keep(of("c", 3.0, None), &path)
            .unwrap();
        let kept = Figures::read(&path).unwrap();
        assert_eq!(kept.0["a.b"], figure(5.12e-5, Some(2.0)));
        assert_eq!(kept.0["c"], figure(3.0, None));
        kept.keep(of("c", 4.0, None), &path).unwrap();
        assert_eq!(Figures::read(&path).unwrap().0["c"], figure(4.0, None));
    }

    #[test]
    fn worse_is_told_by_the_ratio_and_in_the_right_direction() {
        let kept = Figures(
            [
                ("time".to_owned(), figure(1.0, Some(2.0))),
                ("size".to_owned(), figure(100.0, None)),
                ("rate".to_owned(), figure(1000.0, Some(0.5))),
            ]
            .into(),
        );
        let worse =
            |name: &str, value, ratio, more| kept.worse(name, figure(value, ratio), more).is_some();
        // Twice as long on a machine that is half as fast is the same.
        assert!(!worse("time", 2.0, Some(2.0), false));
        assert!(worse("time", 1.0, Some(2.5), false));
        assert!(!worse("time", 1.0, Some(2.2), false));
        assert!(worse("size", 120.0, None, false));
        assert!(worse("rate", 1000.0, Some(0.4), true));
        assert!(!worse("rate", 1000.0, Some(0.9), true));
        assert!(!worse("unknown", 9.0, None, false));
    }
}
