//! The actions: their forms, and the moves of the commands that they make.

use maud::{Markup, html};
use serde::Deserialize;

use super::{compare, layout, links::Links, rights::Right, settings::Settings};
use crate::{
    cli::{
        failure::Failure,
        flags::DryRun,
        history::{self, History},
        moves::{Common, Ends, Made, Pin, ToPresent, Track, Undo},
        objects::{OptedIn, Snapshot, SourceKey, source_name},
        restore,
        status::WorkloadStatus,
        target::{Flags, Target},
        waves,
    },
    snapshot::{Digest, ObjectName},
};

/// The path of previews, below that of the run.
pub(super) const PREVIEW: &str = "actions/preview";
/// The path of actions, below that of the run.
pub(super) const MAKE: &str = "actions/make";

/// A form, as the browser sends it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Asked {
    /// The secret of the forms.
    pub(super) form: String,
    action: String,
    /// The namespace of the object.
    pub(super) namespace: String,
    /// `Kind/name`, of a move of a workload.
    pub(super) workload: String,
    /// `Kind/name`.
    source: String,
    snapshot: String,
    revision: String,
    hold: String,
    all: String,
    /// The fingerprint of the preview that the user confirms.
    pub(super) confirmed: String,
}

/// The result of an action, or of trying it.
#[derive(Debug)]
pub(super) struct ActionResult {
    /// Lines for the user.
    pub(super) said: Vec<String>,
    /// The differences that it makes in the content that workloads or a source have.
    pub(super) differences: Markup,
    /// The versions of the sources that were compared: the differences of a Secret do not show what it has.
    versions: String,
}

impl ActionResult {
    /// A result without differences.
    fn of_line(said: String) -> Self {
        Self { said: vec![said], differences: Markup::default(), versions: String::new() }
    }

    /// The digest of the preview as it is shown. An action that the user confirms is executed only if its preview would still be the same.
    pub(super) fn fingerprint(&self) -> String {
        let text = self.said.join("\n") + &self.versions + &layout::to_text(self.differences.clone());
        Digest::of_bytes(text.as_bytes()).hex(64)
    }
}

impl Asked {
    /// The page of the object.
    pub(super) fn object_page(&self, links: Links) -> String {
        match source_name(&self.source) {
            Ok(source) if self.workload.is_empty() => links.source(&self.namespace, &source),
            _ => links.workload(&self.namespace, &self.workload),
        }
    }

    /// The action with its object, as a title.
    pub(super) fn title(&self) -> String {
        let object = if self.workload.is_empty() { &self.source } else { &self.workload };
        let verb = self.action.chars().next().map(char::to_uppercase).into_iter().flatten();
        format!("{}{} {object}", verb.collect::<String>(), self.action.chars().skip(1).collect::<String>())
    }

