//! What the tests of a suite did, and the comparison of two runs.

use std::collections::BTreeMap;

/// The result of one test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    Passed,
    Skipped,
    /// With the reason.
    Failed(String),
}

impl Verdict {
    /// The verdict without its reason.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Skipped => "skipped",
            Self::Failed(_) => "failed",
        }
    }
}

/// The results of a run, by group (a column of the table) and name.
#[derive(Debug, Default)]
pub(crate) struct Results(pub(crate) BTreeMap<(String, String), Verdict>);

impl Results {
    fn count(&self, group: &str, wanted: impl Fn(&Verdict) -> bool) -> usize {
        self.0.iter().filter(|((found, _), verdict)| found == group && wanted(verdict)).count()
    }

    fn groups(&self) -> Vec<&String> {
        let mut groups: Vec<_> = self.0.keys().map(|(group, _)| group).collect();
        groups.dedup();
        groups
    }
}

/// Prints a row of the docs' table for each group, and asserts that the same tests passed without and with confrev.
///
/// `cannot_pass` lists tests that need what two nodes on one machine do not have. No other test may fail.
///
/// # Panics
/// If a test passed in only one of the runs, if another test failed, or if fewer than `least` tests passed.
#[track_caller]
pub(crate) fn compare(
    suite: &str,
    without: &Results,
    with: &Results,
    cannot_pass: &[(&str, &str)],
    least: usize,
) {
    let passed = |verdict: &Verdict| *verdict == Verdict::Passed;
    for group in without.groups() {
        let ran = without.count(group, |verdict| *verdict != Verdict::Skipped);
        let [first, second] = [without, with].map(|results| results.count(group, passed));
        eprintln!("| {suite} | {group} | {ran} | {first} | {second} |");
    }
    let mut problems = Vec::new();
    for (key @ (group, name), verdict) in &without.0 {
        let second = with.0.get(key);
        if second.is_none_or(|second| passed(second) != passed(verdict)) {
            problems.push(format!("{group} {name}: without {verdict:?}, with {second:?}"));
        }
        let known = cannot_pass.iter().any(|(part, _)| name.contains(part));
        if matches!(verdict, Verdict::Failed(_)) && !known {
            problems.push(format!("{group} {name}: {verdict:?}"));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    let count = with.0.values().filter(|verdict| passed(verdict)).count();
    assert!(count >= least, "only {count} tests passed");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(verdicts: &[(&str, Verdict)]) -> Results {
        let entries = verdicts.iter().map(|(name, verdict)| (("g".into(), (*name).into()), verdict.clone()));
        Results(entries.collect())
    }

    #[test]
    fn test_that_fails_only_with_confrev_is_reported() {
        let failed = Verdict::Failed("reason".into());
        let without = results(&[("a", Verdict::Passed), ("b", failed.clone())]);
        let same = results(&[("a", Verdict::Passed), ("b", failed.clone())]);
        compare("suite", &without, &same, &[("b", "known")], 1);
        let with = results(&[("a", failed.clone()), ("b", failed)]);
        let compared = std::panic::catch_unwind(|| compare("suite", &without, &with, &[("b", "known")], 0));
        assert!(compared.is_err());
        assert!(std::panic::catch_unwind(|| compare("suite", &without, &same, &[], 0)).is_err());
        assert!(
            std::panic::catch_unwind(|| compare("suite", &without, &same, &[("b", "known")], 2)).is_err()
        );
    }
}
