//! The plot of growth: costs over the number of workloads, both on logarithmic scales, as SVG.

use std::fmt::Write as _;

use crate::stats::slope;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 420.0;
/// Margins for the labels of the axes and for the legend.
const LEFT: f64 = 60.0;
const RIGHT: f64 = 250.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 45.0;
const COLOURS: [&str; 5] = ["#1b6ca8", "#c8553d", "#3a7d44", "#8e5572", "#b8860b"];

/// One line: its name and its points.
pub(crate) type Line = (&'static str, Vec<(f64, f64)>);

/// The lines as an SVG document. Points without a logarithm are left out.
pub(crate) fn svg(title: &str, lines: &[Line]) -> String {
    let points = lines.iter().flat_map(|(_, points)| points).filter(|(x, y)| *x > 0.0 && *y > 0.0);
    let points: Vec<_> = points.map(|(x, y)| (x.log10(), y.log10())).collect();
    let range = |of: fn(&(f64, f64)) -> f64| {
        let (least, most) =
            points.iter().map(of).fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), value| {
                (least.min(value), most.max(value))
            });
        if least.is_finite() { (least.floor(), most.ceil().max(least.floor() + 1.0)) } else { (0.0, 1.0) }
    };
    let ((x0, x1), (y0, y1)) = (range(|point| point.0), range(|point| point.1));
    let x = |value: f64| LEFT + (value - x0) / (x1 - x0) * (WIDTH - LEFT - RIGHT);
    let y = |value: f64| HEIGHT - BOTTOM - (value - y0) / (y1 - y0) * (HEIGHT - TOP - BOTTOM);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"18\" font-size=\"14\">{title}</text>\n"
    );
    let mut power = x0;
    while power <= x1 {
        let _ = writeln!(
            text,
            "<line x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"{TOP}\" y2=\"{1:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{0:.1}\" y=\"{2:.1}\" text-anchor=\"middle\">{3}</text>",
            x(power),
            HEIGHT - BOTTOM,
            HEIGHT - BOTTOM + 18.0,
            10_f64.powf(power)
        );
        power += 1.0;
    }
    power = y0;
    while power <= y1 {
        let _ = writeln!(
            text,
            "<line x1=\"{LEFT}\" x2=\"{0:.1}\" y1=\"{1:.1}\" y2=\"{1:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{2:.1}\" y=\"{3:.1}\" text-anchor=\"end\">{4}</text>",
            WIDTH - RIGHT,
            y(power),
            LEFT - 6.0,
            y(power) + 4.0,
            10_f64.powf(power)
        );
        power += 1.0;
    }
    let _ = writeln!(text, "<text x=\"{LEFT}\" y=\"{}\">workloads</text>", HEIGHT - 8.0);
    for (i, (name, points)) in lines.iter().enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        let places: Vec<_> = points
            .iter()
            .filter(|(x, y)| *x > 0.0 && *y > 0.0)
            .map(|(a, b)| format!("{:.1},{:.1}", x(a.log10()), y(b.log10())))
            .collect();
        let _ = writeln!(
            text,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            places.join(" ")
        );
        for place in &places {
            let (x, y) = place.split_once(',').unwrap_or_default();
            let _ = writeln!(text, "<circle cx=\"{x}\" cy=\"{y}\" r=\"3\" fill=\"{colour}\"/>");
        }
        let at = TOP + 20.0 * (1.0 + [0.0, 1.0, 2.0, 3.0, 4.0][i % COLOURS.len()]);
        let _ = writeln!(
            text,
            "<text x=\"{:.1}\" y=\"{at:.1}\" fill=\"{colour}\">{name}, slope {:.2}</text>",
            WIDTH - RIGHT + 15.0,
            slope(points)
        );
    }
    text + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plot_has_each_line_with_its_slope() {
        let text = svg("growth", &[("a", vec![(100.0, 1.0), (1000.0, 10.0)]), ("b", vec![(100.0, 0.0)])]);
        assert_eq!(text.matches("<polyline").count(), 2);
        assert_eq!(text.matches("<circle").count(), 2, "a point without a logarithm is left out");
        assert!(text.contains("a, slope 1.00"), "{text}");
    }
}
