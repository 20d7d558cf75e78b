//! Text from the cluster, or from any other stranger, made safe to show.
//!
//! Names, values, messages and annotations can hold terminal escapes, line breaks, and marks that reverse the order of what a person
//! reads. Everything that shows such text, a terminal, a page, a log or an Event, gets it from here.

use std::{
    borrow::Cow,
    fmt::{self, Write as _},
};

/// Whether a character acts on what a person reads instead of being read: a control character, a line break, a mark of the
/// writing direction, or an invisible character: Unicode's property Default_Ignorable_Code_Point, but for the two joiners (U+200C,
/// U+200D), which change how words of some languages look.
pub const fn is_active(character: char) -> bool {
    matches!(
        character,
        '\u{0}'..='\u{1f}'
            | '\u{7f}'..='\u{9f}'
            | '\u{ad}'
            | '\u{34f}'
            | '\u{61c}'
            | '\u{115f}'
            | '\u{1160}'
            | '\u{17b4}'
            | '\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'
            | '\u{200e}'
            | '\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}

/// One line: each active character is written as its escape in JSON, such as `\u001b` or `\n`.
pub fn line(text: &str) -> Cow<'_, str> {
    escape(text, |_| false)
}

/// Text with structure of its own, such as a file: line breaks and tabs stay.
pub fn block(text: &str) -> Cow<'_, str> {
    escape(text, |character| matches!(character, '\n' | '\t'))
}

/// At most so many characters of a text. The last one is `…` if there are more.
pub fn short(text: &str, most: usize) -> Cow<'_, str> {
    if text.char_indices().nth(most).is_none() {
        return Cow::Borrowed(text);
    }
    let start = text.chars().take(most.saturating_sub(1));
    Cow::Owned(start.chain(['…']).collect())
}

/// At most so many characters of a displayed value, without the memory for its whole text.
pub fn short_display(shown: &impl fmt::Display, most: usize) -> String {
    struct Start {
        text: String,
        left: usize,
    }

    impl fmt::Write for Start {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            for character in text.chars() {
                self.left = self.left.checked_sub(1).ok_or(fmt::Error)?;
                self.text.push(character);
            }
            Ok(())
        }
    }

    let mut start = Start { text: String::new(), left: most };
    if write!(start, "{shown}").is_err() {
        start.text.pop();
        start.text.push('…');
    }
    start.text
}

fn escape(text: &str, stays: impl Fn(char) -> bool) -> Cow<'_, str> {
    let is_escaped = |character: char| is_active(character) && !stays(character);
    if !text.chars().any(is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match character {
            '\n' if is_escaped('\n') => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' if is_escaped('\t') => out.push_str("\\t"),
            other if is_escaped(other) => {
                for unit in other.encode_utf16(&mut [0; 2]) {
                    // Writing to a String cannot fail.
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            other => out.push(other),
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The classes of Unicode that a terminal or a browser acts on, each with an example that was seen to work in one.
    #[test]
    fn active_characters_are_escaped() {
        for (active, shown) in [
            ("\u{1b}[2J", "\\u001b[2J"),
            ("\u{9b}31m", "\\u009b31m"),
            ("\u{7f}", "\\u007f"),
            ("\u{0}", "\\u0000"),
            ("\r", "\\r"),
            ("\u{85}", "\\u0085"),
            ("\u{2028}\u{2029}", "\\u2028\\u2029"),
            ("\u{202e}gpj\u{202c}", "\\u202egpj\\u202c"),
            ("\u{2066}\u{2069}\u{200e}\u{200f}\u{61c}", "\\u2066\\u2069\\u200e\\u200f\\u061c"),
            ("a\u{200b}\u{2060}\u{feff}\u{ad}b", "a\\u200b\\u2060\\ufeff\\u00adb"),
            ("a\u{e0061}\u{3164}\u{fe0f}\u{115f}", "a\\udb40\\udc61\\u3164\\ufe0f\\u115f"),
        ] {
            assert_eq!(line(active), shown);
            assert_eq!(block(active), shown);
        }
        assert_eq!(line("a\nb\tc"), "a\\nb\\tc");
        assert_eq!(block("a\nb\tc"), "a\nb\tc");
    }

    #[test]
    fn other_text_stays_as_it_is() {
        for plain in ["", "web-1", "a\\nb \"c\"", "größe 設定 ניסיון 👩\u{200d}💻"] {
            assert!(matches!(line(plain), Cow::Borrowed(same) if same == plain));
        }
    }

    #[test]
    fn long_text_is_cut() {
        for (text, most, cut) in
            [("größer", 6, "größer"), ("größer", 5, "größ…"), ("ab", 1, "…"), ("", 0, "")]
        {
            assert_eq!((short(text, most).as_ref(), short_display(&text, most).as_str()), (cut, cut));
        }
    }

    proptest::proptest! {
        /// No active character is left, and text that is safe already does not change.
        #[test]
        fn escaped_text_is_safe(text in "\\PC*|[\u{0}-\u{a0}\u{2000}-\u{2070}]*") {
            let shown = line(&text).into_owned();
            proptest::prop_assert!(!shown.chars().any(is_active));
            proptest::prop_assert_eq!(line(&shown), shown.as_str());
            let shown = block(&text).into_owned();
            proptest::prop_assert!(!shown.chars().any(|c| is_active(c) && c != '\n' && c != '\t'));
        }

        /// In a text of JSON, active characters are inside strings alone, so the value stays the same.
        #[test]
        fn escaped_json_has_the_same_value(text in "[\u{0}-\u{a0}\u{2000}-\u{2070}]*") {
            let json = serde_json::to_string_pretty(&[&text]).unwrap();
            let back: Vec<String> = serde_json::from_str(&block(&json)).unwrap();
            proptest::prop_assert_eq!(&back[0], &text);
        }
    }
}
