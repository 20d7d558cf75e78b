//! The table of results.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::fault::Fault;
use crate::replicas::Replicas;
use crate::site::Site;

#[derive(Debug, Default)]
struct Row {
    rounds: usize,
    times: usize,
    longest: Duration,
    losses: usize,
}

#[derive(Debug, Default)]
pub(crate) struct Report(BTreeMap<Fault, Row>);

impl Report {
    /// Records a round: its fault, how often the fault happened, the time until everything was at rest, and the losses.
    pub(crate) fn add(&mut self, fault: Fault, times: usize, took: Duration, losses: usize) {
        println!("{}: {times} times, {losses} losses, {:.0} s", fault.words(), took.as_secs_f32());
        let row = self.0.entry(fault).or_default();
        row.rounds += 1;
        row.times += times;
        row.longest = row.longest.max(took);
        row.losses += losses;
    }

    pub(crate) fn print(&self, site: &Site, replicas: &Replicas, took: Duration) {
        println!("\n| fault | rounds | repeats | longest round | losses |\n|---|---|---|---|---|");
        for (fault, row) in &self.0 {
            let longest = row.longest.as_secs_f32();
            println!(
                "| {} | {} | {} | {longest:.0} s | {} |",
                fault.words(),
                row.rounds,
                row.times,
                row.losses
            );
        }
        let sum = |of: fn(&Row) -> usize| self.0.values().map(of).sum::<usize>();
        println!("| all | {} | {} | | {} |", sum(|r| r.rounds), sum(|r| r.times), sum(|r| r.losses));
        println!(
            "\n{:.0} s, {} writes of users ({} retries), {} snapshots missing for a while, {} crashes of confrev",
            took.as_secs_f32(),
            site.writes(),
            site.retries.load(Ordering::Relaxed),
            site.gaps.load(Ordering::Relaxed),
            replicas.crashes,
        );
    }
}