    /// The fields of the form, to send it again.
    pub(super) fn fields(&self) -> [(&'static str, &str); 8] {
        [
            ("action", &self.action),
            ("namespace", &self.namespace),
            ("workload", &self.workload),
            ("source", &self.source),
            ("snapshot", &self.snapshot),
            ("revision", &self.revision),
            ("hold", &self.hold),
            ("all", &self.all),
        ]
    }

    fn common(&self, dry_run: DryRun) -> Common {
        Common { workload: self.workload.clone(), dry_run: Some(dry_run), flags: Flags::default() }
    }

    /// Makes the action, or only tries it. These are the moves of the commands.
    pub(super) async fn make(
        &self,
        target: &Target,
        dry_run: DryRun,
        settings: &Settings,
    ) -> Result<ActionResult, Failure> {
        let only = Some(self.source.clone()).filter(|source| !source.is_empty());
        let (common, hold) = (self.common(dry_run), !self.hold.is_empty() || self.action == "hold");
        let source = || source_name(&self.source);
        let unknown = || Failure::Usage(format!("unknown action {:?}", self.action));
        let made: Made = match self.action.as_str() {
            "undo" => {
                let wrong = |_| Failure::Usage(format!("invalid revision {:?}", self.revision));
                let to_revision =
                    if self.revision.is_empty() { 0 } else { self.revision.parse().map_err(wrong)? };
                Undo { source: only, to_revision, hold, force: false, common }.make(target.clone()).await?
            }
            "pin" | "hold" => {
                let (source, snapshot) = (self.source.clone(), self.snapshot.clone());
                Pin { source, snapshot, hold, force: false, common }.make(target.clone()).await?
            }
            "unpin" => {
                let to_present = ToPresent { source: only, force: false, common };
                to_present.make(target.clone(), Ends::Decisions).await?
            }
            "pause" => Track { common }.make(target.clone(), false).await?,
            "resume" => Track { common }.make(target.clone(), true).await?,
            "restore" => {
                let snapshot = Some(self.snapshot.as_str()).filter(|name| !name.is_empty());
                return self.restore(target, source()?, snapshot, (dry_run, settings)).await;
            }
            "promote" | "abort" | "retry" => {
                let action = waves::parse_action(&self.action)?;
                let said =
                    waves::act(target, &source()?, action, !self.all.is_empty(), Some(dry_run)).await?;
                return Ok(ActionResult::of_line(said));
            }
            _ => return Err(unknown()),
        };
        let (differences, versions) = match &made.after {
            Some(after) if dry_run != DryRun::None => moved(target, &made, after, settings).await?,
            _ => Default::default(),
        };
        Ok(ActionResult { said: made.said, differences, versions })
    }

    async fn restore(
        &self,
        target: &Target,
        source: ObjectName,
        snapshot: Option<&str>,
        (dry_run, settings): (DryRun, &Settings),
    ) -> Result<ActionResult, Failure> {
        let restored = restore::restored(target, source.clone(), snapshot).await?;
        if restored.changes_nothing() {
            let said = format!("{source} already has the content of {}", restored.snapshot);
            return Ok(ActionResult::of_line(said));
        }
        let history = History::read(target, source.clone()).await?;
        let new = compare::side(&history, &restored.snapshot, settings)?;
        let old = compare::side(&history, compare::PRESENT, settings);
        let differences = old.map(|old| compare::view(&old, &new)).unwrap_or_default();
        restored.send(target, dry_run != DryRun::None).await?;
        Ok(ActionResult { said: vec![restored.said], differences, versions: version(&history) })
    }
}

/// The differences between the contents that a workload has and would have.
async fn moved(
    target: &Target,
    made: &Made,
    after: &OptedIn,
    settings: &Settings,
) -> Result<(Markup, String), Failure> {
    let mut versions = String::new();
    let before = made.before.iter().flat_map(|workload| &workload.record.uses);
    let mut shown = Vec::new();
    for used in before {
        let Some(old) = &used.snapshot else { continue };
        let then = after.record.uses.iter().find(|then| then.source == used.source);
        let Some(new) = then.and_then(|then| then.snapshot.as_ref()).filter(|new| *new != old) else {
            continue;
        };
        let history = match History::read(target, used.source.clone()).await {
            Ok(history) => history,
            Err(Failure::Refused(message)) => {
                shown.push(html! { p.problem { (message) } });
                continue;
            }
            Err(error) => return Err(error),
        };
        versions += &version(&history);
        let old = compare::side(&history, old, settings)?;
        // A dry run makes no snapshot of the present content.
        let new = compare::side(&history, new, settings)
            .or_else(|_| compare::side(&history, compare::PRESENT, settings))?;
        shown.push(html! { h2 { (used.source.name) } (compare::view(&old, &new)) });
    }
    Ok((html! { @for one in &shown { (one) } }, versions))
}

/// The version of a source as it is.
fn version(history: &History) -> String {
    let present = history.present.as_ref();
    present
        .map(|present| format!("{}@{}\n", history.source.name, present.resource_version))
        .unwrap_or_default()
}

/// The hidden fields of a form.
fn hidden(settings: &Settings, pairs: &[(&str, &str)]) -> Markup {
    let secret = settings.guard.as_ref().map(|guard| guard.form().text()).unwrap_or_default();
    html! {
        input type="hidden" name="form" value=(secret);
        @for (name, value) in pairs { input type="hidden" name=(name) value=(value); }
    }
}

/// A form that opens a preview. A button that cannot be used has its reason beside it.
fn form(
    settings: &Settings,
    pairs: &[(&str, &str)],
    (action, text): (&str, &str),
    right: &Right,
    fields: &Markup,
) -> Markup {
    let denied = match right {
        Right::Granted => None,
        Right::Denied(why) => Some(why),
    };
    html! {
        form.action method="post" action=(settings.links().at(PREVIEW)) {
            (hidden(settings, pairs))
            input type="hidden" name="action" value=(action);
            fieldset disabled[denied.is_some()] {
                (fields)
                button { (text) "…" }
            }
            @if let Some(why) = denied { p.why { "Not possible: " (why) "." } }
        }
    }
}

/// The actions of a workload.
pub(super) fn of_workload(
    workload: &OptedIn,
    status: &WorkloadStatus,
    snapshots: &[(&SourceKey, &Snapshot)],
    numbers: &[i64],
    right: &Right,
    settings: &Settings,
) -> Markup {
    let reference = workload.reference();
    let pairs = [("namespace", workload.namespace()), ("workload", reference.as_str())];
    let not =
        |why: &str| if *right == Right::Granted { Right::Denied(why.to_owned()) } else { right.clone() };
    let rolls = workload.kind.rolls;
    let move_right = if rolls { right.clone() } else { not("a stored Job never changes") };
    let hold = html! { label.check { input type="checkbox" name="hold" value="yes"; "hold it until unpin" } };
    html! {
        section.actions aria-labelledby="actions" {
            h2 #actions { "Actions" }
            @if settings.read_only { p.quiet { "The page is read-only: it was started with --read-only." } }
            @else {
                (form(settings, &pairs, ("undo", "Undo"), &move_right, &html! {
                    label { "Back to" select name="revision" {
                        option value="" { "the previous config" }
                        @for number in numbers { option value=(number) { "revision " (number) } }
                    } }
                    (hold)
                }))
                @for used in &status.sources {
                    @let of_source = snapshots.iter().filter(|(_, snapshot)| snapshot.source == used.object);
                    @let mut pairs = pairs.to_vec();
                    @let () = { pairs.push(("source", &used.source)); };
                    (form(settings, &pairs, ("pin", &format!("Pin {}", used.object.name)), &move_right, &html! {
                        label { "At" select name="snapshot" {
                            @for ((_, name), _) in of_source { option value=(name.name) { (name.name) } }
                        } }
                        (hold)
                    }))
                }
                (form(settings, &pairs, ("unpin", "Unpin"), &move_right, &html! {
                    span { "Roll to the present content, and end holds" }
                }))
                @if workload.record.track {
                    (form(settings, &pairs, ("pause", "Pause"), &move_right, &html! { span { "Ignore changes" } }))
                } @else {
                    (form(settings, &pairs, ("resume", "Resume"), &move_right, &html! { span { "Follow changes again" } }))
                }
            }
        }
    }
}

/// The actions of a source. `waves`: whether a change spreads in waves, or why it does not.
pub(super) fn of_source(
    history: &History,
    lines: &[history::Line],
    right: &Right,
    waves: Result<(), &str>,
    settings: &Settings,
) -> Markup {
    let source = format!("{}/{}", history.source.kind.as_str(), history.source.name);
    let pairs = [("namespace", history.namespace.as_str()), ("source", source.as_str())];
    let of_waves = match (right, waves) {
        (Right::Granted, Err(why)) => Right::Denied(why.to_owned()),
        _ => right.clone(),
    };
    let has_failed = lines.iter().any(|line| line.present && line.failed.is_some());
    let retry = if has_failed { right } else { &of_waves };
    html! {
        section.actions aria-labelledby="actions" {
            h2 #actions { "Actions" }
            @if settings.read_only { p.quiet { "The page is read-only: it was started with --read-only." } }
            @else {
                (form(settings, &pairs, ("restore", "Restore"), right, &html! {
                    label { "The content of" select name="snapshot" {
                        @for line in lines { option value=(line.snapshot) { (line.snapshot) @if line.present { " (present)" } } }
                    } }
                }))
                (form(settings, &pairs, ("promote", "Promote"), &of_waves, &html! {
                    span { "Begin the next wave now" }
                    label.check { input type="checkbox" name="all" value="yes"; "all further waves" }
                }))
                (form(settings, &pairs, ("abort", "Abort"), &of_waves, &html! { span { "Stop the change" } }))
                (form(settings, &pairs, ("retry", "Retry"), retry, &html! { span { "End an abort or a failure: try the content again" } }))
            }
        }
    }
}

/// The page that asks for a confirmation.
pub(super) fn preview(asked: &Asked, result: &ActionResult, is_changed: bool, settings: &Settings) -> Markup {
    let fingerprint = result.fingerprint();
    html! {
        @if is_changed { p.problem role="alert" { "Something changed since the last preview, and nothing was written. This is what would change now." } }
        p { "The API server and confrev have checked this change. Nothing is written yet." }
        ul.said { @for line in &result.said { li { (line) } } }
        (result.differences)
        form.confirm method="post" action=(settings.links().at(MAKE)) {
            (hidden(settings, &asked.fields()))
            input type="hidden" name="confirmed" value=(fingerprint);
            button.primary { "Confirm" }
            a href=(asked.object_page(settings.links())) { "Cancel" }
        }
    }
}
