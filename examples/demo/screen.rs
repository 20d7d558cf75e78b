//! The output of the demo: plain lines of at most 96 columns, with colour on a terminal only.

use std::env;
use std::fmt::Write as _;
use std::io::{self, IsTerminal as _};
use std::time::Instant;

const WIDTH: usize = 96;
const BOLD: &str = "1";
const DIM: &str = "2";
const RED: &str = "31";
const GREEN: &str = "32";
const YELLOW: &str = "33";
const BLUE: &str = "34";
const CYAN: &str = "36";

/// Standard output.
#[derive(Debug)]
pub(crate) struct Screen {
    colour: bool,
    start: Instant,
    chapters: u32,
}

impl Screen {
    /// The time in the headings begins now.
    pub(crate) fn new() -> Self {
        let wanted = env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self { colour: wanted && io::stdout().is_terminal(), start: Instant::now(), chapters: 0 }
    }

    /// The seconds since the beginning.
    pub(crate) fn seconds(&self) -> f32 {
        self.start.elapsed().as_secs_f32()
    }

    /// A line that is no part of a chapter, such as the first.
    pub(crate) fn title(&self, text: &str) {
        println!("{}", self.paint(BOLD, text));
    }

    /// Begins a chapter of the story.
    pub(crate) fn chapter(&mut self, text: &str) {
        self.chapters += 1;
        let heading = format!("{}. {text}", self.chapters);
        let time = format!("{:.1} s", self.seconds());
        let gap = WIDTH.saturating_sub(heading.chars().count());
        println!("\n{}{}", self.paint(BOLD, &heading), self.paint(DIM, &format!("{time:>gap$}")));
    }

    /// A command, as a person would type it.
    pub(crate) fn command(&self, text: &str) {
        println!("  {}", self.paint(CYAN, &format!("$ {text}")));
    }

    /// The output of a command. Warnings have another colour.
    pub(crate) fn answer(&self, text: &str) {
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            let style = if line.starts_with("Warning:") { YELLOW } else { DIM };
            // Tables keep their columns.
            let parts =
                if line.chars().count() <= WIDTH - 4 { vec![line.to_owned()] } else { wrap(line, WIDTH - 4) };
            for part in parts {
                println!("    {}", self.paint(style, &part));
            }
        }
    }

    /// Lines of a log, as they are.
    pub(crate) fn log(&self, text: &str) {
        for line in text.lines() {
            println!("  {}", self.paint(DIM, line));
        }
    }

    /// An observation.
    pub(crate) fn seen(&self, text: &str) {
        for part in wrap(text, WIDTH - 4) {
            println!("    {}", self.tint(&part));
        }
    }

    /// A line of a table, whose columns the caller aligns.
    pub(crate) fn row(&self, text: &str) {
        println!("    {}", self.tint(text));
    }

    /// A problem.
    pub(crate) fn problem(&self, text: &str) {
        for line in text.lines() {
            for part in wrap(line, WIDTH - 4) {
                println!("    {}", self.paint(RED, &part));
            }
        }
    }

    /// An entry of the last table: a promise, whether it held, and its observations, one on each line.
    pub(crate) fn promise(&self, name: &str, held: bool, seen: &[String]) {
        let (word, style) = if held { ("ok", GREEN) } else { ("NO", RED) };
        let mut label = format!("{}  {}", self.paint(BOLD, &format!("{name:<9}")), self.paint(style, word));
        for part in seen.iter().flat_map(|line| wrap(line, WIDTH - 17)) {
            println!("  {label}  {part}");
            label = " ".repeat(13);
        }
    }

    /// Colours the values that pods read.
    fn tint(&self, text: &str) -> String {
        [("blue", BLUE), ("green", GREEN), ("red", RED)].iter().fold(
            text.to_owned(),
            |text, (name, style)| {
                let value = format!("color={name}");
                text.replace(&value, &self.paint(style, &value))
            },
        )
    }

    fn paint(&self, style: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{style}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Breaks a line between words; a word that is too long stays whole.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let full =
            lines.last().is_some_and(|l| !l.is_empty() && l.chars().count() + word.chars().count() >= width);
        if full {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            let gap = if line.is_empty() { "" } else { " " };
            let _ = write!(line, "{gap}{word}");
        }
    }
    lines
}
