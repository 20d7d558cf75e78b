//! Defects that are known and open: they are run, and what they break counts for nothing.

use confrev::names;

use super::{Scenario, super::{objects::{File, pod}, play::Play}};
use crate::store::annotation;

pub(super) const ALL: &[Scenario] = &[
    Scenario::new("undo-keeps-settings", undo_keeps_settings).open(6),
    Scenario::new("deleted-in-the-foreground", foreground).open(8),
];

fn undo_keeps_settings(play: &Play<'_>) {
    let file = File::deployment("w", &["s"]);
    play.apply(&File::source("s", "one"));
    play.apply(&file);
    play.rest();
    play.apply(&File::source("s", "two"));
    play.rest();
    play.annotate(&file.key, names::TRACK, Some("false"));
    play.annotate(&file.key, names::MIN_INTERVAL, Some("1h"));
    play.rest();
    play.undo(&file.key, 1);
    play.rest();
    let live = play.model.get(&file.key).unwrap();
    if annotation(&live, names::TRACK) != Some("false") || annotation(&live, names::MIN_INTERVAL) != Some("1h") {
        play.model.broken("sticks", "an undo has ended a setting");
    }
}

fn foreground(play: &Play<'_>) {
    let file = File::deployment("w", &["s"]);
    play.apply(&File::source("s", "one"));
    play.apply(&file);
    play.rest();
    play.apply(&File::source("s", "two"));
    play.rest();
    play.delete_in_foreground(&file.key);
    play.rest();
    let _ = pod(&[]);
}
