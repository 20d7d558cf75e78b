//! The artifacts to build, and their Go modules.

use crate::Result;

/// A Go module of this crate (a folder with a `go.mod` and a `go.sum`) and the artifacts made from it.
///
/// To add one, create a folder beside the others, and an entry in [`MODULES`], or in [`OLDER`] for an older Kubernetes.
#[derive(Debug)]
pub(crate) struct GoModule {
    /// The folder's name, which is part of the name of its folder in the cache.
    pub(crate) name: &'static str,
    pub(crate) go_mod: &'static str,
    pub(crate) go_sum: &'static str,
    /// The `-X` settings of the linker: without them the binaries report version v0.0.0.
    pub(crate) linker_values: &'static [&'static str],
    pub(crate) patch: Option<Patch>,
    pub(crate) artifacts: &'static [Artifact],
}

/// The replacement of a text in a file of a required module, before the build.
#[derive(Debug)]
pub(crate) struct Patch {
    pub(crate) module: &'static str,
    pub(crate) file: &'static str,
    pub(crate) from: &'static str,
    pub(crate) to: &'static str,
}

/// A file to make.
#[derive(Debug)]
pub(crate) struct Artifact {
    pub(crate) name: &'static str,
    pub(crate) origin: Origin,
}

impl Artifact {
    /// About how many seconds of one processor the build takes with an empty cache of Go, after the artifacts before it in
    /// its module. Only the estimate of the time that is left depends on it.
    pub(crate) fn cost(&self) -> u32 {
        COSTS.iter().find(|(name, _)| *name == self.name).map_or(10, |(_, cost)| *cost)
    }

    /// The Go package that is built for it, if it needs nothing else.
    pub(crate) fn package(&self) -> Option<&'static str> {
        if let Origin::Package(package) = self.origin { Some(package) } else { None }
    }
}

/// The costs over 10 seconds, measured on a machine with two processors.
const COSTS: &[(&str, u32)] = &[
    ("etcd", 90),
    ("kube-apiserver", 420),
    ("kube-controller-manager", 90),
    ("kube-scheduler", 20),
    ("kubectl", 60),
    ("kwok", 60),
    ("rollouts-controller", 180),
    ("kubectl-argo-rollouts", 30),
    ("helm", 60),
    (ACTIONLINT, 20),
    (CERT_MANAGER, 120),
    (ARGO_CD, 200),
    ("kubelet", 150),
    ("kube-proxy", 20),
    ("containerd", 200),
    ("kube-router", 90),
    ("coredns", 120),
];

