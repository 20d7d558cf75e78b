//! A recording of a terminal: asciicast, version 2, and its picture.
//! Source: asciinema, "asciicast v2".

use std::fmt::Write as _;

use serde_json::{Value, json};

/// Columns of the terminal.
pub(crate) const WIDTH: usize = 112;
/// Pixels of a character and of a line.
const CELL: (f32, f32) = (7.83, 18.0);
/// The longest pause, in seconds.
const LONGEST: f64 = 1.6;
/// How long the picture shows all lines at first, in seconds.
const FIRST: u32 = 3;

/// The output of a terminal, with its times in seconds from the beginning.
#[derive(Debug, Default)]
pub(crate) struct Cast {
    events: Vec<(f64, String)>,
}

impl Cast {
    pub(crate) fn show(&mut self, after: f64, text: &str) {
        let last = self.events.last().map_or(0.0, |(time, _)| *time);
        // Milliseconds are enough.
        let time = ((last + after.min(LONGEST)) * 1000.0).round() / 1000.0;
        self.events.push((time, text.to_owned()));
    }

    pub(crate) fn write(&self, title: &str) -> String {
        let height = self.lines().len() + 1;
        let mut text =
            json!({"version": 2, "width": WIDTH, "height": height, "title": title}).to_string() + "\n";
        for (time, shown) in &self.events {
            text += &(json!([time, "o", shown]).to_string() + "\n");
        }
        text
    }

    pub(crate) fn read(text: &str) -> Self {
        let events = text.lines().skip(1).map(|line| {
            let event: Value = serde_json::from_str(line).expect("an event is JSON");
            (event[0].as_f64().expect("a time"), event[2].as_str().expect("a text").to_owned())
        });
        Self { events: events.collect() }
    }

    /// The lines on the screen, each with the time at which it appeared.
    pub(crate) fn lines(&self) -> Vec<(f64, String)> {
        let mut lines: Vec<(f64, String)> = Vec::new();
        let mut is_open = false;
        for (time, shown) in &self.events {
            for part in shown.replace('\r', "").split_inclusive('\n') {
                match lines.last_mut().filter(|_| is_open) {
                    Some((_, line)) => line.push_str(part.trim_end_matches('\n')),
                    None => lines.push((*time, part.trim_end_matches('\n').to_owned())),
                }
                is_open = !part.ends_with('\n');
            }
        }
        lines
    }

    /// A picture that first shows all lines, and then each one at its time. Viewers without animations, pages in print and
    /// previews, which show the first frame, have all lines.
    pub(crate) fn svg(&self, title: &str) -> String {
        let lines = self.lines();
        #[expect(clippy::cast_precision_loss, reason = "a few hundred")]
        let (width, height) = (WIDTH as f32 * CELL.0 + 32.0, lines.len() as f32 * CELL.1 + 60.0);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\">\n\
             <title>{}</title>\n<style>\n\
             text {{ font: 13px ui-monospace, 'DejaVu Sans Mono', monospace; fill: #d8dee9; white-space: pre }}\n\
             .p {{ fill: #88c0d0; font-weight: 600 }} .r {{ fill: #e06c75 }} .g {{ fill: #8fce7e }} .d {{ fill: #7b8794 }} .y {{ fill: #e5c07b }}\n\
             @media screen and (prefers-reduced-motion: no-preference) {{ .l {{ animation: wait 0s {FIRST}s }} }}\n\
             @keyframes wait {{ from {{ opacity: 0 }} to {{ opacity: 0 }} }}\n</style>\n\
             <rect width=\"{width:.0}\" height=\"{height:.0}\" rx=\"8\" fill=\"#1e2430\"/>\n\
             <circle cx=\"20\" cy=\"18\" r=\"5\" fill=\"#e06c75\"/><circle cx=\"38\" cy=\"18\" r=\"5\" fill=\"#e5c07b\"/>\
             <circle cx=\"56\" cy=\"18\" r=\"5\" fill=\"#8fce7e\"/>\n",
            escaped(title)
        );
        for (i, (time, line)) in lines.iter().enumerate() {
            #[expect(clippy::cast_precision_loss, reason = "a few hundred")]
            let y = 48.0 + i as f32 * CELL.1;
            // Writing to a String cannot fail.
            let _ = writeln!(
                svg,
                "<text class=\"l\" style=\"animation-duration:{time:.2}s\" x=\"16\" y=\"{y:.0}\" xml:space=\"preserve\">{}</text>",
                spans(line)
            );
        }
        svg + "</svg>\n"
    }
}

/// A line with its colours. Typed commands have a separate colour.
fn spans(line: &str) -> String {
    if let Some(typed) = line.strip_prefix("$ ") {
        return format!("<tspan class=\"d\">$ </tspan><tspan class=\"p\">{}</tspan>", escaped(typed));
    }
    let mut parts = line.split("\u{1b}[");
    let mut text = escaped(parts.next().unwrap_or_default());
    for part in parts {
        let (code, rest) = part.split_once('m').unwrap_or(("", part));
        let class = match code {
            "31" => "r",
            "32" => "g",
            "2" => "d",
            "33" | "33;1" => "y",
            _ => "",
        };
        match class {
            "" => text += &escaped(rest),
            class => {
                let _ = write!(text, "<tspan class=\"{class}\">{}</tspan>", escaped(rest));
            }
        }
    }
    text
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[test]
fn recording_keeps_times_and_colours_of_lines() {
    let mut cast = Cast::default();
    cast.show(0.5, "$ a <b>\r\n");
    cast.show(60.0, "one\r\n\u{1b}[32mtwo\u{1b}[0m th");
    cast.show(0.1, "ree\r\n");
    let again = Cast::read(&cast.write("a story"));
    let texts: Vec<_> = again.lines().into_iter().collect();
    let wanted = [(0.5, "$ a <b>"), (2.1, "one"), (2.1, "\u{1b}[32mtwo\u{1b}[0m three")];
    assert_eq!(texts, wanted.map(|(time, line)| (time, line.to_owned())), "pauses are limited");
    let svg = again.svg("a story");
    assert!(svg.contains("<tspan class=\"g\">two</tspan> three") && svg.contains("a &lt;b&gt;"), "{svg}");
    assert!(svg.contains("animation-duration:2.10s"), "{svg}");
    // No line is hidden before its animation begins: that would be `backwards` or `both`.
    assert!(svg.contains("animation: wait 0s 3s }"), "{svg}");
}
