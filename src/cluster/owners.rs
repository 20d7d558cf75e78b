//! Which owners of an object confrev added, by the object's managedFields.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::{annotations, uid::Uid, world::Owner};

/// The owners that others added; `None` if confrev added none, or managedFields do not show it.
pub fn owners_of_others(object: &[u8]) -> Option<Vec<Owner>> {
    let (own, others) = split(object);
    (!own.is_empty()).then_some(others)
}

/// All owners but those that confrev is known to have added.
pub fn owners_but_our_own(object: &[u8]) -> Vec<Owner> {
    split(object).1
}

/// The owners that confrev is known to have added.
pub fn own_owners(object: &[u8]) -> Vec<Owner> {
    split(object).0
}

/// The owners that confrev is known to have added, and all others. An object that cannot be read has none.
fn split(object: &[u8]) -> (Vec<Owner>, Vec<Owner>) {
    let object: Value = serde_json::from_slice(object).unwrap_or_default();
    let ours = entered_by_confrev(&object);
    let owners = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    owners.map(read).partition(|owner| ours.contains(&owner.uid))
}

/// The uids of owners that confrev added.
///
/// Source: Kubernetes, "Server-Side Apply": a merge key is written in `fieldsV1` as `k:{"uid":"…"}`.
fn entered_by_confrev(object: &Value) -> BTreeSet<Uid> {
    let managers = object["metadata"]["managedFields"].as_array();
    managers
        .into_iter()
        .flatten()
        .filter(|entry| entry["manager"] == annotations::MANAGER)
        .filter_map(|entry| entry["fieldsV1"]["f:metadata"]["f:ownerReferences"].as_object())
        .flat_map(|fields| fields.keys())
        .filter_map(|key| serde_json::from_str::<Value>(key.strip_prefix("k:")?).ok())
        .filter_map(|key| key["uid"].as_str().map(Uid::from))
        .collect()
}

fn read(owner: &Value) -> Owner {
    let text = |field: &str| owner[field].as_str().unwrap_or_default();
    Owner {
        controller: owner["controller"] == true,
        block_owner_deletion: owner["blockOwnerDeletion"] == true,
        ..Owner::new(text("apiVersion"), text("kind"), text("name"), text("uid"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_owners_recorded_by_confrev_are_its_own() {
        let owner =
            |uid: &str| json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": uid});
        let entered = |manager: &str, uid: &str| {
            let key = format!("k:{{\"uid\":\"{uid}\"}}");
            json!({"manager": manager, "fieldsV1": {"f:metadata": {"f:ownerReferences": {".": {}, key: {}}}}})
        };
        let object = |owners: &[&str], managers: Value| {
            let owners: Vec<_> = owners.iter().map(|uid| owner(uid)).collect();
            json!({"metadata": {"ownerReferences": owners, "managedFields": managers}}).to_string()
        };
        let both = json!([entered("confrev", "1"), entered("kubectl", "2")]);
        let others = owners_of_others(object(&["1", "2"], both.clone()).as_bytes()).unwrap();
        assert_eq!(others, [Owner::new("apps/v1", "Deployment", "web", "2")]);
        let own = own_owners(object(&["1", "2"], both.clone()).as_bytes());
        assert_eq!(own, [Owner::new("apps/v1", "Deployment", "web", "1")]);
        assert_eq!(owners_of_others(object(&["2"], both).as_bytes()), None, "the owner is already removed");
        assert_eq!(owners_of_others(object(&["1"], json!([entered("kubectl", "1")])).as_bytes()), None);
        assert_eq!(owners_of_others(b"{}"), None);
    }
}
