//! Texts with `*` and `?`, as in a shell.

/// The wildcards: any characters, and any one character.
pub(crate) const ALL: [char; 2] = ['*', '?'];

/// Whether a text matches a pattern, in time that is bounded by the product of their lengths.
pub(crate) fn match_text(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut at, mut read) = (0, 0);
    // After the last `*`: where it is, and how much of the text it covers.
    let mut star: Option<(usize, usize)> = None;
    while read < text.len() {
        match (pattern.get(at), star) {
            (Some(b'*'), _) => {
                star = Some((at, read));
                at += 1;
            }
            (Some(byte), _) if *byte == b'?' || *byte == text[read] => {
                at += 1;
                read += 1;
            }
            (_, Some((of, covered))) => {
                star = Some((of, covered + 1));
                (at, read) = (of + 1, covered + 1);
            }
            (_, None) => return false,
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_match_as_in_a_shell() {
        for (pattern, key, expected) in [
            ("*", "", true),
            ("*.json", "a.json", true),
            ("*.json", "a.json.bak", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("abc", "abcd", false),
        ] {
            assert_eq!(match_text(pattern, key), expected, "{pattern} {key}");
        }
    }
}
