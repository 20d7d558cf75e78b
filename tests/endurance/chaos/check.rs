//! Checks of every promise that is observable at rest.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::group::{Group, Held};
use crate::kind::{Kind, REVISIONS, in_volume, name_of, template, text};
use crate::site::{Site, by_name};
use crate::waves::Waves;

/// Time limit until every promise holds again. The machine may be busy.
const LIMIT: Duration = Duration::from_mins(3);
/// How long nothing may change after that.
const QUIET: Duration = Duration::from_secs(4);
const PAUSE: Duration = Duration::from_millis(300);

/// All objects, as listed at one time.
pub(crate) struct Seen {
    workloads: BTreeMap<(&'static str, String), Value>,
    revisions: Vec<Value>,
    snapshots: BTreeMap<String, Value>,
    others: BTreeMap<String, Value>,
}

impl Seen {
    pub(crate) fn look(site: &Site) -> Result<Self, String> {
        let mut workloads = BTreeMap::new();
        for kind in Kind::ALL {
            let all = by_name(site.list(&kind.path(&site.namespace))?);
            workloads.extend(all.into_iter().map(|(name, object)| ((kind.name(), name), object)));
        }
        let (revisions, snapshots) = (site.all_revisions()?, site.snapshots()?);
        let mut others = site.all_of_sources("")?;
        others.retain(|name, _| !snapshots.contains_key(name));
        Ok(Self { workloads, revisions, snapshots, others })
    }

    /// The versions of all objects.
    fn versions(&self) -> BTreeSet<String> {
        let all = self.workloads.values().chain(&self.revisions).chain(self.snapshots.values());
        let version = |object: &Value| {
            let metadata = &object["metadata"];
            format!("{} {} {}", metadata["name"], metadata["uid"], metadata["resourceVersion"])
        };
        all.map(version).collect()
    }

    /// Returns the first broken promise.
    pub(crate) fn check(&self, groups: &[Group], plain: &[Held], waves: &Waves) -> Result<(), String> {
        let mut used: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for group in groups {
            for held in &group.workloads {
                self.check_workload(group, held, &mut used)?;
            }
            self.check_source(group)?;
        }
        for held in plain {
            self.check_plain(held)?;
        }
        waves.check(&self.workloads, &self.revisions, &self.snapshots, &mut used)?;
        self.check_snapshots(groups, waves, &used)
    }

    fn live(&self, held: &Held) -> Result<&Value, String> {
        let key = (held.workload.kind.name(), held.workload.name.clone());
        self.workloads.get(&key).ok_or_else(|| format!("contained: {} is gone", held.workload.reference()))
    }

    fn revisions<'a>(&'a self, held: &'a Held) -> impl Iterator<Item = &'a Value> {
        self.revisions.iter().filter(|object| object["metadata"]["labels"]["app"] == *held.workload.name)
    }

    /// `rolls` and `sticks`: the workload uses the right content, and has a revision for each reason and no other.
    fn check_workload(
        &self,
        group: &Group,
        held: &Held,
        used: &mut BTreeMap<String, Vec<String>>,
    ) -> Result<(), String> {
        let name = held.workload.reference();
        let live = self.live(held)?;
        let wanted = group.source.snapshot(group.wanted(held));
        let at = group.source.named(template(live));
        let unanswered = held.unanswered.as_ref().filter(|_| held.at.is_none());
        let unanswered = unanswered.map(|content| group.source.snapshot(content));
        let holds = unanswered.is_some_and(|snapshot| at.as_ref() == Ok(&snapshot));
        let wanted = if holds { at.clone().unwrap_or(wanted) } else { wanted };
        if at.as_ref() != Ok(&wanted) {
            let promise = if held.at.is_some() { "sticks" } else { "rolls" };
            let last = held.last();
            return Err(format!("{promise}: {name} is at {at:?}, not {wanted}; {last:#?}"));
        }
        if live["spec"]["template"]["spec"]["containers"][0]["image"] != *held.image {
            return Err(format!("contained: {name} has another image than {}", held.image));
        }
        used.entry(wanted).or_default().push(text(&live["metadata"]["uid"]));
        let mut revisions = BTreeSet::new();
        for object in self.revisions(held) {
            let revision = group.revision(object).ok_or_else(|| {
                format!("frozen: {} refers to content that {} never had", name_of(object), group.source.name)
            })?;
            let snapshot = group.source.snapshot(&revision.1);
            used.entry(snapshot).or_default().push(text(&object["metadata"]["uid"]));
            if !held.allowed.contains(&revision) {
                return Err(format!("rolls: {name} has a revision {revision:?} without a reason"));
            }
            if !revisions.insert(revision.clone()) {
                return Err(format!("rolls: {name} has two revisions {revision:?}"));
            }
        }
        let missed: Vec<_> = held.required.difference(&revisions).collect();
        if missed.is_empty() || holds { Ok(()) } else { Err(format!("rolls: {name} never had {missed:?}")) }
    }

    fn check_source(&self, group: &Group) -> Result<(), String> {
        let source = &group.source;
        let object =
            self.others.get(&source.name).ok_or_else(|| format!("no-leak: {} is gone", source.name))?;
        let changed =
            object["data"] != source.data(&group.content) || !object["metadata"]["ownerReferences"].is_null();
        if changed { Err(format!("contained: {} was changed", source.name)) } else { Ok(()) }
    }

