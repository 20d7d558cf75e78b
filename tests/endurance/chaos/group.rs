//! A ConfigMap or Secret and the workloads that use it. One thread makes all changes to them, one after the other. So
//! the expected state of each workload is known at any time, whatever happens to confrev and to the control plane.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use confrev_core_test_support::world::is_marked;
use http::Method;
use serde_json::{Value, json};

use crate::dice::Dice;
use crate::kind::{Kind, SOURCES, Source, Workload, template, text};
use crate::site::{APPLY, JSON, JSON_PATCH, MERGE, Site};

/// The image and the content of a revision.
pub(crate) type Revision = (String, String);

/// The history limit of a workload that changes all the time.
const FEW: usize = 3;
/// The history limit of a workload whose revisions are counted.
pub(crate) const ALL: usize = 1000;
/// Annotations that `kubectl rollout undo` keeps.
const SKIPPED: [&str; 6] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    "deployment.kubernetes.io/revision",
    "deployment.kubernetes.io/revision-history",
    "deployment.kubernetes.io/desired-replicas",
    "deployment.kubernetes.io/max-replicas",
    "deprecated.deployment.rollback.to",
];

pub(crate) struct Group {
    pub(crate) site: Arc<Site>,
    pub(crate) source: Source,
    /// True: one change in each round, so every revision is known. False: continuous changes, and few revisions are
    /// kept.
    pub(crate) counted: bool,
    /// The present content of the source.
    pub(crate) content: String,
    /// All contents that the source has had.
    pub(crate) contents: BTreeSet<String>,
    pub(crate) workloads: Vec<Held>,
    dice: Dice,
    steps: u32,
}

/// A workload, and its expected state.
pub(crate) struct Held {
    pub(crate) workload: Workload,
    pub(crate) image: String,
    /// The content that an undo pinned; `None`: the present content.
    pub(crate) at: Option<String>,
    /// The content of an undo that confrev did not answer. If the source changes before the answer, the undo may hold.
    pub(crate) unanswered: Option<String>,
    /// The revisions that must exist, and those that may exist.
    pub(crate) required: BTreeSet<Revision>,
    pub(crate) allowed: BTreeSet<Revision>,
    /// The changes of the workload and of its source.
    pub(crate) story: Vec<String>,
}

impl Held {
    pub(crate) fn new(workload: Workload, image: &str) -> Self {
        Self {
            workload,
            image: image.to_owned(),
            at: None,
            unanswered: None,
            required: BTreeSet::new(),
            allowed: BTreeSet::new(),
            story: Vec::new(),
        }
    }

    /// The last changes of the workload.
    pub(crate) fn last(&self) -> &[String] {
        &self.story[self.story.len().saturating_sub(8)..]
    }
}

impl Group {
    /// Creates the source and `of_each_kind` workloads of each kind. Every second group is counted. Half of the counted
    /// groups, and half of the others, have a Secret.
    pub(crate) fn create(site: &Arc<Site>, number: usize, of_each_kind: usize, dice: Dice) -> Self {
        let kind = SOURCES[number.div_ceil(2) % SOURCES.len()];
        let source = Source { namespace: site.namespace.clone(), kind, name: format!("demo-{number}") };
        let content = format!("{}: 0", source.name);
        site.write(&Method::POST, &site.sources(kind), (JSON, &source.manifest(&content)), true);
        let kinds = (0..of_each_kind).flat_map(|_| Kind::ALL).enumerate();
        let workloads = kinds.map(|(index, kind)| {
            let workload = Workload::new(kind, format!("web-{number}-{index}"), &source);
            Held::new(workload, "app:0")
        });
        let mut group = Self {
            site: Arc::clone(site),
            counted: number.is_multiple_of(2),
            content: content.clone(),
            contents: BTreeSet::from([content]),
            workloads: workloads.collect(),
            source,
            dice,
            steps: 0,
        };
        (0..group.workloads.len()).for_each(|index| group.apply(index, "app:0"));
        group
    }

    /// The snapshots of all contents that the source has had, and their data.
    pub(crate) fn snapshots(&self) -> impl Iterator<Item = (String, Value)> {
        self.contents.iter().map(|text| (self.source.snapshot(text), self.source.data(text)))
    }

    /// The content that a workload must use.
    pub(crate) fn wanted<'a>(&'a self, held: &'a Held) -> &'a str {
        held.at.as_ref().unwrap_or(&self.content)
    }

    /// The load of one round, for as long as `go_on` returns true.
    pub(crate) fn run(&mut self, go_on: &dyn Fn() -> bool) {
        if self.counted {
            // The random delay varies the moment of the fault; the test waits for nothing here.
            thread::sleep(Duration::from_millis(self.dice.below(6000)));
            return self.step();
        }
        while go_on() {
            self.step();
            thread::sleep(Duration::from_millis(self.dice.between(100, 1500)));
        }
    }

