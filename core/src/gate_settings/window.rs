//! Windows: the times in which automatic rolls happen.
//!
//! A write of a user is not affected by a window. The time zones are part of the program, so every replica and every command
//! gives the same answer, wherever it runs.

use std::sync::LazyLock;

use jiff::{
    SignedDuration, Timestamp,
    civil::{Date, Time},
    tz::{TimeZone, TimeZoneDatabase},
};

use super::setting::{Found, Malformed, Place, Setting, Until};
use crate::annotations;

/// The time zones of the program.
static ZONES: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

/// The most windows of one object.
const MAX_WINDOWS: usize = 20;
/// The minutes of a day.
const DAY: u16 = 24 * 60;
/// The days of the week, as they are written.
const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
/// All days of the week.
const EVERY_DAY: u8 = 0b111_1111;
/// How many days are searched for the next opening. A window recurs every week, but a change of the clock may skip it once.
const SEARCHED_DAYS: usize = 16;
/// How far ahead a common opening of several windows is searched.
const HORIZON: SignedDuration = SignedDuration::from_hours(15 * 24);
/// The most steps of that search.
const MAX_STEPS: usize = 400;
/// An opening that is later than this is shown with its date: the day of the week alone would be ambiguous.
const WITHIN_A_WEEK: SignedDuration = SignedDuration::from_hours(6 * 24);

const FORM: &str =
    "DAYS HH:MM-HH:MM ZONE, such as \"Mon-Fri 09:00-17:00 Europe/Berlin\", several separated by semicolons";
const MANY: &str = "at most 20 windows";
const LONG: &str = "at most 1024 bytes";
const NEVER: &str = "a start and an end that differ, since this window would never open";
const ZONE: &str = "a time zone of the IANA database such as \"Europe/Berlin\", or none for UTC";

/// A time of the day on some days of the week.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Window {
    /// One bit for each day on which it starts, from Monday on.
    days: u8,
    /// When it opens, in minutes from midnight.
    start: u16,
    /// When it closes. If this is not later than `start`, it closes on the next day.
    end: u16,
    zone: TimeZone,
}

/// The windows of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Windows(Box<[Window]>);

impl Windows {
    /// Reads the annotation `window`. The error says what is allowed.
    ///
    /// # Example
    ///
    /// ```
    /// # use confrev_core::gate_settings::Windows;
    /// let windows = Windows::parse("Mon-Fri 09:00-17:00 Europe/Berlin; Sat 22:00-04:00")?;
    /// let friday_evening = "2026-11-27T20:00:00Z".parse().unwrap();
    /// assert_eq!(windows.next_open(friday_evening), "2026-11-28T22:00:00Z".parse().ok());
    /// assert!(Windows::parse("Mon 09:00-17:00 Mars/Base").is_err());
    /// # Ok::<(), &str>(())
    /// ```
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        if text.len() > annotations::LONGEST {
            return Err(LONG);
        }
        let parts = text.split(';');
        if parts.clone().count() > MAX_WINDOWS {
            return Err(MANY);
        }
        parts.map(Window::parse).collect::<Result<_, _>>().map(Self)
    }

    /// When the first of the windows opens: `now`, if one is open. `None` if none opens within two weeks.
    pub fn next_open(&self, now: Timestamp) -> Option<Timestamp> {
        self.opening(now).map(|(at, _)| at)
    }

    /// When the first of the windows opens, and its time zone.
    fn opening(&self, now: Timestamp) -> Option<(Timestamp, &TimeZone)> {
        let openings = self.0.iter().filter_map(|window| Some((window.next_open(now)?, &window.zone)));
        openings.min_by_key(|(at, _)| *at)
    }
}

impl Window {
    fn parse(text: &str) -> Result<Self, &'static str> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let (times, days, zone) = match words[..] {
            [times] => (times, None, None),
            [times, zone] if times.contains(':') => (times, None, Some(zone)),
            [days, times] => (times, Some(days), None),
            [days, times, zone] => (times, Some(days), Some(zone)),
            _ => return Err(FORM),
        };
        let days = days.map_or(Some(EVERY_DAY), parse_days).ok_or(FORM)?;
        let (start, end) = times.split_once('-').ok_or(FORM)?;
        let start = parse_time(start).filter(|start| *start < DAY).ok_or(FORM)?;
        let end = parse_time(end).ok_or(FORM)?;
        if start == end {
            return Err(NEVER);
        }
        let zone = match zone {
            None => TimeZone::UTC,
            Some(name) => ZONES.get(name).map_err(|_| ZONE)?,
        };
        Ok(Self { days, start, end, zone })
    }

    /// The time in which the window is open that starts on this day. A time that a clock change skips moves
    /// later by the same amount. If a time occurs twice, the first one counts.
    fn on(&self, day: Date) -> Option<(Timestamp, Timestamp)> {
        if self.days & bit(day.weekday().to_monday_zero_offset()) == 0 {
            return None;
        }
        let at = |day: Date, minute: u16| {
            let hour = i8::try_from(minute / 60).ok()?;
            let time = Time::new(hour, i8::try_from(minute % 60).ok()?, 0, 0).ok()?;
            self.zone.to_timestamp(day.to_datetime(time)).ok()
        };
        let start = at(day, self.start)?;
        let ends_later = self.end <= self.start || self.end == DAY;
        let last = if ends_later { day.tomorrow().ok()? } else { day };
        let end = at(last, self.end % DAY)?;
        (start < end).then_some((start, end))
    }

    fn next_open(&self, now: Timestamp) -> Option<Timestamp> {
        let today = self.zone.to_datetime(now).date();
        // The window may have opened yesterday.
        let mut day = today.yesterday().unwrap_or(today);
        for _ in 0..SEARCHED_DAYS {
            if let Some((start, end)) = self.on(day)
                && now < end
            {
                return Some(start.max(now));
            }
            day = day.tomorrow().ok()?;
        }
        None
    }
}

