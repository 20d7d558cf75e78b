//! The strategies of the installation, and the contents that it refuses, for the commands.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use http::Method;
use serde_json::Value;
use tokio::{
    sync::{Mutex, OnceCell},
    time::Instant,
};

use super::output;
use crate::{
    annotations,
    cluster::{ApiError, KubeApi},
    resolve::{Observed, REFUSED_CONTENTS, RefusedContents, Strategies},
};

/// The ConfigMap in confrev's namespace that has the strategies as they are given to the program. The chart writes it.
const CONFIG_MAP: &str = "confrev-strategies";

/// How long the list of refused contents counts as known. Some commands wait for hours, and the dashboard runs for days.
const RECENT: Duration = Duration::from_secs(5);

/// When the list of refused contents was read, and what it said.
type ReadList = (Instant, Arc<RefusedContents>);

/// What the installation says about sources, read once when a source needs it.
#[derive(Clone, Debug)]
pub(super) struct InstalledStrategies {
    /// The namespace in which confrev is installed.
    home: String,
    /// `None`: they are unknown.
    strategies: Arc<OnceCell<Option<Strategies>>>,
    refused: Arc<Mutex<Option<ReadList>>>,
    /// The annotation `strategy` of each namespace that was read.
    of_namespaces: Arc<Mutex<BTreeMap<String, Option<String>>>>,
}

impl InstalledStrategies {
    /// Those of the confrev in this namespace. No call is made yet.
    pub(super) fn of(home: &str) -> Self {
        Self {
            home: home.to_owned(),
            strategies: Arc::default(),
            refused: Arc::default(),
            of_namespaces: Arc::default(),
        }
    }

    /// A source of this namespace, under the strategy that applies to it, and refused if the installation says so.
    pub(super) async fn apply(
        &self,
        api: &KubeApi,
        namespace: &str,
        source: Observed,
    ) -> Result<Observed, ApiError> {
        let source = source.refused_by(&*self.refused(api).await?);
        let Some(strategies) = self.strategies.get_or_try_init(|| self.read(api)).await? else {
            if source.annotation(annotations::STRATEGY).is_some() {
                output::warn_once(&format!(
                    "the strategies of the installation are unknown: no ConfigMap {CONFIG_MAP} can be read in namespace {}: if confrev \
                     is installed elsewhere, give --confrev-namespace",
                    self.home
                ));
            }
            return Ok(source);
        };
        let choice = self.choice_of(api, namespace).await?;
        Ok(source.under(strategies, choice.as_deref()))
    }

    /// The strategies that the installation defines; `None` if there is no such ConfigMap, or the user may not read it.
    async fn read(&self, api: &KubeApi) -> Result<Option<Strategies>, ApiError> {
        let what = format!("ConfigMap {CONFIG_MAP} in namespace {}", self.home);
        let Some(found) = self.config_map(api, CONFIG_MAP).await? else { return Ok(None) };
        let text = |key: &str| found["data"][key].as_str().unwrap_or_default();
        let strategies = Strategies::parse(text("strategies"), Some(text("strategy")));
        strategies.map(Some).map_err(|reason| ApiError::Answer { what, reason })
    }

    /// The contents that the installation refuses; none if there is no such list, or the user may not read it.
    pub(super) async fn refused(&self, api: &KubeApi) -> Result<Arc<RefusedContents>, ApiError> {
        let mut known = self.refused.lock().await;
        if let Some((_, contents)) = known.as_ref().filter(|(read, _)| read.elapsed() < RECENT) {
            return Ok(Arc::clone(contents));
        }
        let found = self.config_map(api, REFUSED_CONTENTS).await?.unwrap_or_default();
        let data = found["data"].as_object().into_iter().flatten();
        let data = data.filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)));
        let contents = Arc::new(RefusedContents::read(data).0);
        *known = Some((Instant::now(), Arc::clone(&contents)));
        Ok(contents)
    }

    /// A ConfigMap in confrev's namespace; `None` if it does not exist, or the user may not read it.
    async fn config_map(&self, api: &KubeApi, name: &str) -> Result<Option<Value>, ApiError> {
        match get(api, format!("/api/v1/namespaces/{}/configmaps/{name}", self.home)).await {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.is_not_found() || error.is_missing_right() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What a namespace chooses; nothing if the user may not read it.
    async fn choice_of(&self, api: &KubeApi, namespace: &str) -> Result<Option<String>, ApiError> {
        let mut known = self.of_namespaces.lock().await;
        if let Some(choice) = known.get(namespace) {
            return Ok(choice.clone());
        }
        let choice = match get(api, format!("/api/v1/namespaces/{namespace}")).await {
            Err(error) if error.is_not_found() || error.is_missing_right() => None,
            found => found?["metadata"]["annotations"][annotations::STRATEGY].as_str().map(str::to_owned),
        };
        known.insert(namespace.to_owned(), choice.clone());
        Ok(choice)
    }
}

async fn get(api: &KubeApi, path: String) -> Result<Value, ApiError> {
    let bytes = api.call("get", Method::GET, path.clone(), "", Vec::new()).await?;
    serde_json::from_slice(&bytes).map_err(|error| ApiError::Answer { what: path, reason: error.to_string() })
}