    fn step(&mut self) {
        self.steps += 1;
        let workload = usize::try_from(self.dice.below(self.workloads.len() as u64)).unwrap();
        let image = format!("app:{}", self.steps);
        match self.dice.below(12) {
            0..=3 => {
                let content = self.next_content();
                self.edit(content);
            }
            4 | 5 => self.set_image(workload, &image),
            6 => {
                let content = self.next_content();
                let required = self.workloads[workload].required.clone();
                self.edit(content);
                // Both changes make one revision, or two if the apply is late.
                self.workloads[workload].required = required;
                self.apply(workload, &image);
            }
            7 => self.apply(workload, &image),
            8 | 9 => self.undo(workload),
            10 => self.roll(workload),
            _ => self.scale(workload),
        }
    }

    /// A new content. If changes are far apart, it is sometimes an earlier content.
    fn next_content(&mut self) -> String {
        if self.counted && self.dice.percent(25) {
            let all: Vec<_> = self.contents.iter().cloned().collect();
            return self.dice.pick(&all).clone();
        }
        format!("{}: {}", self.source.name, self.steps)
    }

    fn edit(&mut self, content: String) {
        let path = format!("{}/{}", self.site.sources(self.source.kind), self.source.name);
        // Before the write: confrev may act on the write long before its response arrives.
        self.contents.insert(content.clone());
        if content != self.content {
            for held in &mut self.workloads {
                held.allowed.insert((held.image.clone(), content.clone()));
            }
        }
        for index in 0..self.workloads.len() {
            if self.workloads[index].unanswered.is_some() {
                let live = self.site.until_done("a read", || self.site.get(&self.path(index)));
                if !live.is_some_and(|live| is_marked(&live)) {
                    self.workloads[index].unanswered = None;
                }
            }
        }
        let change = json!({"data": self.source.data(&content)});
        self.site.write(&Method::PATCH, &path, (MERGE, &change), true);
        if content != self.content {
            self.content = content;
            for index in 0..self.workloads.len() {
                self.turned(index, None);
                self.tell(index, "edit");
            }
        }
    }

    /// From now on, the workload is pinned to a content, or follows its source.
    fn turned(&mut self, index: usize, at: Option<String>) {
        self.workloads[index].at = at;
        let revision = (self.workloads[index].image.clone(), self.wanted(&self.workloads[index]).to_owned());
        let held = &mut self.workloads[index];
        if !self.counted {
            held.required.clear();
        }
        held.required.insert(revision.clone());
        held.allowed.insert(revision);
    }

    fn tell(&mut self, index: usize, what: &str) {
        let image = &self.workloads[index].image;
        let line = format!("{what}: {image} at {:?}", self.wanted(&self.workloads[index]));
        self.workloads[index].story.push(line);
    }

    /// The response must have the expected content: admission has resolved it, not the controller. Without an answer of confrev, it has
    /// a content that the source has had, and the controller moves it later.
    fn fresh(&mut self, index: usize, answer: Option<Value>) {
        let Some(answer) = answer else { return };
        let held = &self.workloads[index];
        let wanted = self.source.snapshot(self.wanted(held));
        let found = self.source.named(template(&answer));
        if found.as_ref() == Ok(&wanted) {
            return;
        }
        let is_unanswered = |content: &String| found.as_ref() == Ok(&self.source.snapshot(content));
        if (is_marked(&answer) || self.workloads[index].unanswered.as_ref().is_some_and(is_unanswered))
            && let Some(carried) = self.revision(&answer)
        {
            self.workloads[index].allowed.insert(carried);
            return self.tell(index, "carried");
        }
        let (name, last) = (held.workload.reference(), held.last());
        self.site
            .lost("fresh", format!("{name} was admitted with {found:?}, not {wanted}; {last:#?}: {answer}"));
    }

    fn path(&self, index: usize) -> String {
        self.site.path(&self.workloads[index].workload)
    }

    /// Applies like `kubectl apply --server-side`: the template names the source.
    fn apply(&mut self, index: usize, image: &str) {
        let held = &mut self.workloads[index];
        image.clone_into(&mut held.image);
        let manifest = held.workload.manifest(image, if self.counted { ALL } else { FEW });
        let path = format!("{}?fieldManager=user&force=true", self.path(index));
        let answer = self.site.write(&Method::PATCH, &path, (APPLY, &manifest), false);
        self.workloads[index].unanswered = None;
        self.turned(index, None);
        self.tell(index, "apply");
        self.fresh(index, answer);
    }

