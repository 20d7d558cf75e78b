//! The panels of the dashboard, drawn as Grafana would, in the places that it gives them.

use std::fmt::Write as _;

use serde_json::Value;

use super::prometheus::Prometheus;

/// Pixels of the whole picture, and of a unit of the grid.
const WIDTH: f64 = 1200.0;
const COLUMN: f64 = WIDTH / 24.0;
const ROW: f64 = 26.0;
const COLOURS: [&str; 7] = ["#7eb26d", "#eab839", "#6ed0e0", "#ef843c", "#e24d42", "#1f78c1", "#ba43a9"];

/// One panel.
#[derive(Debug)]
pub(super) struct Panel {
    pub(super) title: String,
    kind: String,
    unit: String,
    /// Expressions, each with the format of its legend.
    targets: Vec<(String, String)>,
    /// x, y, width and height, in the units of the grid.
    place: [f64; 4],
}

/// A line of a panel.
pub(super) struct Line {
    legend: String,
    points: Vec<(f64, f64)>,
}

/// The time that is shown.
pub(super) struct Picture {
    pub(super) from: u64,
    pub(super) to: u64,
}

impl Panel {
    pub(super) fn of(panel: &Value) -> Self {
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let targets = panel["targets"].as_array().into_iter().flatten();
        // Prometheus scraped every second.
        let expression = |target: &Value| {
            word(&target["expr"]).replace("$__rate_interval", "10s").replace("[10m]", "[30s]")
        };
        Self {
            title: word(&panel["title"]),
            kind: word(&panel["type"]),
            unit: word(&panel["fieldConfig"]["defaults"]["unit"]),
            targets: targets.map(|target| (expression(target), word(&target["legendFormat"]))).collect(),
            place: ["x", "y", "w", "h"].map(|key| panel["gridPos"][key].as_f64().unwrap_or_default()),
        }
    }

    fn value(&self, value: f64) -> String {
        match (&*self.unit, value) {
            ("s", v) if v >= 172_800.0 => format!("{:.0} d", v / 86_400.0),
            ("s", v) if v < 1.0 => format!("{:.0} ms", v * 1000.0),
            ("s", v) => format!("{v:.1} s"),
            ("ops" | "reqps", v) if v < 10.0 => format!("{v:.1}/s"),
            ("ops" | "reqps", v) => format!("{v:.0}/s"),
            (_, v) if v.fract().abs() < 0.05 => format!("{v:.0}"),
            (_, v) => format!("{v:.1}"),
        }
    }
}

/// A legend: its format, with the labels of a series filled in.
fn legend(form: &str, labels: &Value) -> String {
    let mut text = form.to_owned();
    for (label, value) in labels.as_object().into_iter().flatten() {
        text = text.replace(&format!("{{{{{label}}}}}"), value.as_str().unwrap_or_default());
    }
    text
}

impl Picture {
    /// Queries the data of a panel.
    pub(super) fn draw(&self, panel: &Panel, prometheus: &Prometheus) -> Vec<Line> {
        let series = panel.targets.iter().flat_map(|(expression, form)| {
            let found = prometheus.range(expression, self.from, self.to);
            found.into_iter().map(move |(labels, points)| Line { legend: legend(form, &labels), points })
        });
        series.filter(|line| !line.points.is_empty()).collect()
    }

    pub(super) fn write(&self, panels: &[Panel], lines: &[Vec<Line>]) -> String {
        let height = panels.iter().map(|panel| panel.place[1] + panel.place[3]).fold(0.0, f64::max) * ROW;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\">\n\
             <title>The dashboard, while ConfigMaps of nine workloads change in two periods</title>\n<style>\n\
             text {{ font: 12px system-ui, 'DejaVu Sans', sans-serif; fill: #c7d0d9 }}\n\
             .t {{ font-weight: 600 }} .s {{ font-size: 10px; fill: #8e9ba8 }} .v {{ font-size: 26px; fill: #7eb26d }}\n\
             polyline {{ fill: none; stroke-width: 1.5 }}\n</style>\n\
             <rect width=\"{WIDTH}\" height=\"{height:.0}\" fill=\"#111217\"/>\n"
        );
        for (panel, lines) in panels.iter().zip(lines) {
            self.panel(panel, lines, &mut svg);
        }
        svg + "</svg>\n"
    }

    fn panel(&self, panel: &Panel, lines: &[Line], svg: &mut String) {
        let [x, y, w, h] = panel.place;
        let (x, y, w, h) = (x * COLUMN + 3.0, y * ROW + 3.0, w * COLUMN - 6.0, h * ROW - 6.0);
        // Writing to a String cannot fail.
        if panel.kind != "row" {
            let _ = writeln!(
                svg,
                "<rect x=\"{x:.0}\" y=\"{y:.0}\" width=\"{w:.0}\" height=\"{h:.0}\" rx=\"3\" fill=\"#181b1f\" stroke=\"#2b3036\"/>"
            );
        }
        let _ = writeln!(
            svg,
            "<text class=\"t\" x=\"{:.0}\" y=\"{:.0}\">{}</text>",
            x + 8.0,
            y + 17.0,
            panel.title
        );
        let last = lines.first().and_then(|line| line.points.last()).map(|(_, value)| *value);
        match (&*panel.kind, last) {
            ("stat", Some(value)) => {
                let (x, y, value) = (x + w / 2.0, y + h / 2.0 + 18.0, panel.value(value));
                let _ = writeln!(
                    svg,
                    "<text class=\"v\" x=\"{x:.0}\" y=\"{y:.0}\" text-anchor=\"middle\">{value}</text>"
                );
            }
            ("timeseries", _) => self.lines(panel, lines, [x + 52.0, y + 28.0, w - 64.0, h - 62.0], svg),
            _ => {}
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "seconds of one run")]
    fn lines(&self, panel: &Panel, lines: &[Line], [x, y, w, h]: [f64; 4], svg: &mut String) {
        let highest = lines.iter().flat_map(|line| &line.points).map(|(_, value)| *value).fold(0.0, f64::max);
        let top = if highest > 0.0 { highest * 1.1 } else { 1.0 };
        for part in [0.0, 0.5, 1.0] {
            let at = y + h * (1.0 - part);
            let value = panel.value(top * part);
            let _ = writeln!(
                svg,
                "<path d=\"M{x:.0} {at:.1}h{w:.0}\" stroke=\"#2b3036\"/>\
                 <text class=\"s\" x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{value}</text>",
                x - 6.0,
                at + 3.0
            );
        }
        let (mut after, span) = (x, (self.to - self.from) as f64);
        for (line, colour) in lines.iter().zip(COLOURS.iter().cycle()) {
            // One point per second is more than can be seen: draw every other point.
            let points = line.points.iter().step_by(2).map(|(time, value)| {
                let (right, up) = ((time - self.from as f64) / span * w, value / top * h);
                format!("{:.1},{:.1}", x + right, y + h - up)
            });
            let points = points.collect::<Vec<_>>().join(" ");
            let _ = writeln!(svg, "<polyline points=\"{points}\" stroke=\"{colour}\"/>");
            if after + line.legend.len() as f64 * 6.2 > x + w {
                continue;
            }
            let base = y + h + 22.0;
            let _ = writeln!(
                svg,
                "<path d=\"M{after:.0} {:.0}h12\" stroke=\"{colour}\" stroke-width=\"3\"/>\
                 <text class=\"s\" x=\"{:.0}\" y=\"{base:.0}\">{}</text>",
                base - 4.0,
                after + 16.0,
                line.legend
            );
            after += line.legend.len() as f64 * 6.2 + 30.0;
        }
    }
}
