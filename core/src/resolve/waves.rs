//! The waves of a change: how many of the workloads that use the source have moved at the end of each wave.

/// The most waves of one source.
const MAX_WAVES: usize = 50;
/// A hundred percent, in hundredths of a percent.
const WHOLE: usize = 10_000;

/// The values that the annotation may have, for messages.
pub(super) const ALLOWED: &str =
    "ascending counts and percentages separated by commas, as in \"1, 10%, 50%\", at most 50";

/// The end of a wave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wave {
    /// This many workloads have moved.
    Count(usize),
    /// This share of the workloads has moved, in hundredths of a percent.
    Share(usize),
}

/// The waves of a change. After the last one, the rest of the workloads follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waves {
    /// The waves of each source that has the change. A wave ends where one of any of them does.
    of: Vec<Box<[Wave]>>,
}

impl Waves {
    /// Reads the annotation `waves`; `None` if it is malformed.
    pub fn parse(text: &str) -> Option<Self> {
        let waves: Box<[Wave]> =
            text.split(',').map(|wave| parse_wave(wave.trim())).collect::<Option<_>>()?;
        let ascends = waves.windows(2).all(|pair| match (pair[0], pair[1]) {
            (Wave::Count(a), Wave::Count(b)) | (Wave::Share(a), Wave::Share(b)) => a < b,
            // Only the number of workloads shows which one is larger.
            (Wave::Count(_), Wave::Share(_)) | (Wave::Share(_), Wave::Count(_)) => true,
        });
        (ascends && waves.len() <= MAX_WAVES).then(|| Self { of: vec![waves] })
    }

    /// How many of `total` workloads may have moved in a wave, counted from 0; all of them after the last wave. Percentages
    /// are rounded down, but a wave has at least one workload, and is never smaller than the previous ones.
    pub fn limit(&self, wave: usize, total: usize) -> usize {
        self.ends(total).get(wave).copied().unwrap_or(total)
    }

    /// Lets the waves of another source limit the change, too.
    pub(super) fn restrict(&mut self, other: &Self) {
        for waves in &other.of {
            if !self.of.contains(waves) {
                self.of.push(waves.clone());
            }
        }
    }

    /// How many of `total` workloads may have moved at the end of each wave, without the rest. No source lets more move before as
    /// many as it names have proved the change, so each end of one of several is an end of all.
    fn ends(&self, total: usize) -> Vec<usize> {
        let mut ends: Vec<_> = self.of.iter().flat_map(|waves| ends(waves, total)).collect();
        if self.of.len() > 1 {
            ends.sort_unstable();
            ends.dedup();
        }
        ends
    }

    /// The number of waves of `total` workloads, with the rest; at least one.
    pub fn count(&self, total: usize) -> usize {
        let ends = self.ends(total);
        ends.len() + usize::from(ends.last().is_none_or(|end| *end < total))
    }

    /// The first wave in which more than `moved` of `total` workloads may have moved; the rest if there is none.
    pub(super) fn first_beyond(&self, moved: usize, total: usize) -> usize {
        let ends = self.ends(total);
        ends.iter().position(|end| *end > moved).unwrap_or(ends.len())
    }
}

/// How many of `total` workloads may have moved at the end of each wave of one source.
fn ends(waves: &[Wave], total: usize) -> impl Iterator<Item = usize> {
    waves.iter().scan(0, move |before, wave| {
        let end = match *wave {
            Wave::Count(count) => count,
            Wave::Share(share) => (total.saturating_mul(share) / WHOLE).max(1),
        };
        *before = end.max(*before);
        Some((*before).min(total))
    })
}

/// Reads a count of at least one, or a percentage up to 100% with at most two digits after the point.
fn parse_wave(text: &str) -> Option<Wave> {
    let number = |digits: &str| {
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        digits.parse::<usize>().ok().filter(|_| is_number)
    };
    let Some(share) = text.strip_suffix('%') else {
        return number(text).filter(|count| *count > 0).map(Wave::Count);
    };
    let (whole, part) = share.split_once('.').map_or((share, None), |(whole, part)| (whole, Some(part)));
    let part = match part {
        None => 0,
        Some(part) if part.len() <= 2 => number(part)? * if part.len() == 1 { 10 } else { 1 },
        Some(_) => return None,
    };
    let share = number(whole)?.checked_mul(100)?.checked_add(part)?;
    (1..=WHOLE).contains(&share).then_some(Wave::Share(share))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_counts_and_percentages() {
        for (text, limits) in [
            ("1, 10%, 50%", [1, 4, 20, 40]),
            ("1,2,3", [1, 2, 3, 40]),
            ("2.5%, 100%", [1, 40, 40, 40]),
            ("0.01%, 12.5% ,99.99%", [1, 5, 39, 40]),
            ("30, 10%, 50", [30, 30, 40, 40]),
            ("7", [7, 40, 40, 40]),
        ] {
            let waves = Waves::parse(text).unwrap();
            assert_eq!([0, 1, 2, 3].map(|wave| waves.limit(wave, 40)), limits, "{text}");
        }
    }

    #[test]
    fn refuses_other_waves() {
        let list = |limit: usize| (1..=limit).map(|count| count.to_string()).collect::<Vec<_>>().join(",");
        assert!(Waves::parse(&list(50)).is_some());
        let many = list(51);
        for text in [
            "",
            " ",
            ",",
            "1,",
            ",1",
            "0",
            "0%",
            "-1",
            "+1",
            "1.5",
            "101%",
            "100.01%",
            "1.234%",
            "%",
            "1 %",
            "10%%",
            "x",
            "1, 1",
            "2, 1",
            "10%, 5%",
            "10%, 10%",
            "1;2",
            "99999999999999999999",
            "1e3",
            ".5%",
            "5.%",
            many.as_str(),
        ] {
            assert_eq!(Waves::parse(text), None, "{text}");
        }
    }

    #[test]
    fn counts_waves_with_the_rest() {
        for (text, total, count) in
            [("1", 1, 1), ("1", 2, 2), ("1, 100%", 5, 2), ("1, 50%", 0, 2), ("3", 2, 1)]
        {
            assert_eq!(Waves::parse(text).unwrap().count(total), count, "{text} of {total}");
        }
    }

    #[test]
    fn each_end_of_several_sources_counts() {
        for (texts, ends) in [
            (&["1, 50%", "10%, 20%, 90%", "1, 50%"][..], &[1, 4, 8, 20, 36, 40][..]),
            (&["1", "10%"], &[1, 4, 40]),
            (&["4", "10%"], &[4, 40]),
            (&["100%", "1"], &[1, 40]),
        ] {
            let mut all = texts.iter().map(|text| Waves::parse(text).unwrap());
            let mut waves = all.next().unwrap();
            all.for_each(|other| waves.restrict(&other));
            let limits: Vec<_> = (0..waves.count(40)).map(|wave| waves.limit(wave, 40)).collect();
            assert_eq!(limits, ends, "{texts:?}");
            assert_eq!(waves.limit(limits.len(), 40), 40, "{texts:?}");
            assert_eq!(
                waves.first_beyond(1, 40),
                limits.iter().position(|end| *end > 1).unwrap(),
                "{texts:?}"
            );
        }
    }

    #[test]
    fn first_wave_beyond_a_count() {
        let waves = Waves::parse("1, 10%, 50%").unwrap();
        for (moved, wave) in [(0, 0), (1, 1), (3, 1), (4, 2), (19, 2), (20, 3), (40, 3), (50, 3)] {
            assert_eq!(waves.first_beyond(moved, 40), wave, "{moved}");
        }
    }
}
