//! One row of the table: a measured value, its baseline, and whether the target is met.

use std::fmt::Write as _;

/// The target of a row.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reach {
    /// The measured value is at most this multiple of the baseline.
    Times(f64),
    /// The measured value is at least this fraction of the baseline.
    Part(f64),
    /// The measured value exceeds the baseline by at most this amount.
    More(f64),
    /// The measured value is at most this amount.
    Most(f64),
    /// No target: the row is for information.
    Read,
}

/// A row.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) what: String,
    pub(crate) unit: &'static str,
    pub(crate) measured: f64,
    pub(crate) baseline: Option<f64>,
    pub(crate) reach: Reach,
}

impl Row {
    pub(crate) fn new(
        what: impl Into<String>,
        unit: &'static str,
        measured: f64,
        baseline: impl Into<Option<f64>>,
        reach: Reach,
    ) -> Self {
        let row = Self { what: what.into(), unit, measured, baseline: baseline.into(), reach };
        eprintln!("{}", row.cells().join(" / "));
        row
    }

    /// A row for information, printed on the terminal only.
    pub(crate) fn read(what: impl Into<String>, unit: &'static str, measured: f64) -> Self {
        Self::new(what, unit, measured, None, Reach::Read)
    }

    fn ratio(&self) -> Option<f64> {
        self.baseline.filter(|baseline| *baseline > 0.0).map(|baseline| self.measured / baseline)
    }

    /// Whether the target is missed. A value that could not be measured misses it.
    pub(crate) fn is_short(&self) -> bool {
        let baseline = self.baseline.unwrap_or(f64::NAN);
        let ratio = self.ratio().unwrap_or(f64::NAN);
        let enough = match self.reach {
            Reach::Times(most) => ratio <= most,
            Reach::Part(least) => ratio >= least,
            Reach::More(most) => self.measured - baseline <= most,
            Reach::Most(most) => self.measured <= most,
            Reach::Read => true,
        };
        !enough
    }

    fn reach(&self) -> String {
        let unit = self.unit;
        match self.reach {
            Reach::Times(most) => format!("at most {most}×"),
            Reach::Part(least) => format!("at least {least}×"),
            Reach::More(most) => format!("at most +{most} {unit}"),
            Reach::Most(most) => format!("at most {most} {unit}"),
            Reach::Read => "-".to_owned(),
        }
    }

    /// The cells: name, measured value, baseline, ratio, target and verdict.
    pub(crate) fn cells(&self) -> [String; 6] {
        let number = |value: f64| format!("{} {}", short(value), self.unit);
        let verdict = match self.reach {
            Reach::Read => "",
            _ if self.is_short() => "short",
            _ => "ok",
        };
        [
            self.what.clone(),
            number(self.measured),
            self.baseline.map_or_else(|| "-".to_owned(), number),
            self.ratio().map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}")),
            self.reach(),
            verdict.to_owned(),
        ]
    }
}

/// A number with three significant digits.
fn short(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        middle if middle >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// The rows as a Markdown table.
pub(crate) fn table(rows: &[Row]) -> String {
    let mut text =
        "| what | measured | baseline | ratio | to reach | |\n|---|---|---|---|---|---|\n".to_owned();
    for row in rows {
        let _ = writeln!(text, "| {} |", row.cells().join(" | "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A value that could not be measured misses the target.
    #[test]
    fn row_verdict_follows_its_target() {
        let short =
            |measured, baseline: Option<f64>, reach| Row::new("", "ms", measured, baseline, reach).is_short();
        assert!(!short(1.3, Some(1.0), Reach::Times(1.3)) && short(1.4, Some(1.0), Reach::Times(1.3)));
        assert!(!short(0.8, Some(1.0), Reach::Part(0.8)) && short(0.7, Some(1.0), Reach::Part(0.8)));
        assert!(!short(2.5, Some(1.0), Reach::More(1.5)) && short(2.6, Some(1.0), Reach::More(1.5)));
        assert!(!short(5.0, None, Reach::Most(5.0)) && short(5.1, None, Reach::Most(5.0)));
        assert!(short(1.0, None, Reach::Times(2.0)) && short(f64::NAN, None, Reach::Most(1.0)));
    }
}