    /// Changes the template, but not the reference.
    fn set_image(&mut self, index: usize, image: &str) {
        let patch =
            json!([{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": image}]);
        image.clone_into(&mut self.workloads[index].image);
        let answer = self.site.write(&Method::PATCH, &self.path(index), (JSON_PATCH, &patch), false);
        let at = self.workloads[index].at.clone();
        self.turned(index, at);
        self.tell(index, "set image");
        self.fresh(index, answer);
    }

    /// Ends a pin, as a user does.
    fn roll(&mut self, index: usize) {
        let patch =
            json!({"metadata": {"annotations": {"confrev.dev/roll": format!("please-{}", self.steps)}}});
        let answer = self.site.write(&Method::PATCH, &self.path(index), (MERGE, &patch), false);
        self.workloads[index].unanswered = None;
        self.turned(index, None);
        self.tell(index, "roll");
        self.fresh(index, answer);
    }

    fn scale(&mut self, index: usize) {
        let patch = json!({"spec": {"replicas": self.dice.between(0, 3)}});
        self.site.write(&Method::PATCH, &self.path(index), (MERGE, &patch), true);
    }

    /// Undoes to an earlier revision, as the tools of both kinds do.
    fn undo(&mut self, index: usize) {
        let site = Arc::clone(&self.site);
        let (path, choice) = (self.path(index), self.dice.below(1000));
        let mut attempt: Option<(Revision, Option<String>)> = None;
        let mut is_same = false;
        let answer = site.until_done("an undo", || {
            let live = site.get(&path)?;
            let held = &self.workloads[index];
            let mut revisions = site.revisions_of(&held.workload)?;
            let present = self.revision(&live);
            // The response of the previous attempt may have been lost.
            if attempt.is_some() && attempt.as_ref().map(|(revision, _)| revision) == present.as_ref() {
                return Ok(Some(live));
            }
            revisions.retain(|object| {
                self.revision(object) != present && object["metadata"]["deletionTimestamp"].is_null()
            });
            if revisions.is_empty() {
                return Ok(None);
            }
            let chosen = &revisions[usize::try_from(choice).unwrap() % revisions.len()];
            let (image, content) = self.revision(chosen).ok_or("the revision has an unknown content")?;
            // If both refer to the same snapshot, the reference does not change. The undo still rejects a pending change.
            is_same = present.is_some_and(|(_, present)| present == content);
            let is_pending = held.at.is_none() && content != self.content;
            let at = if is_same && !is_pending { held.at.clone() } else { Some(content) };
            attempt = Some(((image, at.clone().unwrap_or_else(|| self.content.clone())), at));
            site.try_write(&Method::PATCH, &path, (JSON_PATCH, &undo_patch(&live, chosen)), false).map(Some)
        });
        let (Some(Some(answer)), Some(((image, _), at))) = (answer, attempt) else { return };
        // The API server alone does not know what is pending: an undo that changes no reference rejects nothing then.
        let at = if is_marked(&answer) && is_same { self.workloads[index].at.clone() } else { at };
        self.workloads[index].image = image;
        self.workloads[index].unanswered = at.clone().filter(|_| is_marked(&answer));
        self.turned(index, at);
        self.tell(index, "undo");
        self.fresh(index, Some(answer));
    }

    /// The image and the content of a workload or a revision; `None` if the content is unknown.
    pub(crate) fn revision(&self, object: &Value) -> Option<Revision> {
        let template = template(object);
        let name = self.source.named(template).ok()?;
        let content = self.contents.iter().find(|content| self.source.snapshot(content) == name)?;
        Some((text(&template["spec"]["containers"][0]["image"]), content.clone()))
    }
}

/// The template of a revision and, for a Deployment, its annotations, on condition that nothing has changed.
fn undo_patch(live: &Value, revision: &Value) -> Value {
    let mut template = template(revision).clone();
    // ControllerRevisions contain this directive for a strategic merge.
    template.as_object_mut().unwrap().remove("$patch");
    let labels = template["metadata"]["labels"].as_object_mut().unwrap();
    labels.retain(|label, _| !label.ends_with("pod-template-hash"));
    let mut patch = vec![
        json!({"op": "test", "path": "/metadata/resourceVersion", "value": live["metadata"]["resourceVersion"]}),
        json!({"op": "replace", "path": "/spec/template", "value": template}),
    ];
    if live["kind"] == "Deployment" {
        let of = |object: &Value, skipped: bool| {
            let all = object["metadata"]["annotations"].as_object().cloned().unwrap_or_default();
            all.into_iter().filter(move |(key, _)| SKIPPED.contains(&key.as_str()) == skipped)
        };
        let annotations: serde_json::Map<_, _> = of(live, true).chain(of(revision, false)).collect();
        patch.push(json!({"op": "replace", "path": "/metadata/annotations", "value": annotations}));
    }
    json!(patch)
}
