//! `kubectl confrev wait`: waits until all workloads that should run the current content do so. For pipelines.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use clap::Args;
use jiff::{SignedDuration, Timestamp};

use super::{
    delay::Delay,
    duration,
    failure::Failure,
    group,
    inventory::Inventory,
    objects::{OptedIn, Scope, source_name},
    output,
    pauses::{self, Pause},
    source_state::{self, SourceState},
    target::{Flags, Target},
    waves,
};
use crate::{annotations, gate_settings::Closed, gates::Why, resolve::Health, snapshot::ObjectName};

/// How often the state is read.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How long confrev may not answer before the command ends. A restart takes less.
const LONGEST_OUTAGE: Duration = Duration::from_secs(20);

/// Options of `wait`.
#[derive(Debug, Args)]
pub(super) struct WaitOptions {
    /// A source (NAME, configmap/NAME, secret/NAME), or a workload as kind/NAME.
    #[arg(required_unless_present = "selector", conflicts_with = "selector")]
    object: Option<String>,
    /// The workloads with these labels, such as app=web.
    #[arg(short = 'l', long, value_name = "LABELS")]
    selector: Option<String>,
    /// How long to wait.
    #[arg(long, default_value = "5m", value_name = "DURATION", value_parser = duration::duration)]
    timeout: Duration,
    /// Count a rollout as done that continues only after a command of a user: a paused canary, or a StatefulSet's partition.
    #[arg(long)]
    allow_paused: bool,
    /// Wait until each change in waves is complete: all its workloads have moved, are healthy and have baked.
    #[arg(long)]
    complete: bool,
    #[command(flatten)]
    flags: Flags,
}

impl WaitOptions {
    /// Whether it waits for all workloads of a source or with some labels.
    fn is_for_many(&self) -> bool {
        self.object.as_deref().is_none_or(|object| source_name(object).is_ok())
    }
}

/// The state of the workloads that the command waits for.
pub(super) enum WaitState {
    /// All run the current content; the number of workloads, and those that are paused.
    Done(usize, Vec<String>),
    /// Not yet done, and why.
    Waits(String),
    /// confrev does not answer.
    Unanswered(String),
    /// It needs an action of a user, and why.
    Stuck(String),
}

