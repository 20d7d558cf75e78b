//! Every promise that can be seen at rest.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::group::{Group, Held};
use crate::manifests::Kind;
use crate::site::{Site, by_name, name_of_snapshot, named};
use crate::world::{SNAPSHOTS, name_of, text};

/// How long it may take until everything is right again. The machine may be busy.
const LIMIT: Duration = Duration::from_mins(3);
/// How long nothing may change then.
const QUIET: Duration = Duration::from_secs(4);
const PAUSE: Duration = Duration::from_millis(300);

/// What there is, as one look at it saw it.
pub(crate) struct Seen {
    workloads: BTreeMap<(&'static str, String), Value>,
    replica_sets: Vec<Value>,
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
        let replica_sets = site.list(&site.replica_sets())?;
        let snapshots = by_name(site.list(&format!("{}?labelSelector={SNAPSHOTS}", site.configmaps()))?);
        let mut others = by_name(site.list(&site.configmaps())?);
        others.retain(|name, _| !snapshots.contains_key(name));
        Ok(Self { workloads, replica_sets, snapshots, others })
    }

    /// What every object is at.
    fn versions(&self) -> BTreeSet<String> {
        let all = self.workloads.values().chain(&self.replica_sets).chain(self.snapshots.values());
        all.map(|object| format!("{} {}", object["metadata"]["uid"], object["metadata"]["resourceVersion"]))
            .collect()
    }

    /// The first thing that is not as promised.
    pub(crate) fn check(&self, groups: &[Group], plain: &[Held]) -> Result<(), String> {
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
        self.check_snapshots(groups, &used)
    }

    fn live(&self, held: &Held) -> Result<&Value, String> {
        let key = (held.workload.kind.name(), held.workload.name.clone());
        self.workloads.get(&key).ok_or_else(|| format!("contained: {} is gone", held.workload.reference()))
    }

    fn sets<'a>(&'a self, held: &'a Held) -> impl Iterator<Item = &'a Value> {
        self.replica_sets.iter().filter(|set| set["metadata"]["labels"]["app"] == *held.workload.name)
    }

    /// `rolls` and `sticks`: it is at the right content, by as many revisions as there were reasons.
    fn check_workload(
        &self,
        group: &Group,
        held: &Held,
        used: &mut BTreeMap<String, Vec<String>>,
    ) -> Result<(), String> {
        let name = held.workload.reference();
        let live = self.live(held)?;
        let wanted = name_of_snapshot(&group.source, group.wanted(held));
        let at = named(&live["spec"]["template"], &group.source);
        if at.as_ref() != Ok(&wanted) {
            let promise = if held.at.is_some() { "sticks" } else { "rolls" };
            let last = &held.story[held.story.len().saturating_sub(8)..];
            return Err(format!("{promise}: {name} is at {at:?}, not {wanted}; {last:#?}"));
        }
        if live["spec"]["template"]["spec"]["containers"][0]["image"] != *held.image {
            return Err(format!("contained: {name} has another image than {}", held.image));
        }
        used.entry(wanted).or_default().push(text(&live["metadata"]["uid"]));
        let mut revisions = BTreeSet::new();
        for set in self.sets(held) {
            let revision = group
                .revision(set)
                .ok_or_else(|| format!("frozen: {} names what {} never held", name_of(set), group.source))?;
            let snapshot = name_of_snapshot(&group.source, &revision.1);
            used.entry(snapshot).or_default().push(text(&set["metadata"]["uid"]));
            if !held.allowed.contains(&revision) {
                return Err(format!("rolls: {name} has a revision {revision:?} that nobody asked for"));
            }
            if !revisions.insert(revision.clone()) {
                return Err(format!("rolls: {name} has two revisions {revision:?}"));
            }
        }
        let missed: Vec<_> = held.required.difference(&revisions).collect();
        if missed.is_empty() { Ok(()) } else { Err(format!("rolls: {name} never had {missed:?}")) }
    }

    fn check_source(&self, group: &Group) -> Result<(), String> {
        let source = &group.source;
        let object = self.others.get(source).ok_or_else(|| format!("no-leak: {source} is gone"))?;
        let changed =
            object["data"]["text"] != *group.content || !object["metadata"]["ownerReferences"].is_null();
        if changed { Err(format!("contained: {source} was changed")) } else { Ok(()) }
    }

