//! Quantities, such as `500m` and `1Gi`: equal ones may have different texts.

use serde_json::Value;

/// The suffixes of powers of ten, with the exponents. Source: Kubernetes, `resource.Quantity`, also for [`BINARY`].
const DECIMAL: [(&str, i32); 10] =
    [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];
/// The suffixes of powers of 1024, with the exponents.
const BINARY: [(&str, u32); 6] = [("Ki", 1), ("Mi", 2), ("Gi", 3), ("Ti", 4), ("Pi", 5), ("Ei", 6)];
/// The smallest unit of a quantity is 10 to the power of -9.
const NANO: i32 = 9;

/// The quantity of a text or a number, in units of 10 to the power of -9; `None` if it is malformed, too large, or has smaller parts.
pub(crate) fn nano_units(value: &Value) -> Option<i128> {
    let number;
    let text = match value {
        Value::String(text) => text.as_str(),
        Value::Number(of) => {
            number = of.to_string();
            &number
        }
        _ => return None,
    };
    let end =
        text.find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '+' | '-'))).unwrap_or(text.len());
    let (digits, suffix) = text.split_at(end);
    let (factor, exponent) = scale(suffix)?;
    let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
    if whole.trim_start_matches(['+', '-']).is_empty() && part.is_empty() {
        return None;
    }
    let part = part.trim_end_matches('0');
    let digits: i128 = format!("{whole}{part}").parse().ok()?;
    let exponent = exponent.checked_add(NANO)?.checked_sub(i32::try_from(part.len()).ok()?)?;
    let power = 10_i128.checked_pow(exponent.unsigned_abs())?;
    let scaled = digits.checked_mul(factor)?;
    if exponent >= 0 { scaled.checked_mul(power) } else { (scaled % power == 0).then(|| scaled / power) }
}

/// The factor and the exponent of ten of a suffix.
fn scale(suffix: &str) -> Option<(i128, i32)> {
    if let Some((_, exponent)) = DECIMAL.iter().find(|(of, _)| *of == suffix) {
        return Some((1, *exponent));
    }
    if let Some((_, power)) = BINARY.iter().find(|(of, _)| *of == suffix) {
        return Some((1024_i128.pow(*power), 0));
    }
    let exponent = suffix.strip_prefix(['e', 'E'])?;
    Some((1, exponent.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn equal_quantities_have_equal_units() {
        for (units, values) in [
            (0, vec![json!("0"), json!(0), json!("0m"), json!("0Gi")]),
            (
                1_000_000_000,
                vec![json!("1"), json!(1), json!("1000m"), json!("1.0"), json!("1e0"), json!(1.0)],
            ),
            (500_000_000, vec![json!("500m"), json!("0.5"), json!(".5"), json!(0.5), json!("5e-1")]),
            (1, vec![json!("1n"), json!("0.001u")]),
            (
                1_073_741_824_000_000_000,
                vec![json!("1Gi"), json!("1024Mi"), json!("1073741824"), json!("+1Gi")],
            ),
            (1_500_000_000_000, vec![json!("1.5k"), json!("1500"), json!("15E2")]),
            (-2_000_000_000, vec![json!("-2"), json!(-2)]),
        ] {
            for value in values {
                assert_eq!(nano_units(&value), Some(units), "{value}");
            }
        }
    }

    #[test]
    fn other_values_are_no_quantities() {
        for value in [
            json!(""),
            json!("-"),
            json!("."),
            json!("Gi"),
            json!("1gi"),
            json!("1 Gi"),
            json!("1e"),
            json!("1-2"),
            json!("1.2.3"),
            json!("0.1n"),
            json!("1e999"),
            json!("999999999999999999999999999999999999999999"),
            json!(null),
            json!(true),
            json!(["1"]),
        ] {
            assert_eq!(nano_units(&value), None, "{value}");
        }
    }
}