/// Runs the command.
pub(super) async fn run(options: &WaitOptions) -> Result<(), Failure> {
    let target = Target::find(&options.flags).await?;
    let scope = Scope::Namespace(target.namespace.clone());
    let deadline = Instant::now() + options.timeout;
    let mut is_first = true;
    // Since when confrev does not answer.
    let mut silent = None;
    loop {
        let inventory = Inventory::read_partly(&target, &scope).await?;
        if std::mem::take(&mut is_first) && !options.is_for_many() {
            inventory.unread.warn();
        }
        let reason = match progress(&target, &inventory, options, deadline).await? {
            WaitState::Done(0, _) => {
                return output::print_line(
                    "nothing to wait for: a Job keeps the content that it was created with",
                );
            }
            WaitState::Done(count, paused) => {
                let workloads = output::count(count, "workload");
                let verb = if count == 1 { "runs" } else { "run" };
                let paused = paused.join("; ");
                let paused = if paused.is_empty() { paused } else { format!(" ({paused})") };
                return output::print_line(&format!("{workloads} {verb} the present content{paused}"));
            }
            WaitState::Stuck(reason) => return Err(Failure::No(reason)),
            WaitState::Waits(reason) => {
                silent = None;
                reason
            }
            WaitState::Unanswered(reason) => {
                if silent.get_or_insert_with(Instant::now).elapsed() > LONGEST_OUTAGE {
                    return Err(Failure::No(reason));
                }
                reason
            }
        };
        if Instant::now() + CHECK_INTERVAL > deadline {
            return Err(Failure::No(format!("timed out after {:?}: {reason}", options.timeout)));
        }
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}

async fn progress(
    target: &Target,
    inventory: &Inventory,
    options: &WaitOptions,
    deadline: Instant,
) -> Result<WaitState, Failure> {
    let object = options.object.as_deref().unwrap_or_default();
    let source = source_name(object).ok();
    let concerned: Vec<&OptedIn> = match (&options.selector, &source) {
        (Some(selector), _) => {
            let scope = Scope::Namespace(target.namespace.clone());
            inventory.selected(target, &scope, selector).await?
        }
        (None, None) => vec![inventory.find(target, object)?],
        (None, Some(source)) => {
            let users = inventory.workloads.iter().filter(|workload| workload.sources().contains(source));
            users.collect()
        }
    };
    if options.is_for_many() {
        // A workload that is left out might not be done.
        let kinds: Vec<_> = target.kinds.iter().map(|kind| &*kind.plural).collect();
        inventory.unread.require(&kinds)?;
    }
    if concerned.is_empty() {
        let what = match (&options.selector, source) {
            (Some(selector), _) => format!("has the labels {selector}"),
            (None, Some(source)) => format!("uses {source}{}", inventory.hint_at_workload(object)),
            (None, None) => format!("is {object}"),
        };
        return Err(Failure::NotFound(format!(
            "no opted-in workload in namespace {:?} {what}",
            target.namespace
        )));
    }
    let (mut done, mut paused, mut waits) = (0, Vec::new(), None);
    for workload in &concerned {
        let how = (deadline, options.allow_paused);
        match of_workload(target, inventory, workload, source.as_ref(), how).await? {
            WaitState::Done(count, reasons) => {
                done += count;
                paused.extend(reasons);
            }
            waiting @ (WaitState::Waits(_) | WaitState::Unanswered(_)) => waits = waits.or(Some(waiting)),
            stuck @ WaitState::Stuck(_) => return Ok(stuck),
        }
    }
    if options.complete && waits.is_none() {
        let sources = concerned.iter().flat_map(|workload| workload.sources());
        let sources: BTreeSet<_> =
            sources.filter(|of| source.as_ref().is_none_or(|source| source == *of)).collect();
        waits = incomplete(target, inventory, &sources).await?.map(WaitState::Waits);
    }
    Ok(waits.unwrap_or(WaitState::Done(done, paused)))
}

/// Why a change of one of these sources is not complete, in all namespaces of its group; `None` if all are, or have no waves.
async fn incomplete(
    target: &Target,
    inventory: &Inventory,
    sources: &BTreeSet<&ObjectName>,
) -> Result<Option<String>, Failure> {
    let is_grouped = group::is_grouped(target).await?;
    for source in sources {
        let live = inventory.sources.get(&(target.namespace.clone(), (*source).clone()));
        let Some(live) = live else { continue };
        let Some(change) = waves::status_if_any(target, source, live, is_grouped).await? else { continue };
        if !change.complete {
            let why = change.waits().unwrap_or_else(|| "its workloads are not all healthy".to_owned());
            return Ok(Some(format!("{}: {why}", change.source)));
        }
    }
    Ok(None)
}

/// The state of a workload with a pending change.
fn pending(of: String, delay: Option<&Delay>, deadline: Instant) -> WaitState {
    let left = deadline.saturating_duration_since(Instant::now());
    let end = Timestamp::now().checked_add(SignedDuration::try_from(left).unwrap_or(SignedDuration::MAX));
    // A time that cannot be represented is later than each opening.
    let end = end.unwrap_or(Timestamp::MAX);
    match delay {
        Some(Delay::Shut { why, .. }) if why.needs_a_person() => WaitState::Stuck(of),
        Some(Delay::Shut { why: Why::Closed(Closed::Until { opens, .. }), .. })
            if opens.is_none_or(|opens| opens > end) =>
        {
            WaitState::Stuck(format!("{of}, after the timeout"))
        }
        Some(Delay::Unanswered(_)) => WaitState::Unanswered(of),
        _ => WaitState::Waits(of),
    }
}

/// The state of a workload that the command waits for. `source`: only towards this source.
pub(super) async fn of_workload(
    target: &Target,
    inventory: &Inventory,
    workload: &OptedIn,
    source: Option<&ObjectName>,
    (deadline, allow_paused): (Instant, bool),
) -> Result<WaitState, Failure> {
    let name = workload.reference();
    if let Some((of, is_opted_in)) = inventory.template_of(workload) {
        let then = if is_opted_in { "wait for" } else { "it is not opted in: label" };
        return Ok(WaitState::Stuck(format!("{name} takes its template from {of}: {then} {of} instead")));
    }
    let mut count = 1;
    for used in source_state::of_workload(target, inventory, workload).await? {
        if source.is_some_and(|source| *source != used.object) {
            continue;
        }
        let reason = used.reason.map(|reason| format!(": {reason}")).unwrap_or_default();
        let of = format!("{name}: {} {}{reason}", used.source, used.state.word());
        match used.state {
            SourceState::Current
            | SourceState::AsWritten
            | SourceState::Absent
            | SourceState::Bound
            | SourceState::Live => {}
            // A Job never changes, so it is not counted.
            SourceState::AsCreated => count = 0,
            SourceState::Pending => return Ok(pending(of, used.delay.as_ref(), deadline)),
            SourceState::Pinned => {
                return Ok(WaitState::Stuck(format!(
                    "{of}: an undo or a pin keeps its snapshot, see kubectl confrev unpin"
                )));
            }
            SourceState::Held if used.beneath.is_plain() => {}
            state @ (SourceState::Paused | SourceState::Held | SourceState::Refused) => {
                let remedy = match &used.delay {
                    Some(Delay::Shut { why, .. }) => why.remedy(&used.object, &name),
                    _ => None,
                };
                return Ok(WaitState::Stuck(match (state, remedy) {
                    (SourceState::Refused, Some(remedy)) => {
                        format!("{of}: correct the content, or run {remedy}")
                    }
                    // The reason says what to correct, and the controller reads the correction at once.
                    (SourceState::Refused, None) if matches!(used.delay, Some(Delay::Shut { .. })) => of,
                    (SourceState::Refused, None) => {
                        format!("{of}: remove the cause, and confrev tries again within a minute")
                    }
                    (_, Some(remedy)) => format!("{of}: to move it, run {remedy}"),
                    // The source is missing, or an undo or a pin keeps its content, too.
                    (_, None) => format!(
                        "{of}: annotation {} keeps its snapshot, see kubectl confrev unpin",
                        annotations::HOLD
                    ),
                }));
            }
            SourceState::SecretsOff => {
                return Ok(WaitState::Stuck(format!(
                    "{of}: enable them in the installation, or remove the annotation {} from the workload",
                    annotations::SECRETS
                )));
            }
            SourceState::Missing
            | SourceState::KeyMissing
            | SourceState::SourceGone
            | SourceState::Unknown => {
                return Ok(WaitState::Stuck(of));
            }
        }
    }
    if let Some(pause) = pauses::of(inventory, workload) {
        let Pause { at, then } = pause;
        return Ok(if allow_paused {
            WaitState::Done(count, vec![format!("{name}: {at}")])
        } else {
            WaitState::Stuck(format!("{name}: {at}; {then} (--allow-paused counts this as done)"))
        });
    }
    Ok(match workload.record.health {
        Health::Idle | Health::Settled => WaitState::Done(count, Vec::new()),
        Health::Unobserved | Health::Progressing => {
            WaitState::Waits(format!("{name}: its rollout is in progress"))
        }
        Health::Unavailable => WaitState::Waits(format!("{name}: some of its pods are not available")),
        Health::Failed => WaitState::Stuck(format!("{name}: its rollout failed")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resolve::{AnalysisRun, RunState, Wait};

    #[test]
    fn changes_that_wait_too_long_end_the_wait() {
        let deadline = Instant::now() + Duration::from_mins(5);
        let shut = |why| Some(Delay::Shut { why, reason: "shut".to_owned(), run: None });
        let closed =
            |opens| shut(Why::Closed(Closed::Until { name: "window", opens, reason: "closed".to_owned() }));
        let opens = |minutes: i64| closed(Some(Timestamp::now() + SignedDuration::from_mins(minutes)));
        let analysed = |state| shut(Why::Others(Wait::Analysis(AnalysisRun { name: "run".into(), state })));
        let of = |delay: Option<&Delay>| match pending("web".to_owned(), delay, deadline) {
            WaitState::Done(..) => "done".to_owned(),
            WaitState::Waits(said) => format!("waits: {said}"),
            WaitState::Unanswered(said) => format!("unanswered: {said}"),
            WaitState::Stuck(said) => format!("stuck: {said}"),
        };
        for (delay, wanted) in [
            (None, "waits: web"),
            (shut(Why::Others(Wait::Full)), "waits: web"),
            (opens(4), "waits: web"),
            (opens(6), "stuck: web, after the timeout"),
            (closed(None), "stuck: web, after the timeout"),
            (shut(Why::Others(Wait::Aborted)), "stuck: web"),
            (analysed(RunState::Running), "waits: web"),
            (analysed(RunState::Failed("failed".into())), "waits: web"),
            (analysed(RunState::Undecided("is inconclusive".into())), "stuck: web"),
            (Some(Delay::Unanswered("no".to_owned())), "unanswered: web"),
        ] {
            assert_eq!(of(delay.as_ref()), wanted, "{delay:?}");
        }
    }
}
