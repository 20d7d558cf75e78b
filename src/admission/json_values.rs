//! Counts the JSON values of a body before it is parsed: each takes many times its text once it is parsed.

/// The number of JSON values in a body, or a few more: every opening of a list or map, and every comma outside of strings. A
/// body of a few megabytes may hold millions of them, each of which takes many times its text once it is parsed.
pub(super) fn count_values(body: &[u8]) -> usize {
    let (mut count, mut in_string, mut is_escaped) = (1, false, false);
    for byte in body {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = in_string,
            b'"' => in_string = !in_string,
            b'{' | b'[' | b',' if !in_string => count += 1,
            _ => {}
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_values_outside_of_strings() {
        for (body, count) in
            [("1", 1), (r#"{"a":[1,2,3],"b":{}}"#, 7), (r#"["a,{[","\"[,","\\",{}]"#, 6), ("[{},{},{}]", 7)]
        {
            assert_eq!(count_values(body.as_bytes()), count, "{body}");
        }
    }
}
