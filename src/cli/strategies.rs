//! What objects inherit from the installation and their namespaces, and the contents that the installation refuses, for the commands.

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
    resolve::{Defaults, Observed, REFUSED_CONTENTS, RefusedContents, Strategies},
    world::{Inherited, NamespaceChoice},
};

/// The ConfigMap in confrev's namespace that has the strategies and defaults as they are given to the program. The chart writes it.
const CONFIG_MAP: &str = "confrev-strategies";

/// How long the list of refused contents counts as known. Some commands wait for hours, and the dashboard runs for days.
const RECENT: Duration = Duration::from_secs(5);
/// The same, for what each namespace gives to its objects.
const RECENT_NAMESPACE: Duration = Duration::from_secs(30);

/// When the list of refused contents was read, and what it said.
type ReadList = (Instant, Arc<RefusedContents>);

/// What the installation and namespaces give to sources and workloads, read when it is needed.
#[derive(Clone, Debug)]
pub(super) struct InstalledStrategies {
    /// The namespace in which confrev is installed.
    home: String,
    installed: Arc<OnceCell<Installed>>,
    refused: Arc<Mutex<Option<ReadList>>>,
    /// When each namespace was read.
    entered: Arc<Mutex<BTreeMap<String, Instant>>>,
}

/// What the installation gives.
#[derive(Debug, Default)]
struct Installed {
    inherited: Inherited,
    /// The strategies are unknown: there is no such ConfigMap, or the user may not read it.
    is_unknown: bool,
}

impl InstalledStrategies {
    /// Those of the confrev in this namespace. No call is made yet.
    pub(super) fn of(home: &str) -> Self {
        Self {
            home: home.to_owned(),
            installed: Arc::default(),
            refused: Arc::default(),
            entered: Arc::default(),
        }
    }

    /// A source of this namespace, under the strategy that applies to it and what it inherits, and refused if the installation says so.
    pub(super) async fn apply(
        &self,
        api: &KubeApi,
        namespace: &str,
        source: Observed,
    ) -> Result<Observed, ApiError> {
        let source = source.refused_by(&*self.refused(api).await?);
        self.enter(api, namespace).await?;
        let installed = self.installed(api).await?;
        if !installed.is_unknown {
            return Ok(installed.inherited.source(namespace, source));
        }
        if source.annotation(annotations::STRATEGY).is_some() {
            output::warn_once(&format!(
                "the strategies of the installation are unknown: no ConfigMap {CONFIG_MAP} can be read in namespace {}: if confrev \
                 is installed elsewhere, give --confrev-namespace",
                self.home
            ));
        }
        Ok(source)
    }

    /// What the workloads of the namespaces that were read inherit.
    pub(super) fn inherited(&self) -> Inherited {
        self.installed.get().map(|installed| installed.inherited.clone()).unwrap_or_default()
    }

    /// Reads what a namespace gives to its objects; nothing if the user may not read it.
    pub(super) async fn enter(&self, api: &KubeApi, namespace: &str) -> Result<(), ApiError> {
        let installed = self.installed(api).await?;
        let mut entered = self.entered.lock().await;
        if entered.get(namespace).is_some_and(|read| read.elapsed() < RECENT_NAMESPACE) {
            return Ok(());
        }
        match get(api, format!("/api/v1/namespaces/{namespace}")).await {
            Err(error) if error.is_not_found() || error.is_missing_right() => {}
            found => installed.choose(namespace, &found?),
        }
        entered.insert(namespace.to_owned(), Instant::now());
        Ok(())
    }

    /// The same for all namespaces.
    pub(super) async fn enter_all(&self, api: &KubeApi) -> Result<(), ApiError> {
        let installed = self.installed(api).await?;
        let found = match get(api, "/api/v1/namespaces".to_owned()).await {
            Err(error) if error.is_missing_right() => return Ok(()),
            found => found?,
        };
        let mut entered = self.entered.lock().await;
        for namespace in found["items"].as_array().into_iter().flatten() {
            let name = namespace["metadata"]["name"].as_str().unwrap_or_default();
            installed.choose(name, namespace);
            entered.insert(name.to_owned(), Instant::now());
        }
        Ok(())
    }

    async fn installed(&self, api: &KubeApi) -> Result<&Installed, ApiError> {
        self.installed.get_or_try_init(|| self.read(api)).await
    }

    /// What the installation gives.
    async fn read(&self, api: &KubeApi) -> Result<Installed, ApiError> {
        let Some(found) = self.config_map(api, CONFIG_MAP).await? else {
            return Ok(Installed { is_unknown: true, ..Installed::default() });
        };
        let text = |key: &str| found["data"][key].as_str();
        let strategies = Strategies::parse(
            text("strategies").unwrap_or_default(),
            Some(text("strategy").unwrap_or_default()),
        );
        let defaults = Defaults::parse(text("defaults").unwrap_or("{}"));
        Ok(match (strategies, defaults) {
            (Ok(strategies), Ok(defaults)) => {
                Installed { inherited: Inherited::new(strategies, defaults), is_unknown: false }
            }
            // A newer installation may have settings that this program does not know.
            (Err(reason), _) | (_, Err(reason)) => {
                let home = &self.home;
                output::warn_once(&format!(
                    "ConfigMap {CONFIG_MAP} in namespace {home}: {reason}: the answer is without its strategies and defaults"
                ));
                Installed { is_unknown: true, ..Installed::default() }
            }
        })
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
}

impl Installed {
    /// Takes what a namespace gives to its objects.
    fn choose(&self, name: &str, namespace: &Value) {
        let annotations = &namespace["metadata"]["annotations"];
        let choice = NamespaceChoice::read(|key| annotations[key].as_str());
        self.inherited.choose(&name.into(), choice);
    }
}

async fn get(api: &KubeApi, path: String) -> Result<Value, ApiError> {
    let bytes = api.call("get", Method::GET, path.clone(), "", Vec::new()).await?;
    serde_json::from_slice(&bytes).map_err(|error| ApiError::Answer { what: path, reason: error.to_string() })
}
