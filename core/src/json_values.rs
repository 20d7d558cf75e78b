//! What a text of JSON takes once it is parsed, and once a message quotes it. Both are known before it is parsed.

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

/// By how many bytes a message that quotes all of the text is longer than the text: it writes characters that cannot be printed
/// as escapes.
pub fn growth_when_quoted(body: &[u8]) -> usize {
    // Almost every body is plain, and the library checks many bytes at a time.
    if body.is_ascii() && memchr::memchr(0x7f, body).is_none() {
        return 0;
    }
    let growth = |character: char| match character.escape_debug().len() {
        1 => 0,
        escaped => escaped.saturating_sub(character.len_utf8()),
    };
    let is_plain = |character: &char| character.is_ascii() && *character != '\u{7f}';
    let characters = body.utf8_chunks().flat_map(|chunk| chunk.valid().chars());
    characters.filter(|character| !is_plain(character)).map(growth).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_that_of_the_quoted_text() {
        for (text, growth) in [
            ("plain \\ text", 0),
            ("größe 設定", 0),
            ("\u{7f}\u{7f}", 2 * 5),
            ("\u{85}", 4),
            ("a\u{301}b", 5),
            ("\u{202e}", 5),
        ] {
            assert_eq!(growth_when_quoted(text.as_bytes()), growth, "{text:?}");
            let quoted = format!("{text:?}").replace("\\\\", "\\");
            assert_eq!(quoted.len(), text.len() + growth + 2, "{text:?}");
        }
        let broken = [b"\xff\x7f\xff".to_vec(), vec![0x7f; 9], vec![0xc3]].concat();
        assert_eq!(growth_when_quoted(&broken), 10 * 5);
    }

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
