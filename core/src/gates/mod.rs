//! One question: may a workload move to the present content of a source now, and if not: why, until when, and who ends the wait?
//!
//! A gate is a reason to wait: a function of [`Asked`], in a file of its own, or a setting, in a file of [`crate::gate_settings`].
//! [`answer`] asks the gates one after the other. The
//! controller and the commands call it, over their knowledge of the cluster. A gate holds one source of a workload, and never its
//! other sources, unless they belong to one set.
//!
//! Scheduling is no gate: the settle time, the rate, a snapshot that is being written.

mod asked;
mod gate;
mod guard;
mod hold;
mod interval;
mod paused;
mod refused;
mod required_keys;
mod schema;
mod set;
mod setting;
mod spread;
mod why;
mod words;

pub use asked::{Answer, Asked};
pub use gate::Gate;
pub(crate) use guard::Guard;
pub use why::Why;
pub(crate) use words::refused_content;
pub use words::{About, ELSEWHERE, lacks_key, listed, proved_bad, retry, waves};

use crate::resolve::{Record, Use};

/// A gate.
type Ask<A> = fn(&mut A) -> Answer<<A as Asked>::Key>;

/// The answer of the gates that ask the workload alone: why it does not move, whatever its source holds.
pub fn of_workload<K>(record: &Record, used: &Use) -> Option<Why<K>> {
    if record.track { hold::why(used) } else { Some(Why::Paused) }
}

/// The answer of the first gate that is not open.
pub fn answer<A: Asked>(asked: &mut A) -> Answer<A::Key> {
    let chain: [Ask<A>; 9] = [
        paused::ask,
        hold::ask,
        refused::ask,
        schema::ask,
        required_keys::ask,
        setting::ask,
        set::ask,
        interval::ask,
        spread::ask,
    ];
    chain
        .into_iter()
        .map(|ask| ask(asked))
        .find(|answer| !matches!(answer, Answer::Open))
        .unwrap_or(Answer::Open)
}
