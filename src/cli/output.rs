//! The output of the commands: text and tables for people, JSON and YAML for programs.
//!
//! Nothing else writes to standard output or standard error, and nothing here writes text of the cluster that is not safe to show.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    io::{IsTerminal as _, Write as _},
    sync::Mutex,
};

use clap::ValueEnum;
use serde::Serialize;

use super::failure::Failure;
use crate::text as safe;

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

/// Text for people: lines whose every part is safe to show. A command builds one from its words and from text of the cluster, and
/// nothing else is printed for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Text(String);

impl Text {
    /// One line.
    pub(super) fn of_line(line: &str) -> Self {
        let mut text = Self::default();
        text.push(line);
        text
    }

    /// Adds a line.
    pub(super) fn push(&mut self, line: &str) {
        self.push_parts(&[(None, line)]);
    }

    /// Adds a line of parts, each with its colour.
    pub(super) fn push_parts(&mut self, parts: &[(Option<Colour>, &str)]) {
        for (colour, part) in parts {
            self.push_part(*colour, &safe::line(part));
        }
        self.0.push('\n');
    }

    /// Adds a line of a content, whose tabs stay.
    pub(super) fn push_content_line(&mut self, colour: Option<Colour>, line: &str) {
        self.push_part(colour, &safe::block(line).replace('\n', "\\n"));
        self.0.push('\n');
    }

    /// Adds a content, line by line, each after an indent.
    pub(super) fn push_content(&mut self, indent: &str, content: &str) {
        for line in content.lines() {
            self.push_content_line(None, &format!("{indent}{line}"));
        }
    }

    /// Adds all lines of another text, each after an indent.
    pub(super) fn append(&mut self, indent: &str, other: &Self) {
        for line in other.0.lines() {
            self.0.extend([indent, line, "\n"]);
        }
    }

    /// Whether there is no line.
    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn push_part(&mut self, colour: Option<Colour>, part: &str) {
        match colour {
            Some(colour) if has_colours() => {
                self.0.extend(["\u{1b}[", colour.code(), "m", part, "\u{1b}[0m"]);
            }
            _ => self.0.push_str(part),
        }
    }
}

impl<L: AsRef<str>> FromIterator<L> for Text {
    fn from_iter<I: IntoIterator<Item = L>>(lines: I) -> Self {
        let mut text = Self::default();
        lines.into_iter().for_each(|line| text.push(line.as_ref()));
        text
    }
}