    /// `contained`: confrev has written nothing on a workload that is not opted in.
    fn check_plain(&self, held: &Held) -> Result<(), String> {
        let (name, live) = (held.workload.reference(), self.live(held)?);
        let marked = live["spec"]["template"].to_string().contains("confrev")
            || live["metadata"]["annotations"]["confrev.dev/state"].is_string();
        if marked {
            return Err(format!("contained: {name} is marked"));
        }
        let revisions: BTreeSet<_> = self
            .revisions(held)
            .map(|object| text(&template(object)["spec"]["containers"][0]["image"]))
            .collect();
        let wanted: BTreeSet<_> = held.required.iter().map(|(image, _)| image.clone()).collect();
        if revisions == wanted && self.revisions(held).count() == wanted.len() {
            Ok(())
        } else {
            Err(format!("contained: {name} has the revisions {revisions:?}, not {wanted:?}"))
        }
    }

    /// `frozen`, `kept` and `no-leak`.
    fn check_snapshots(
        &self,
        groups: &[Group],
        waves: &Waves,
        used: &BTreeMap<String, Vec<String>>,
    ) -> Result<(), String> {
        let contents: BTreeMap<_, _> =
            groups.iter().flat_map(Group::snapshots).chain(waves.snapshots()).collect();
        for (name, users) in used {
            let snapshot = self.snapshots.get(name).ok_or_else(|| format!("kept: {name} is gone"))?;
            if snapshot["immutable"] != true
                || contents.get(name).is_none_or(|data| snapshot["data"] != *data)
            {
                return Err(format!("frozen: {name} holds {}", snapshot["data"]));
            }
            let owners = snapshot["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
            let owners: Vec<_> = owners.iter().map(|owner| text(&owner["uid"])).collect();
            if let Some(user) = users.iter().find(|user| !owners.contains(user)) {
                return Err(format!("kept: {name} is not bound to its user {user}, only to {owners:?}"));
            }
        }
        // By default a source keeps its newest snapshot.
        let kept: BTreeSet<_> = groups
            .iter()
            .map(|group| group.source.snapshot(&group.content))
            .chain([waves.present()])
            .collect();
        let left: Vec<_> =
            self.snapshots.keys().filter(|name| !used.contains_key(*name) && !kept.contains(*name)).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("no-leak: {left:?} are left over")) }
    }
}

/// Waits until every promise holds and nothing changes any more. A promise that is still broken then is a loss.
pub(crate) fn rest(site: &Site, groups: &[Group], plain: &[Held], waves: &Waves) {
    let start = Instant::now();
    let (mut since, mut versions, mut changed) = (Instant::now(), BTreeSet::new(), Vec::new());
    loop {
        let seen = Seen::look(site);
        let broken = match &seen {
            Err(reason) => Some(reason.clone()),
            Ok(seen) => {
                let found = seen.versions();
                if found != versions {
                    changed = found.symmetric_difference(&versions).cloned().collect();
                    (since, versions) = (Instant::now(), found);
                }
                seen.check(groups, plain, waves).err()
            }
        };
        match broken {
            None if since.elapsed() >= QUIET => return,
            None if start.elapsed() > LIMIT => {
                return site
                    .lost("quiet", format!("the objects do not come to rest: {}", changed.join(", ")));
            }
            Some(reason) if start.elapsed() > LIMIT => return site.lost("at rest", reason),
            _ => std::thread::sleep(PAUSE),
        }
    }
}

/// A false alarm is a loss too: no content is ever lost here, so no Event may report a loss.
pub(crate) fn alarms(site: &Site, known: &mut usize) {
    let path = format!("/api/v1/namespaces/{}/events?fieldSelector=reason=SnapshotLost", site.namespace);
    let Some(told) = site.until_done(&path, || site.list(&path)) else { return };
    for event in &told[(*known).min(told.len())..] {
        site.lost("kept", format!("reported as lost: {}", event["message"]));
    }
    *known = told.len();
}

/// Records, during faults, each snapshot that was missing while a revision referred to it.
///
/// confrev creates a snapshot again if the garbage collector deletes it while its owners change. So this is only
/// reported. A snapshot that is still missing at rest is a loss.
pub(crate) fn gaps(site: &Site, go_on: &dyn Fn() -> bool) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    while go_on() {
        found.extend(look_for_gaps(site).unwrap_or_default());
        std::thread::sleep(PAUSE);
    }
    found
}

fn look_for_gaps(site: &Site) -> Result<Vec<String>, String> {
    let mut revisions = Vec::new();
    for collection in REVISIONS.map(|collection| site.revisions(collection)) {
        let all = site.list(&collection)?;
        revisions
            .extend(all.into_iter().map(|object| (format!("{collection}/{}", name_of(&object)), object)));
    }
    let snapshots = site.snapshots()?;
    let mut gaps = Vec::new();
    for (path, object) in revisions {
        let template = template(&object);
        let Some(volume) = in_volume(template) else { continue };
        let entered = template["metadata"]["annotations"]["confrev.dev/sources"].is_string();
        // The revision existed before the snapshots were listed, and exists after it.
        if entered
            && !snapshots.contains_key(volume)
            && let Ok(still) = site.get(&path)
            && still["metadata"]["uid"] == object["metadata"]["uid"]
            && still["metadata"]["deletionTimestamp"].is_null()
        {
            gaps.push(volume.to_owned());
        }
    }
    Ok(gaps)
}

/// `quiet`: the versions of all objects.
pub(crate) fn versions(site: &Site) -> Result<BTreeSet<String>, String> {
    Seen::look(site).map(|seen| seen.versions())
}
