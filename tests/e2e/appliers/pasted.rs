//! The commands of the pages, pasted all at once: without a pause. In the other tests of the pages, each command waits
//! until the effect of the previous one is complete.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::page::Page;
use crate::page_commands::{parts, read};
use crate::shared::running;

const EXAMPLES: &str = "examples/README.md";

/// Pastes all commands under a heading, each of which must succeed.
fn paste(page: &str, heading: &str) -> usize {
    let mut opened = Page::open(page, heading);
    let commands = opened.reader.rest();
    for command in &commands {
        let said = opened.reader.tries(command);
        // `diff` shows a difference.
        let code = i32::from(command.starts_with("kubectl confrev diff"));
        assert_eq!(said.status.code(), Some(code), "{page}, {heading}: {command}: {said}");
    }
    commands.len()
}

#[test]
fn pages_work_when_pasted_at_once() {
    let _confrev = running();
    let text = read(std::path::Path::new(EXAMPLES));
    let (_, blocks) = parts(&text);
    let mut headings: Vec<_> = blocks.iter().map(|block| (EXAMPLES, block.heading)).collect();
    headings.push(("docs/quick-start.md", "A canary with its own config"));
    assert!(headings.len() >= 8, "{headings:?}");
    let count = AtomicUsize::new(0);
    // Each heading has its own namespace.
    std::thread::scope(|scope| {
        for (page, heading) in &headings {
            scope.spawn(|| count.fetch_add(paste(page, heading), Ordering::Relaxed));
        }
    });
    assert!(count.into_inner() > 40);
}