/// The text as it is printed, for tests.
#[cfg(test)]
impl std::fmt::Display for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Prints a list. If a table would be empty, prints `nothing` to standard error.
pub(super) fn list<R: Row>(format: OutputFormat, rows: &[R], nothing: &str) -> Result<(), Failure> {
    match format {
        OutputFormat::Json => json(rows),
        OutputFormat::Yaml => yaml(&[rows]),
        OutputFormat::Name => print(&rows.iter().map(Row::name).collect()),
        OutputFormat::Table | OutputFormat::Wide if rows.is_empty() => {
            note(nothing);
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
fn table(mut rows: Vec<Vec<String>>, optional: &[&str]) -> Text {
    // The width of a cell is that of what is shown.
    for cell in rows.iter_mut().flatten() {
        *cell = safe::line(cell).into_owned();
    }
    let columns = rows.first().map_or(0, Vec::len);
    let is_optional = |i: usize| rows.first().is_some_and(|heads| optional.contains(&heads[i].as_str()));
    let kept = (0..columns).filter(|&i| !is_optional(i) || rows.iter().skip(1).any(|row| !row[i].is_empty()));
    let widths: Vec<_> =
        kept.map(|i| (i, rows.iter().map(|row| row[i].chars().count()).max().unwrap_or_default())).collect();
    let lines = rows.iter().map(|row| {
        let line = widths.iter().fold(String::new(), |mut line, (i, width)| {
            // Writing to a String cannot fail.
            let _ = write!(line, "{:width$}   ", row[*i]);
            line
        });
        line.trim_end().to_owned()
    });
    lines.collect()
}

/// Pretty JSON. Active characters are escaped, so the value is exact, and safe to show.
pub(super) fn to_json<T: Serialize + ?Sized>(value: &T) -> Result<String, Failure> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Failure::Output(error.into()))?;
    Ok(safe::block(&text).into_owned())
}

/// Prints a value as JSON.
pub(super) fn json<T: Serialize + ?Sized>(value: &T) -> Result<(), Failure> {
    write(&(to_json(value)? + "\n"))
}

/// YAML. Only quoted text can escape characters, so a value with active ones is written as JSON, which is YAML too.
fn to_yaml<T: Serialize + ?Sized>(value: &T) -> Result<String, Failure> {
    let wrong = |error: String| Failure::Output(std::io::Error::other(error));
    let text = serde_saphyr::to_string(&value).map_err(|error| wrong(error.to_string()))?;
    let is_safe = text.chars().all(|character| character == '\n' || !safe::is_active(character));
    if is_safe { Ok(text) } else { Ok(to_json(value)? + "\n") }
}

/// Prints values as documents of YAML.
pub(super) fn yaml<T: Serialize>(documents: &[T]) -> Result<(), Failure> {
    let documents: Result<Vec<_>, _> = documents.iter().map(to_yaml).collect();
    write(&documents?.join("---\n"))
}

/// Prints text for people to standard output.
pub(super) fn print(text: &Text) -> Result<(), Failure> {
    write(&text.0)
}

/// Prints one line to standard output.
pub(super) fn print_line(line: &str) -> Result<(), Failure> {
    print(&Text::of_line(line))
}

/// Prints a line beside the answer, to standard error.
pub(super) fn note(line: &str) {
    eprintln!("{}", safe::line(line));
}

/// Prints a warning to standard error.
pub(super) fn warn(warning: &str) {
    note(&format!("warning: {warning}"));
}

/// Prints a warning to standard error, if it was not printed before: a dry run gives the same warnings as the write after it.
pub(super) fn warn_once(warning: &str) {
    static PRINTED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let is_new = PRINTED.lock().is_ok_and(|mut printed| printed.insert(warning.to_owned()));
    if is_new {
        warn(warning);
    }
}

/// Asks a question on standard error, and returns the answer from standard input.
pub(super) fn ask(question: &str) -> std::io::Result<String> {
    eprint!("{} ", safe::line(question));
    let mut line = String::new();
    std::io::stdin().read_line(&mut line)?;
    Ok(line)
}

/// Prints the help, or the version, that a command line asked for. It has no text of the cluster.
pub(super) fn help(help: &clap::Error) {
    // The reader may have closed the pipe, which is not an error.
    let _ = help.print();
}

/// Writes to standard output. It is not an error if the reader stops reading, as `head` does.
fn write(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

/// Whether standard output is a terminal.
pub(super) fn is_terminal() -> bool {
    std::io::stdout().is_terminal()
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

impl Colour {
    const fn code(self) -> &'static str {
        match self {
            Self::Red => "31",
            Self::Green => "32",
            Self::Dim => "2",
        }
    }
}

/// Whether standard output is a terminal and `NO_COLOR` is not set.
fn has_colours() -> bool {
    is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
}

/// `1 pod`, `2 pods`.
pub(super) fn count(count: usize, of: &str) -> String {
    format!("{count} {of}{}", if count == 1 { "" } else { "s" })
}

/// How many names a cell or a page shows.
pub(super) const MOST_NAMES: usize = 5;

/// Names for a cell: the first ones, and the number of the others. JSON has all.
pub(super) fn few(names: &[String]) -> String {
    let (shown, more) = names.split_at(names.len().min(MOST_NAMES));
    let more = if more.is_empty() { String::new() } else { format!(",... ({} more)", more.len()) };
    if shown.is_empty() { "-".to_owned() } else { format!("{}{more}", shown.join(",")) }
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
    fn cells_have_few_names() {
        let names: Vec<_> = ["a", "b", "c", "d", "e", "f", "g"].map(str::to_owned).to_vec();
        assert_eq!([few(&[]), few(&names[..5]), few(&names)], ["-", "a,b,c,d,e", "a,b,c,d,e,... (2 more)"]);
    }

    #[test]
    fn table_aligns_columns_and_omits_empty_ones() {
        let rows = [["NAME", "NOTHING", "AGE"], ["a", "", "1s"], ["long-name", "", "2m"]];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec()).to_vec();
        let shown = table(rows.clone(), &["NOTHING"]).to_string();
        assert_eq!(shown, "NAME        AGE\na           1s\nlong-name   2m\n");
        let shown = table(rows, &[]).to_string();
        assert!(shown.starts_with("NAME        NOTHING   AGE\na                     1s\n"));
    }

    /// A cell stays one cell of one line, whatever it holds.
    #[test]
    fn table_escapes_cells() {
        let rows = [["NAME", "WHY"], ["web\nroot   ok", "\u{1b}[2Jgone\u{202e}"]];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec()).to_vec();
        assert_eq!(
            table(rows, &[]).to_string(),
            "NAME             WHY\nweb\\nroot   ok   \\u001b[2Jgone\\u202e\n"
        );
    }

    #[test]
    fn content_keeps_its_lines_alone() {
        let mut text = Text::default();
        text.push_content("  ", "a\tb\n\u{1b}]0;x\u{7}c\rd\n");
        text.push_content_line(Some(Colour::Red), "-a\nb");
        assert_eq!(text.to_string(), "  a\tb\n  \\u001b]0;x\\u0007c\\rd\n-a\\nb\n");
        let mut all = Text::of_line("x\ny");
        all.append("> ", &text);
        assert!(all.to_string().starts_with("x\\ny\n>   a\tb\n"), "{all}");
    }

    proptest::proptest! {
        /// Values for programs are exact, and have no active character but the line breaks of the format.
        #[test]
        fn machine_output_is_exact_and_safe(text in "[\u{0}-\u{a0}\u{2000}-\u{2070}a-z: #|-]*") {
            let value = serde_json::json!({"key": text, "list": [text]});
            for printed in [to_json(&value).unwrap(), to_yaml(&value).unwrap()] {
                let is_safe = printed.chars().all(|c| c == '\n' || !safe::is_active(c));
                proptest::prop_assert!(is_safe, "{printed:?}");
                let back: serde_json::Value = serde_saphyr::from_str(&printed).unwrap();
                proptest::prop_assert_eq!(&back, &value);
            }
        }
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
