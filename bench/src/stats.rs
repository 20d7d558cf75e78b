//! Summary statistics.

/// The quantile: the value below which the fraction `part` (0 to 1) of the values lies; NaN without values.
pub(crate) fn quantile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "an index below the length, which is small"
    )]
    let index = (part * last as f64).round() as usize;
    sorted.get(index).copied().unwrap_or(f64::NAN)
}

/// A count as a floating-point number.
pub(crate) fn number(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::INFINITY, f64::from)
}

/// The slope of the line through the logarithms of the points, by least squares: 1 is linear growth.
pub(crate) fn slope(points: &[(f64, f64)]) -> f64 {
    let points: Vec<_> =
        points.iter().filter(|(x, y)| *x > 0.0 && *y > 0.0).map(|(x, y)| (x.ln(), y.ln())).collect();
    let count = number(points.len());
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let both: f64 = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
    both / points.iter().map(|point| (point.0 - x).powi(2)).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_measured_values() {
        let values = [5.0, 1.0, 4.0, 2.0, 3.0];
        assert!((quantile(&values, 0.5) - 3.0).abs() < 1e-9);
        assert!((quantile(&values, 0.99) - 5.0).abs() < 1e-9);
        assert!(quantile(&[], 0.5).is_nan());
    }

    #[test]
    fn a_slope_is_the_exponent_of_growth() {
        for exponent in [0.5, 1.0, 2.0] {
            let points = [10.0_f64, 100.0, 1000.0].map(|x| (x, 3.0 * x.powf(exponent)));
            assert!((slope(&points) - exponent).abs() < 1e-9);
        }
    }
}
