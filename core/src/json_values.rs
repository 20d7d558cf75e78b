//! Counts the JSON values of a text before it is parsed: each takes many times its text once it is parsed.

/// Up to this upper bound, the exact count is not needed: most reviews have fewer values, and they take little memory.
const ENOUGH: usize = 500;

/// The number of JSON values in a body, or a few more: every opening of a list or map, and every comma outside of strings. A
/// body of a few megabytes may hold millions of them, each of which takes many times its text once it is parsed.
pub fn count_values(body: &[u8]) -> usize {
    // Strings count as well here. The library counts a byte much faster than a loop that knows where strings end.
    let at_most =
        1 + [b'{', b'[', b','].map(|byte| memchr::memchr_iter(byte, body).count()).iter().sum::<usize>();
    if at_most <= ENOUGH { at_most } else { count_outside_strings(body) }
}

fn count_outside_strings(body: &[u8]) -> usize {
    let (mut count, mut rest) = (1, body.iter());
    while let Some(byte) = rest.next() {
        match byte {
            b'"' => rest = after_string(rest.as_slice()).iter(),
            b'{' | b'[' | b',' => count += 1,
            _ => {}
        }
    }
    count
}

/// What follows a string, whose opening quote was read. Most bytes of a body are in strings.
fn after_string(mut rest: &[u8]) -> &[u8] {
    while let Some(at) = memchr::memchr2(b'"', b'\\', rest) {
        let length = if rest.get(at) == Some(&b'"') { 1 } else { 2 };
        rest = rest.get(at + length..).unwrap_or_default();
        if length == 1 {
            return rest;
        }
    }
    &[]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_value_is_left_out() {
        for (elements, at_most) in
            [(1, 8), (ENOUGH / 2, ENOUGH), (ENOUGH, ENOUGH + 2), (100 * ENOUGH, 100 * ENOUGH + 2)]
        {
            let body = format!(r#"[{}",,,,"]"#, "1,".repeat(elements));
            let count = count_values(body.as_bytes());
            assert!((elements + 2..=at_most).contains(&count), "{elements}: {count}");
        }
    }

    #[test]
    fn counts_values_outside_of_strings() {
        for (body, count) in [
            ("1", 1),
            (r#"{"a":[1,2,3],"b":{}}"#, 7),
            (r#"["a,{[","\"[,","\\",{}]"#, 6),
            ("[{},{},{}]", 7),
            (r#"[",,\"#, 2),
        ] {
            assert_eq!(count_outside_strings(body.as_bytes()), count, "{body}");
        }
    }
}