    /// `contained`: nothing of confrev is on what is not opted in.
    fn check_plain(&self, held: &Held) -> Result<(), String> {
        let (name, live) = (held.workload.reference(), self.live(held)?);
        let marked = live["spec"]["template"].to_string().contains("confrev")
            || live["metadata"]["annotations"]["confrev.dev/seen"].is_string();
        if marked {
            return Err(format!("contained: {name} is marked"));
        }
        let revisions: BTreeSet<_> = self
            .sets(held)
            .map(|set| text(&set["spec"]["template"]["spec"]["containers"][0]["image"]))
            .collect();
        let wanted: BTreeSet<_> = held.required.iter().map(|(image, _)| image.clone()).collect();
        if revisions == wanted && self.sets(held).count() == wanted.len() {
            Ok(())
        } else {
            Err(format!("contained: {name} has the revisions {revisions:?}, not {wanted:?}"))
        }
    }

    /// `frozen`, `kept` and `no-leak`.
    fn check_snapshots(&self, groups: &[Group], used: &BTreeMap<String, Vec<String>>) -> Result<(), String> {
        let contents: BTreeMap<_, _> = groups
            .iter()
            .flat_map(|group| group.contents.iter().map(|text| (name_of_snapshot(&group.source, text), text)))
            .collect();
        for (name, users) in used {
            let snapshot = self.snapshots.get(name).ok_or_else(|| format!("kept: {name} is gone"))?;
            if snapshot["immutable"] != true
                || contents.get(name).is_none_or(|c| snapshot["data"]["text"] != **c)
            {
                return Err(format!("frozen: {name} holds {}", snapshot["data"]));
            }
            let owners = snapshot["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
            let owners: Vec<_> = owners.iter().map(|owner| text(&owner["uid"])).collect();
            if let Some(user) = users.iter().find(|user| !owners.contains(user)) {
                return Err(format!("kept: {name} is not bound to its user {user}, only to {owners:?}"));
            }
        }
        // By default a source keeps its newest one.
        let kept: BTreeSet<_> =
            groups.iter().map(|group| name_of_snapshot(&group.source, &group.content)).collect();
        let left: Vec<_> =
            self.snapshots.keys().filter(|name| !used.contains_key(*name) && !kept.contains(*name)).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("no-leak: {left:?} are left over")) }
    }
}

/// Waits until every promise holds and nothing changes any more. What does not hold in the end is a loss.
pub(crate) fn rest(site: &Site, groups: &[Group], plain: &[Held]) {
    let start = Instant::now();
    let (mut since, mut versions) = (Instant::now(), BTreeSet::new());
    loop {
        let seen = Seen::look(site);
        let broken = match &seen {
            Err(reason) => Some(reason.clone()),
            Ok(seen) => {
                if seen.versions() != versions {
                    (since, versions) = (Instant::now(), seen.versions());
                }
                seen.check(groups, plain).err()
            }
        };
        match broken {
            None if since.elapsed() >= QUIET => return,
            None if start.elapsed() > LIMIT => return site.lost("quiet", "it does not come to rest"),
            Some(reason) if start.elapsed() > LIMIT => return site.lost("at rest", reason),
            _ => std::thread::sleep(PAUSE),
        }
    }
}

/// Looks while things fail: how often a snapshot was not there though a ReplicaSet that refers to it was.
///
/// confrev makes again what the collector takes while its owners change, so this is told and is no loss by itself: what
/// is not made again is one at rest.
pub(crate) fn gaps(site: &Site, go_on: &dyn Fn() -> bool) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    while go_on() {
        found.extend(look_for_gaps(site).unwrap_or_default());
        std::thread::sleep(PAUSE);
    }
    found
}

fn look_for_gaps(site: &Site) -> Result<Vec<String>, String> {
    let sets = site.list(&site.replica_sets())?;
    let snapshots = by_name(site.list(&format!("{}?labelSelector={SNAPSHOTS}", site.configmaps()))?);
    let mut gaps = Vec::new();
    for set in sets {
        let volume = text(&set["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"]);
        let entered = set["spec"]["template"]["metadata"]["annotations"]["confrev.dev/sources"].is_string();
        // The ReplicaSet was there before the list of snapshots, and is there after it.
        if entered
            && !snapshots.contains_key(&volume)
            && let Ok(still) = site.get(&format!("{}/{}", site.replica_sets(), name_of(&set)))
            && still["metadata"]["uid"] == set["metadata"]["uid"]
            && still["metadata"]["deletionTimestamp"].is_null()
        {
            gaps.push(volume);
        }
    }
    Ok(gaps)
}

/// `quiet`: what every object is at.
pub(crate) fn versions(site: &Site) -> Result<BTreeSet<String>, String> {
    Seen::look(site).map(|seen| seen.versions())
}