/// Where a file comes from.
#[derive(Debug)]
pub(crate) enum Origin {
    /// Built from this Go package.
    Package(&'static str),
    /// Built from this Go package with build tags, and with C if `c` is true.
    Tagged { package: &'static str, tags: &'static str, c: bool },
    /// Built from this text, which is the whole package of the module.
    Main(&'static str),
    /// The test program of this Go package.
    Tests { package: &'static str, tags: &'static str },
    /// A folder of a module, as it is.
    Folder { module: &'static str, folder: &'static str },
    /// The output of `kubectl kustomize` for a folder of a module.
    Kustomization { module: &'static str, folder: &'static str },
    /// The YAML files in folders of a module, joined into one.
    Manifests { module: &'static str, folders: &'static [&'static str] },
}

impl GoModule {
    /// The oldest Go version that builds it, from its `go.mod`.
    pub(crate) fn minimum_go(&self) -> &'static str {
        self.go_mod.lines().find_map(|line| line.strip_prefix("go ")).unwrap_or("1.26")
    }
}

const fn binary(name: &'static str, package: &'static str) -> Artifact {
    Artifact { name, origin: Origin::Package(package) }
}

const fn tagged(name: &'static str, package: &'static str, tags: &'static str) -> Artifact {
    Artifact { name, origin: Origin::Tagged { package, tags, c: false } }
}

/// kwok's stages, which make nodes and pods ready.
pub(crate) const STAGES: &str = "kwok-stages.yaml";
/// Argo Rollouts' CustomResourceDefinitions and its controller's role.
pub(crate) const ARGO_MANIFESTS: &str = "argo-manifests.yaml";

/// The program that runs cert-manager's controllers.
pub(crate) const CERT_MANAGER: &str = "cert-manager-controllers";
/// cert-manager's CustomResourceDefinitions.
pub(crate) const CERT_MANAGER_MANIFESTS: &str = "cert-manager-manifests.yaml";

/// The program that syncs a namespace with Argo CD's own code.
pub(crate) const ARGO_CD: &str = "argo-cd-sync";

const ARGO: &str = "github.com/argoproj/argo-rollouts";

/// The linter of workflows, which is no part of the control plane.
pub(crate) const ACTIONLINT: &str = "actionlint";

/// What a control plane and its users need. The other artifacts of [`MODULES`] are tools of some tests.
pub(crate) const CONTROL_PLANE: &[&str] = &[
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubectl",
    "kwok",
    STAGES,
    "rollouts-controller",
    "kubectl-argo-rollouts",
    ARGO_MANIFESTS,
];

/// The Kubernetes version of [`MODULES`].
pub(crate) const NEWEST: &str = "1.37";

/// What the linker writes into programs of the newest Kubernetes.
const NEWEST_VALUES: &[&str] = &[
    "k8s.io/component-base/version.gitVersion=v1.37.2",
    "k8s.io/component-base/version.gitMajor=1",
    "k8s.io/component-base/version.gitMinor=37",
];

/// All modules, with the newest Kubernetes.
pub(crate) const MODULES: &[GoModule] = &[
    GoModule {
        name: "kubernetes",
        go_mod: include_str!("../kubernetes/go.mod"),
        go_sum: include_str!("../kubernetes/go.sum"),
        linker_values: NEWEST_VALUES,
        patch: None,
        artifacts: &[
            binary("etcd", "go.etcd.io/etcd/server/v3"),
            binary("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
            binary("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
            binary("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
            binary("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
            binary("kwok", "sigs.k8s.io/kwok/cmd/kwok"),
            Artifact {
                name: STAGES,
                origin: Origin::Kustomization { module: "sigs.k8s.io/kwok", folder: "kustomize/stage/fast" },
            },
        ],
    },
    GoModule {
        name: "argo",
        go_mod: include_str!("../argo/go.mod"),
        go_sum: include_str!("../argo/go.sum"),
        linker_values: &["github.com/argoproj/argo-rollouts/utils/version.version=1.10.1"],
        // The controller has no option for its listen address, and everything here listens on loopback only.
        patch: Some(Patch {
            module: ARGO,
            file: "controller/controller.go",
            from: "\"0.0.0.0:%d\"",
            to: "\"127.0.0.1:%d\"",
        }),
        artifacts: &[
            binary("rollouts-controller", "github.com/argoproj/argo-rollouts/cmd/rollouts-controller"),
            binary("kubectl-argo-rollouts", "github.com/argoproj/argo-rollouts/cmd/kubectl-argo-rollouts"),
            Artifact {
                name: ARGO_MANIFESTS,
                origin: Origin::Manifests { module: ARGO, folders: &["manifests/crds", "manifests/role"] },
            },
        ],
    },
    GoModule {
        // Not `helm`: the module's folder is beside its artifacts, one of which has that name.
        name: "helm3",
        go_mod: include_str!("../helm/go.mod"),
        go_sum: include_str!("../helm/go.sum"),
        linker_values: &[
            "helm.sh/helm/v3/internal/version.version=v3.21.4",
            // The cluster version that `helm template` assumes, for the chart's `kubeVersion`.
            "helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1",
            "helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=37",
        ],
        patch: None,
        artifacts: &[binary("helm", "helm.sh/helm/v3/cmd/helm")],
    },
    GoModule {
        // Not `actionlint`, as for helm.
        name: "workflows",
        go_mod: include_str!("../actionlint/go.mod"),
        go_sum: include_str!("../actionlint/go.sum"),
        linker_values: &["main.version=v1.7.12"],
        patch: None,
        artifacts: &[binary(ACTIONLINT, "github.com/rhysd/actionlint/cmd/actionlint")],
    },
    GoModule {
        name: "cert-manager",
        go_mod: include_str!("../cert-manager/go.mod"),
        go_sum: include_str!("../cert-manager/go.sum"),
        linker_values: &[],
        patch: None,
        artifacts: &[
            Artifact { name: CERT_MANAGER, origin: Origin::Main(include_str!("../cert-manager/main.go")) },
            Artifact {
                name: CERT_MANAGER_MANIFESTS,
                origin: Origin::Manifests {
                    module: "github.com/cert-manager/cert-manager",
                    folders: &["deploy/crds"],
                },
            },
        ],
    },
    GoModule {
        name: "argo-cd",
        go_mod: include_str!("../argo-cd/go.mod"),
        go_sum: include_str!("../argo-cd/go.sum"),
        linker_values: &[],
        patch: None,
        artifacts: &[Artifact { name: ARGO_CD, origin: Origin::Main(include_str!("../argo-cd/main.go")) }],
    },
];

/// The modules that only real nodes need.
pub(crate) const NODE_MODULES: &[GoModule] = &[
    GoModule {
        name: "kubernetes-node",
        go_mod: include_str!("../kubernetes-node/go.mod"),
        go_sum: include_str!("../kubernetes-node/go.sum"),
        linker_values: NEWEST_VALUES,
        patch: None,
        artifacts: &[
            binary("kubelet", "k8s.io/kubernetes/cmd/kubelet"),
            binary("kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy"),
        ],
    },
    GoModule {
        name: "node",
        go_mod: include_str!("../node/go.mod"),
        go_sum: include_str!("../node/go.sum"),
        linker_values: &[],
        patch: None,
        artifacts: &[
            // The file systems of these tags need libraries in C.
            tagged("containerd", "github.com/containerd/containerd/v2/cmd/containerd", CONTAINERD_TAGS),
            tagged(
                "containerd-shim-runc-v2",
                "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
                CONTAINERD_TAGS,
            ),
            tagged("ctr", "github.com/containerd/containerd/v2/cmd/ctr", CONTAINERD_TAGS),
            // runc enters namespaces in C, before the Go runtime starts threads.
            Artifact {
                name: "runc",
                origin: Origin::Tagged {
                    package: "github.com/opencontainers/runc",
                    tags: "seccomp",
                    c: true,
                },
            },
            binary("ptp", "github.com/containernetworking/plugins/plugins/main/ptp"),
            binary("loopback", "github.com/containernetworking/plugins/plugins/main/loopback"),
            binary("host-local", "github.com/containernetworking/plugins/plugins/ipam/host-local"),
        ],
    },
    GoModule {
        // Not `kube-router`, as for helm.
        name: "policies",
        go_mod: include_str!("../kube-router/go.mod"),
        go_sum: include_str!("../kube-router/go.sum"),
        linker_values: &[],
        patch: None,
        artifacts: &[binary("kube-router", "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router")],
    },
    GoModule {
        // Not `coredns`, as for helm.
        name: "dns",
        go_mod: include_str!("../coredns/go.mod"),
        go_sum: include_str!("../coredns/go.sum"),
        linker_values: &[],
        patch: None,
        artifacts: &[Artifact { name: "coredns", origin: Origin::Main(include_str!("../coredns/main.go")) }],
    },
];

const CONTAINERD_TAGS: &str = "no_btrfs no_devmapper no_zfs";

/// The test suites of Kubernetes and of Argo Rollouts, and what they need.
pub(crate) const COMPATIBILITY_MODULES: &[GoModule] = &[
    GoModule {
        name: "kubernetes-e2e",
        go_mod: include_str!("../kubernetes-e2e/go.mod"),
        go_sum: include_str!("../kubernetes-e2e/go.sum"),
        linker_values: NEWEST_VALUES,
        patch: None,
        artifacts: &[
            Artifact {
                name: "e2e.test",
                origin: Origin::Tests { package: "k8s.io/kubernetes/test/e2e", tags: "" },
            },
            binary("agnhost", "k8s.io/kubernetes/test/images/agnhost"),
            binary("ginkgo", "github.com/onsi/ginkgo/v2/ginkgo"),
        ],
    },
    GoModule {
        name: "argo-e2e",
        go_mod: include_str!("../argo-e2e/go.mod"),
        go_sum: include_str!("../argo-e2e/go.sum"),
        linker_values: &[],
        patch: None,
        artifacts: &[
            Artifact {
                name: "argo-e2e.test",
                origin: Origin::Tests { package: "github.com/argoproj/argo-rollouts/test/e2e", tags: "e2e" },
            },
            binary("e2e-step-plugin", "github.com/argoproj/argo-rollouts/test/cmd/step-plugin-e2e"),
            // The tests read manifests from it.
            Artifact { name: "argo-e2e", origin: Origin::Folder { module: ARGO, folder: "test/e2e" } },
        ],
    },
    GoModule {
        // Not `kustomize`, as for helm. Of kustomize's modules, only its old one has examples.
        name: "kustomize-examples",
        go_mod: include_str!("../kustomize/go.mod"),
        go_sum: include_str!("../kustomize/go.sum"),
        linker_values: &[],
        patch: None,
        artifacts: &[Artifact {
            name: "kustomize",
            origin: Origin::Folder { module: "sigs.k8s.io/kustomize", folder: "examples" },
        }],
    },
];

/// What every version of Kubernetes has in a module of its own.
const KUBERNETES: &[Artifact] = &[
    binary("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
    binary("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
    binary("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
    binary("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
];

/// The module of an older version.
const fn older(
    name: &'static str,
    go_mod: &'static str,
    go_sum: &'static str,
    linker_values: &'static [&'static str],
) -> GoModule {
    GoModule { name, go_mod, go_sum, linker_values, patch: None, artifacts: KUBERNETES }
}

/// Older versions of Kubernetes, and the modules that replace those of the newest.
pub(crate) const OLDER: &[(&str, GoModule)] = &[
    (
        "1.36",
        older(
            "kubernetes-1.36",
            include_str!("../kubernetes-1.36/go.mod"),
            include_str!("../kubernetes-1.36/go.sum"),
            &[
                "k8s.io/component-base/version.gitVersion=v1.36.3",
                "k8s.io/component-base/version.gitMajor=1",
                "k8s.io/component-base/version.gitMinor=36",
            ],
        ),
    ),
    (
        "1.34",
        older(
            "kubernetes-1.34",
            include_str!("../kubernetes-1.34/go.mod"),
            include_str!("../kubernetes-1.34/go.sum"),
            &[
                "k8s.io/component-base/version.gitVersion=v1.34.4",
                "k8s.io/component-base/version.gitMajor=1",
                "k8s.io/component-base/version.gitMinor=34",
            ],
        ),
    ),
];

/// The modules for a version of Kubernetes. If two of them make the same artifact, the first one's is used.
pub(crate) fn modules(version: &str) -> Result<Vec<&'static GoModule>> {
    if version == NEWEST {
        return Ok(MODULES.iter().collect());
    }
    let older = OLDER.iter().find(|(name, _)| *name == version);
    let (_, older) = older.ok_or_else(|| {
        let known: Vec<_> = std::iter::once(NEWEST).chain(OLDER.iter().map(|(name, _)| *name)).collect();
        format!("Kubernetes {version} is not available, only {}", known.join(", "))
    })?;
    Ok(std::iter::once(older).chain(MODULES).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubernetes_reports_version_required_by_its_module() {
        let newest = MODULES.iter().chain(NODE_MODULES).chain(COMPATIBILITY_MODULES);
        let kubernetes = newest.filter(|module| module.name.starts_with("kubernetes")).map(|m| (NEWEST, m));
        for (version, module) in kubernetes.chain(OLDER.iter().map(|(version, module)| (*version, module))) {
            let required = module
                .go_mod
                .lines()
                .find_map(|line| line.trim().strip_prefix("k8s.io/kubernetes ")?.split_whitespace().next());
            let said = module.linker_values.iter().find_map(|value| value.split_once("gitVersion="));
            assert_eq!(said.map(|(_, said)| said), required, "{}", module.name);
            assert!(required.unwrap().starts_with(&format!("v{version}.")), "{version}: {required:?}");
            let minor = format!("gitMinor={}", version.split_once('.').unwrap().1);
            assert!(module.linker_values.iter().any(|value| value.ends_with(&minor)), "{version}");
        }
    }

    /// Otherwise Go would compile almost all of Kubernetes a second time for the nodes, and a third time for its tests.
    #[test]
    fn modules_share_versions_with_control_plane() {
        let versions = |module: &GoModule| -> std::collections::BTreeSet<_> {
            let lines = module.go_mod.lines().filter_map(|line| line.strip_prefix('\t'));
            lines.filter(|line| line.contains(" v")).map(str::to_owned).collect()
        };
        let pairs = [
            (&NODE_MODULES[0], &MODULES[0]),
            (&COMPATIBILITY_MODULES[0], &NODE_MODULES[0]),
            (&COMPATIBILITY_MODULES[1], &MODULES[1]),
        ];
        for (module, shared) in pairs {
            let (all, shared) = (versions(module), versions(shared));
            assert!(shared.len() > 100, "{}", shared.len());
            assert_eq!(shared.difference(&all).collect::<Vec<_>>(), Vec::<&String>::new(), "{}", module.name);
        }
    }

    /// An unknown version is an error that lists the available versions.
    #[test]
    fn older_kubernetes_modules_come_first() {
        for (version, older) in OLDER {
            let modules = modules(version).unwrap();
            assert_eq!((modules[0].name, modules.len()), (older.name, MODULES.len() + 1));
            let newest = modules[1..].iter().flat_map(|module| module.artifacts);
            let newest: Vec<_> = newest.map(|artifact| artifact.name).collect();
            assert!(older.artifacts.iter().all(|artifact| newest.contains(&artifact.name)), "{version}");
        }
        assert_eq!(modules(NEWEST).unwrap().len(), MODULES.len());
        assert_eq!(modules("1.12").unwrap_err(), "Kubernetes 1.12 is not available, only 1.37, 1.36, 1.34");
    }
}
