//! The output of the commands: tables for people, JSON and YAML for programs.

use std::{
    fmt::Write as _,
    io::{IsTerminal as _, Write as _},
};

use clap::ValueEnum;
use serde::Serialize;

use super::failure::Failure;

/// The form of a list, as with kubectl.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum OutputFormat {
    /// A table.
    #[default]
    Table,
    /// A table with all its columns.
    Wide,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
    /// One `kind/name` per line.
    Name,
}

/// The flag that every listing command has.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(super) struct OutputFlag {
    /// The output format.
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT", hide_default_value = true)]
    pub(super) output: OutputFormat,
}

/// An entry of a list.
pub(super) trait Row: Serialize {
    /// The column headers; those from the second number on appear only in the wide format.
    const COLUMNS: (&'static [&'static str], usize);
    /// The columns that are left out if all their cells are empty.
    const OPTIONAL: &'static [&'static str] = Self::COLUMNS.0;

    /// The cells, one for each column.
    fn cells(&self) -> Vec<String>;

    /// `kind/name`.
    fn name(&self) -> String;
}

/// Prints a list. If a table would be empty, prints `nothing` to standard error.
pub(super) fn list<R: Row>(format: OutputFormat, rows: &[R], nothing: &str) -> Result<(), Failure> {
    match format {
        OutputFormat::Json => print(&(to_json(rows)? + "\n")),
        OutputFormat::Yaml => print(&to_yaml(&rows)?),
        OutputFormat::Name => print(&rows.iter().fold(String::new(), |text, row| text + &row.name() + "\n")),
        OutputFormat::Table | OutputFormat::Wide if rows.is_empty() => {
            eprintln!("{nothing}");
            Ok(())
        }
        OutputFormat::Table | OutputFormat::Wide => {
            let (heads, narrow) = R::COLUMNS;
            let count = if format == OutputFormat::Wide { heads.len() } else { narrow };
            let head = heads[..count].iter().map(|head| (*head).to_owned()).collect();
            let cells = rows.iter().map(|row| row.cells().into_iter().take(count).collect());
            print(&table(std::iter::once(head).chain(cells).collect(), R::OPTIONAL))
        }
    }
}

/// Lines with columns of equal width. An optional column without any cell text is left out.
fn table(rows: Vec<Vec<String>>, optional: &[&str]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let is_optional = |i: usize| rows.first().is_some_and(|heads| optional.contains(&heads[i].as_str()));
    let kept = (0..columns).filter(|&i| !is_optional(i) || rows.iter().skip(1).any(|row| !row[i].is_empty()));
    let widths: Vec<_> =
        kept.map(|i| (i, rows.iter().map(|row| row[i].chars().count()).max().unwrap_or_default())).collect();
    let mut text = String::new();
    for row in rows {
        let line = widths.iter().fold(String::new(), |mut line, (i, width)| {
            // Writing to a String cannot fail.
            let _ = write!(line, "{:width$}   ", row[*i]);
            line
        });
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// Pretty JSON.
pub(super) fn to_json<T: Serialize + ?Sized>(value: &T) -> Result<String, Failure> {
    serde_json::to_string_pretty(value).map_err(|error| Failure::Output(error.into()))
}

/// YAML.
pub(super) fn to_yaml<T: Serialize>(value: &T) -> Result<String, Failure> {
    serde_saphyr::to_string(value).map_err(|error| Failure::Output(std::io::Error::other(error.to_string())))
}

/// Writes to standard output. It is not an error if the reader stops reading, as `head` does.
pub(super) fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

/// Whether the reader of standard output has ended, as `head` does. A command that follows the cluster then ends.
#[cfg(unix)]
pub(super) fn is_closed() -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let out = std::io::stdout();
    let mut fds = [PollFd::new(&out, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)).is_ok_and(|found| found > 0) && fds[0].revents().contains(PollFlags::ERR)
}

/// Whether the reader of standard output has ended. Only Unix can tell.
#[cfg(not(unix))]
pub(super) const fn is_closed() -> bool {
    false
}

/// A colour of the terminal.
#[derive(Clone, Copy, Debug)]
pub(super) enum Colour {
    /// For deleted or wrong things.
    Red,
    /// For new or right things.
    Green,
    /// For neutral text.
    Dim,
}

/// The text in colour if standard output is a terminal and `NO_COLOR` is not set.
pub(super) fn paint(colour: Colour, text: &str) -> String {
    let wanted = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    let code = match colour {
        Colour::Red => 31,
        Colour::Green => 32,
        Colour::Dim => 2,
    };
    if wanted { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_owned() }
}

/// `1 pod`, `2 pods`.
pub(super) fn count(count: usize, of: &str) -> String {
    format!("{count} {of}{}", if count == 1 { "" } else { "s" })
}

/// An age as kubectl shows it: two units if it is short, one if it is long.
pub(super) fn age(since: jiff::Timestamp, now: jiff::Timestamp) -> String {
    let seconds = now.duration_since(since).as_secs().max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..600 if seconds % 60 > 0 => format!("{minutes}m{}s", seconds % 60),
        120..10_800 => format!("{minutes}m"),
        10_800..28_800 if minutes % 60 > 0 => format!("{hours}h{}m", minutes % 60),
        10_800..172_800 => format!("{hours}h"),
        172_800..691_200 if hours % 24 > 0 => format!("{days}d{}h", hours % 24),
        _ => format!("{days}d"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_aligns_columns_and_omits_empty_ones() {
        let rows = [["NAME", "NOTHING", "AGE"], ["a", "", "1s"], ["long-name", "", "2m"]];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec()).to_vec();
        assert_eq!(table(rows.clone(), &["NOTHING"]), "NAME        AGE\na           1s\nlong-name   2m\n");
        assert!(table(rows, &[]).starts_with("NAME        NOTHING   AGE\na                     1s\n"));
    }

    #[test]
    fn ages_are_short() {
        let at = |seconds| jiff::Timestamp::from_second(seconds).unwrap();
        for (seconds, text) in [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (900, "15m"),
            (11_000, "3h3m"),
            (30_000, "8h"),
            (180_000, "2d2h"),
            (864_000, "10d"),
        ] {
            assert_eq!(age(at(0), at(seconds)), text);
        }
        assert_eq!(age(at(10), at(0)), "0s", "clocks differ");
    }
}
