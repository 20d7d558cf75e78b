//! A reader of properties, as `java.util.Properties` reads them. The libraries for it link tables of character sets, which are
//! larger than everything else that this crate links.

/// The entries of a text, in order; otherwise the number of the first line that is invalid.
pub(crate) fn parse(text: &str) -> Result<Vec<(String, String)>, usize> {
    let mut entries = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((number, first)) = lines.next() {
        let first = first.trim_start_matches(is_blank);
        if first.is_empty() || first.starts_with(['#', '!']) {
            continue;
        }
        let mut line = first.to_owned();
        // An odd number of backslashes at the end continues the line.
        while line.chars().rev().take_while(|character| *character == '\\').count() % 2 == 1 {
            line.pop();
            let Some((_, next)) = lines.next() else { break };
            line.push_str(next.trim_start_matches(is_blank));
        }
        let (key, value) = split(&line);
        let (key, value) = (unescape(key).ok_or(number + 1)?, unescape(value).ok_or(number + 1)?);
        entries.push((key, value));
    }
    Ok(entries)
}

fn is_blank(character: char) -> bool {
    matches!(character, ' ' | '\t' | '\u{c}')
}

/// The key and the value: the first `=`, `:` or blank that is not escaped separates them.
fn split(line: &str) -> (&str, &str) {
    let mut is_escaped = false;
    let end = line.find(|character: char| {
        let ends = !is_escaped && (matches!(character, '=' | ':') || is_blank(character));
        is_escaped = !is_escaped && character == '\\';
        ends
    });
    let Some(end) = end else { return (line, "") };
    let rest = line[end..].trim_start_matches(is_blank);
    (&line[..end], rest.strip_prefix(['=', ':']).unwrap_or(rest).trim_start_matches(is_blank))
}

/// The text without escapes; `None` if one is invalid.
fn unescape(text: &str) -> Option<String> {
    let mut units: Vec<u16> = Vec::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        let plain = match character {
            '\\' => match characters.next()? {
                'u' => {
                    let digits: String = characters.by_ref().take(4).collect();
                    let digits =
                        Some(digits).filter(|digits| digits.len() == 4 && !digits.starts_with('+'))?;
                    units.push(u16::from_str_radix(&digits, 16).ok()?);
                    continue;
                }
                't' => '\t',
                'n' => '\n',
                'r' => '\r',
                'f' => '\u{c}',
                other => other,
            },
            other => other,
        };
        units.extend_from_slice(plain.encode_utf16(&mut [0; 2]));
    }
    String::from_utf16(&units).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_lines_as_java_does() {
        let text =
            "# comment\n! comment\n\n a = b \nc:d\ne f\ng\nh\\ i = j\\\n   k\nl\\=m==n\no = \\u00e9\\t\\\\\n";
        let expected = [
            ("a", "b "),
            ("c", "d"),
            ("e", "f"),
            ("g", ""),
            ("h i", "jk"),
            ("l=m", "=n"),
            ("o", "\u{e9}\t\\"),
        ];
        let expected: Vec<_> = expected.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        assert_eq!(parse(text), Ok(expected));
        assert_eq!(parse("\n\na = \\u12"), Err(3));
        assert_eq!(parse("a = \\ud800"), Err(1), "half of a pair");
        assert_eq!(parse("a = \\ud83d\\ude00"), Ok(vec![("a".to_owned(), "\u{1f600}".to_owned())]));
    }
}