/// The bit of a day, counted from Monday.
fn bit(day: i8) -> u8 {
    1 << day
}

/// Reads days such as `Mon`, `Sat,Sun` and `Fri-Mon`.
fn parse_days(text: &str) -> Option<u8> {
    let mut days = 0;
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (mut day, last) = (parse_day(first)?, parse_day(last)?);
        days |= bit(day);
        while day != last {
            day = (day + 1) % 7;
            days |= bit(day);
        }
    }
    Some(days)
}

/// Reads a day, counted from Monday.
fn parse_day(text: &str) -> Option<i8> {
    let found = DAYS.iter().position(|day| day.eq_ignore_ascii_case(text))?;
    i8::try_from(found).ok()
}

/// Reads a time from `00:00` to `24:00`, in minutes from midnight.
fn parse_time(text: &str) -> Option<u16> {
    let (hours, minutes) = text.split_once(':')?;
    let number = |digits: &str| {
        let is_number = digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_digit());
        digits.parse::<u16>().ok().filter(|_| is_number)
    };
    let (hours, minutes) = (number(hours)?, number(minutes)?);
    let time = hours * 60 + minutes;
    (minutes < 60 && time <= DAY).then_some(time)
}

/// The gate: all windows of the workload, of its namespace and of the source are open. Each protects what its owner is responsible for.
pub(super) const SETTING: Setting =
    Setting { key: annotations::WINDOW, check: |text| Windows::parse(text).map(drop), closed };

/// When all windows are open.
fn closed(texts: &[(Place, &str)], now: Timestamp) -> Found {
    let mut parsed = Vec::with_capacity(texts.len());
    for (of, text) in texts {
        let malformed = |allowed| Malformed { of: of.clone(), text: (*text).to_owned(), allowed };
        parsed.push((of, Windows::parse(text).map_err(malformed)?));
    }
    Ok(next_common(&parsed, now))
}

/// When all of these windows are open; `None` if they are.
fn next_common(parsed: &[(&Place, Windows)], now: Timestamp) -> Option<Until> {
    let mut at = now;
    // The object whose window opens last.
    let mut last = None;
    for _ in 0..MAX_STEPS {
        let openings = parsed.iter().map(|(of, windows)| (windows.opening(at), *of));
        // An opening that is not known is later than all others.
        let latest = openings.max_by_key(|(opening, _)| opening.map_or(Timestamp::MAX, |(at, _)| at));
        match latest {
            None => return None,
            Some((Some((opens, _)), _)) if opens == at => {
                let (of, zone) = last?;
                return Some(Until { opens: Some(at), reason: closed_until(of, at, zone, now) });
            }
            Some((Some((opens, zone)), of)) if opens <= now.saturating_add(HORIZON).unwrap_or(opens) => {
                (at, last) = (opens, Some((of, zone)));
            }
            Some(_) => break,
        }
    }
    // A single window always opens within that time.
    let reason = "outside its windows, which are not open at the same time within two weeks".to_owned();
    Some(Until { opens: None, reason })
}

/// The reason while a window is closed.
fn closed_until(of: &Place, at: Timestamp, zone: &TimeZone, now: Timestamp) -> String {
    let time = zone.to_datetime(at);
    let day = usize::try_from(time.weekday().to_monday_zero_offset()).ok().and_then(|day| DAYS.get(day));
    let date =
        if at.duration_since(now) > WITHIN_A_WEEK { format!(" {}", time.date()) } else { String::new() };
    let (day, zone) = (day.unwrap_or(&""), zone.iana_name().unwrap_or("UTC"));
    let of = of.of("window");
    format!("outside {of}, opens {day}{date} {:02}:{:02} {zone}", time.hour(), time.minute())
}
