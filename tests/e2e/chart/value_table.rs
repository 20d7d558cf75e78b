//! The values of the chart, and a change that each of them makes.

mod trust;

use serde_json::{Value, json};

use crate::helm::Setting;

/// One value, its setting, and one field that it changes.
pub(crate) struct Row {
    /// The first setting is the subject of the row.
    pub(crate) settings: Vec<Setting<'static>>,
    /// `Kind/name`.
    pub(crate) object: &'static str,
    /// The JSON pointer of the field in the object.
    pub(crate) at: &'static str,
    /// The value of the field, `null` if it is missing.
    pub(crate) becomes: Value,
}

fn row(value: &'static str, set: Value, object: &'static str, at: &'static str, becomes: Value) -> Row {
    Row { settings: vec![(value, set)], object, at, becomes }
}

/// The same row, with other values that this one depends on.
fn with(mut row: Row, others: &[Setting<'static>]) -> Row {
    row.settings.extend_from_slice(others);
    row
}

const DEPLOYMENT: &str = "Deployment/confrev";
const ROLE: &str = "ClusterRole/confrev";
pub(crate) const WEBHOOKS: &str = "MutatingWebhookConfiguration/confrev";
const STRATEGIES: &str = "ConfigMap/confrev-strategies";
const VALIDATION: &str = "ValidatingWebhookConfiguration/confrev";
const CERTIFICATE: &str = "Certificate/confrev-tls";
const BUDGET: &str = "PodDisruptionBudget/confrev";
const POLICY: &str = "NetworkPolicy/confrev";
const RUNS: &str = "ValidatingAdmissionPolicy/confrev-runs";
const SELF: &str = "ValidatingAdmissionPolicy/confrev-self";
const WRITES: &str = "Role/confrev-writes";

pub(crate) fn rows() -> Vec<Row> {
    let mut rows = workload();
    rows.extend(memory());
    rows.extend(strategies());
    rows.extend(program());
    rows.extend(trust::rows());
    rows.extend(reach());
    rows.extend(network());
    rows.extend(notifications());
    rows.extend(signals());
    rows
}

/// The parts of the memory limit.
fn memory() -> Vec<Row> {
    let limit = |value, set: u32, becomes: &str| {
        let at = "/spec/template/spec/containers/0/resources/limits/memory";
        row(value, json!(set), DEPLOYMENT, at, json!(becomes))
    };
    let variable = |value, at| row(value, json!(5), DEPLOYMENT, at, json!("5"));
    vec![
        limit("memory.program", 30, "266Mi"),
        limit("memory.connections", 8, "248Mi"),
        limit("memory.index", 140, "356Mi"),
        limit("memory.controller", 65, "257Mi"),
        limit("memory.reviews", 100, "302Mi"),
        limit("memory.body", 8, "257Mi"),
        limit("memory.checks", 3, "283Mi"),
        limit("memory.notifications", 0, "255Mi"),
        variable("memory.reviews", "/spec/template/spec/containers/0/env/0/value"),
        variable("memory.body", "/spec/template/spec/containers/0/env/1/value"),
        variable("memory.checks", "/spec/template/spec/containers/0/env/2/value"),
    ]
}

/// The Deployment and its related objects.
fn workload() -> Vec<Row> {
    let pod = |value, set: &Value, at| row(value, set.clone(), DEPLOYMENT, at, set.clone());
    let image = |value, set: &str, becomes: &str| {
        row(value, json!(set), DEPLOYMENT, "/spec/template/spec/containers/0/image", json!(becomes))
    };
    let digest = format!("sha256:{}", "0a".repeat(32));
    let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
        {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]}}});
    vec![
        row("replicas", json!(5), DEPLOYMENT, "/spec/replicas", json!(5)),
        row("replicas", json!(0), DEPLOYMENT, "/spec/replicas", json!(0)),
        image("image.repository", "there/confrev", "there/confrev:0.1.0"),
        image("image.tag", "1.2.3", "confrev:1.2.3"),
        image("image.digest", &digest, &format!("confrev:0.1.0@{digest}")),
        pod("image.pullPolicy", &json!("Always"), "/spec/template/spec/containers/0/imagePullPolicy"),
        row(
            "image.pullSecrets",
            json!(["one", "two"]),
            DEPLOYMENT,
            "/spec/template/spec/imagePullSecrets",
            json!([{"name": "one"}, {"name": "two"}]),
        ),
        pod(
            "resources.limits",
            &json!({"memory": "1Gi", "cpu": 1}),
            "/spec/template/spec/containers/0/resources/limits",
        ),
        pod(
            "resources.requests.memory",
            &json!("64Mi"),
            "/spec/template/spec/containers/0/resources/requests/memory",
        ),
        row(
            "resources.claims",
            json!([{"name": "a"}]),
            DEPLOYMENT,
            "/spec/template/spec/containers/0/resources/claims",
            json!([{"name": "a"}]),
        ),
        pod("webhookPort", &json!(9443), "/spec/template/spec/containers/0/ports/0/containerPort"),
        pod("adminPort", &json!(9080), "/spec/template/spec/containers/0/ports/1/containerPort"),
        pod("hostNetwork", &json!(true), "/spec/template/spec/hostNetwork"),
        row(
            "hostNetwork",
            json!(true),
            DEPLOYMENT,
            "/spec/template/spec/dnsPolicy",
            json!("ClusterFirstWithHostNet"),
        ),
        row("hostNetwork", json!(true), DEPLOYMENT, "/spec/strategy/rollingUpdate/maxSurge", json!(0)),
        pod("dnsPolicy", &json!("Default"), "/spec/template/spec/dnsPolicy"),
        row("webhookAnnotations", json!({"a": "1"}), WEBHOOKS, "/metadata/annotations", json!({"a": "1"})),
        row("webhookAnnotations", json!({"a": "1"}), VALIDATION, "/metadata/annotations", json!({"a": "1"})),
        pod("priorityClassName", &json!("system-cluster-critical"), "/spec/template/spec/priorityClassName"),
        row(
            "topologySpreadConstraints",
            json!([]),
            DEPLOYMENT,
            "/spec/template/spec/topologySpreadConstraints",
            Value::Null,
        ),
        pod("affinity", &affinity, "/spec/template/spec/affinity"),
        pod("nodeSelector", &json!({"disk": "ssd"}), "/spec/template/spec/nodeSelector"),
        pod("tolerations", &json!([{"key": "a", "operator": "Exists"}]), "/spec/template/spec/tolerations"),
        pod("podAnnotations", &json!({"a": "1"}), "/spec/template/metadata/annotations"),
        row(
            "podLabels",
            json!({"team": "a"}),
            DEPLOYMENT,
            "/spec/template/metadata/labels",
            json!({"app.kubernetes.io/name": "confrev", "team": "a"}),
        ),
        row("podDisruptionBudget.enabled", json!(false), BUDGET, "", Value::Null),
        row("podDisruptionBudget.maxUnavailable", json!("50%"), BUDGET, "/spec/maxUnavailable", json!("50%")),
        row(
            "namespace.create",
            json!(true),
            "Namespace/confrev",
            "/metadata/labels/pod-security.kubernetes.io~1enforce",
            json!("restricted"),
        ),
    ]
}

/// The strategies and defaults, for the program and for the commands.
fn strategies() -> Vec<Row> {
    vec![
        row(
            "strategy",
            json!("careful"),
            DEPLOYMENT,
            "/spec/template/spec/containers/0/env/4/value",
            json!("careful"),
        ),
        row("strategy", json!("careful"), STRATEGIES, "/data/strategy", json!("careful")),
        row(
            "defaults",
            json!({"on-undo": "hold", "max-in-flight": 3}),
            DEPLOYMENT,
            "/spec/template/spec/containers/0/env/4/value",
            json!("{\"max-in-flight\":3,\"on-undo\":\"hold\"}"),
        ),
        row(
            "defaults",
            json!({"missing": "deny"}),
            STRATEGIES,
            "/data/defaults",
            json!("{\"missing\":\"deny\"}"),
        ),
        row(
            "strategies",
            json!({"careful": null, "steady": null, "immediate": null, "own": {"max-in-flight": 3}}),
            STRATEGIES,
            "/data/strategies",
            json!("{\n  \"own\": {\n    \"max-in-flight\": 3\n  }\n}\n"),
        ),
    ]
}

/// The program's options, and the objects that must agree with them.
fn program() -> Vec<Row> {
    const ARGUMENT: &str = "/spec/template/spec/containers/0/args/3";
    const NOT_A_REVISION: &str = "not-a-revision-of-another";
    let option = |value, set, becomes: &str| row(value, set, DEPLOYMENT, ARGUMENT, json!(becomes));
    let clone_set = json!([{
        "group": "apps.kruise.io", "version": "v1alpha1", "resource": "clonesets", "kind": "CloneSet",
        "path": "spec.template",
    }]);
    let elsewhere =
        json!([{"group": "a.b", "version": "v1", "resource": "cs", "kind": "C", "path": "spec.package.pod"}]);
    let pod_templates = json!([{
        "group": "", "version": "v1", "resource": "podtemplates", "kind": "PodTemplate", "path": "template",
    }]);
    let replica_sets = json!([{
        "group": "apps", "version": "v1", "resource": "replicasets", "kind": "ReplicaSet", "path": "spec.template",
    }]);
    let extra = |object, at, becomes| row("extraKinds", clone_set.clone(), object, at, becomes);
    let secrets = |object, at, becomes| row("secrets.enabled", json!(true), object, at, becomes);
    let rule = json!({
        "apiGroups": ["apps.kruise.io"], "apiVersions": ["v1alpha1"], "operations": ["CREATE", "UPDATE"],
        "resources": ["clonesets"], "scope": "Namespaced",
    });
    vec![
        option("rollRate", json!(7), "--roll-rate=7"),
        option("settle", json!("2s"), "--settle=2s"),
        option("reportChanges", json!(true), "--report-changes"),
        option("orphanGrace", json!("1h"), "--orphan-grace=1h"),
        option("maxSnapshotBytes", json!(32), "--max-snapshot-bytes=32"),
        option("copiedLabels", json!(["team"]), "--copied-labels=team"),
        option("rotatedConfigMaps", json!(["bundle", "trusted-ca"]), "--rotated-configmap=bundle,trusted-ca"),
        option("logFormat", json!("json"), "--log-format=json"),
        option("extraArgs", json!(["--listen=[::]:8443"]), "--listen=[::]:8443"),
        row(
            "webhookPort",
            json!(9443),
            DEPLOYMENT,
            "/spec/template/spec/containers/0/env/3",
            json!({"name": "CONFREV_LISTEN", "value": "[::]:9443"}),
        ),
        row(
            "adminPort",
            json!(9080),
            DEPLOYMENT,
            "/spec/template/spec/containers/0/env/3",
            json!({"name": "CONFREV_ADMIN_LISTEN", "value": "[::]:9080"}),
        ),
        option("webhookUrl", json!("https://127.0.0.1:9443"), "--webhook-url=https://127.0.0.1:9443"),
        row(
            "webhookUrl",
            json!("https://127.0.0.1:9443/"),
            VALIDATION,
            "/webhooks/1/clientConfig",
            json!({"url": "https://127.0.0.1:9443/mutate/configmaps"}),
        ),
        row(
            "rotatedConfigMaps",
            json!(["bundle"]),
            VALIDATION,
            "/webhooks/1/matchConditions/2/expression",
            json!(
                "!(object.metadata.?name.orValue(\"\") in [\"kube-root-ca.crt\", \"openshift-service-ca.crt\", \"istio-ca-root-cert\", \"bundle\"])"
            ),
        ),
        extra(DEPLOYMENT, ARGUMENT, json!("--kind=apps.kruise.io/v1alpha1/clonesets/CloneSet=spec.template")),
        extra(
            ROLE,
            "/rules/7",
            json!({"apiGroups": ["apps.kruise.io"], "resources": ["clonesets"],
                "verbs": ["get", "list", "watch", "patch"]}),
        ),
        // A template at another path, so that the API server compiles the condition.
        row("extraKinds", elsewhere, WEBHOOKS, "/webhooks/0/rules/3/resources/0", json!("cs")),
        // Kinds that a `workloadRef` may name: read at the Rollout's admission, and not revisions of other workloads.
        row("extraKinds", pod_templates.clone(), WEBHOOKS, "/webhooks/0/rules/3/apiGroups", json!([""])),
        // The policy for confrev's own writes covers them, too.
        row(
            "extraKinds",
            pod_templates,
            SELF,
            "/spec/matchConstraints/resourceRules/4/resources/0",
            json!("podtemplates"),
        ),
        row(
            "extraKinds",
            replica_sets,
            WEBHOOKS,
            "/webhooks/1/matchConditions/3/name",
            json!(NOT_A_REVISION),
        ),
        extra(WEBHOOKS, "/webhooks/0/rules/3", rule.clone()),
        extra(WEBHOOKS, "/webhooks/1/rules/3", rule),
        row("analysis.enabled", json!(true), RUNS, "/spec/failurePolicy", json!("Fail")),
        secrets(DEPLOYMENT, ARGUMENT, json!("--secrets")),
        secrets(
            ROLE,
            "/rules/1",
            json!({"apiGroups": [""], "resources": ["secrets"],
                "verbs": ["get", "list", "watch", "create", "patch", "delete"]}),
        ),
        secrets(VALIDATION, "/webhooks/4/clientConfig/service/path", json!("/mutate/secrets")),
        secrets(VALIDATION, "/webhooks/4/failurePolicy", json!("Ignore")),
    ]
}

/// Namespaces, the webhooks of each, rights, and monitors.
fn reach() -> Vec<Row> {
    let service = [("serviceMonitor.enabled", json!(true))];
    let pod = [("podMonitor.enabled", json!(true))];
    let (labels, labelled) =
        (json!({"release": "a"}), json!({"app.kubernetes.io/name": "confrev", "release": "a"}));
    let excluded = json!(["kube-system", "kube-public", "kube-node-lease", "confrev", "legacy"]);
    let left_out = |at| row("excludedNamespaces", json!(["legacy"]), WEBHOOKS, at, excluded.clone());
    let listed = |object, at, becomes| row("rbac.namespaces", json!(["default"]), object, at, becomes);
    let selected = json!({"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["default"]});
    vec![
        listed(ROLE, "/rules/0/verbs", json!(["get", "list", "watch"])),
        listed(ROLE, "/rules/2/verbs", json!(["get", "list", "watch"])),
        listed(WRITES, "/metadata/namespace", json!("default")),
        listed(WRITES, "/rules/0/verbs", json!(["create", "patch", "delete"])),
        listed("RoleBinding/confrev-writes", "/metadata/namespace", json!("default")),
        listed(WEBHOOKS, "/webhooks/0/namespaceSelector/matchExpressions/1", selected),
        row("timeoutSeconds", json!(9), WEBHOOKS, "/webhooks/0/timeoutSeconds", json!(9)),
        row("timeoutSeconds", json!(9), WEBHOOKS, "/webhooks/1/timeoutSeconds", json!(9)),
        row("sourceTimeoutSeconds", json!(7), VALIDATION, "/webhooks/1/timeoutSeconds", json!(7)),
        row("checkedSourceTimeoutSeconds", json!(7), VALIDATION, "/webhooks/2/timeoutSeconds", json!(7)),
        row("outage", json!("admit"), WEBHOOKS, "/webhooks/0/failurePolicy", json!("Ignore")),
        row("outage", json!("admit"), WEBHOOKS, "/webhooks/1/failurePolicy", json!("Ignore")),
        left_out("/webhooks/0/namespaceSelector/matchExpressions/0/values"),
        left_out("/webhooks/1/namespaceSelector/matchExpressions/0/values"),
        Row { object: VALIDATION, ..left_out("/webhooks/1/namespaceSelector/matchExpressions/0/values") },
        row(
            "excludedNamespaces",
            json!(["legacy", "old"]),
            DEPLOYMENT,
            "/spec/template/spec/containers/0/args/3",
            json!("--excluded-namespaces=legacy,old"),
        ),
        Row { object: VALIDATION, ..left_out("/webhooks/0/namespaceSelector/matchExpressions/0/values") },
        row(
            "serviceMonitor.enabled",
            json!(true),
            "ServiceMonitor/confrev",
            "/spec/endpoints",
            json!([{"targetPort": "admin", "path": "/metrics"}]),
        ),
        with(
            row(
                "serviceMonitor.labels",
                labels.clone(),
                "ServiceMonitor/confrev",
                "/metadata/labels",
                labelled.clone(),
            ),
            &service,
        ),
        with(
            row(
                "serviceMonitor.interval",
                json!("30s"),
                "ServiceMonitor/confrev",
                "/spec/endpoints/0/interval",
                json!("30s"),
            ),
            &service,
        ),
        row(
            "podMonitor.enabled",
            json!(true),
            "PodMonitor/confrev",
            "/spec/podMetricsEndpoints",
            json!([{"port": "admin", "path": "/metrics"}]),
        ),
        with(row("podMonitor.labels", labels, "PodMonitor/confrev", "/metadata/labels", labelled), &pod),
        with(
            row(
                "podMonitor.interval",
                json!("30s"),
                "PodMonitor/confrev",
                "/spec/podMetricsEndpoints/0/interval",
                json!("30s"),
            ),
            &pod,
        ),
    ]
}

/// The network of the pods, inbound and outbound.
fn network() -> Vec<Row> {
    let open = [("networkPolicy.enabled", json!(true))];
    let peers =
        json!([{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]);
    vec![
        row("networkPolicy.enabled", json!(true), POLICY, "/spec/policyTypes", json!(["Ingress", "Egress"])),
        with(
            row(
                "networkPolicy.apiServerCIDRs",
                json!(["10.0.0.1/32"]),
                POLICY,
                "/spec/ingress/0/from",
                json!([{"ipBlock": {"cidr": "10.0.0.1/32"}}]),
            ),
            &open,
        ),
        with(
            row("networkPolicy.apiServerFrom", peers.clone(), POLICY, "/spec/ingress/0/from", peers.clone()),
            &open,
        ),
        // In addition to CIDRs.
        with(
            row(
                "networkPolicy.apiServerFrom",
                peers.clone(),
                POLICY,
                "/spec/ingress/0/from/1",
                peers[0].clone(),
            ),
            &[open[0].clone(), ("networkPolicy.apiServerCIDRs", json!(["10.0.0.1/32"]))],
        ),
        with(
            row("networkPolicy.apiServerTo", peers.clone(), POLICY, "/spec/egress/0/to", peers.clone()),
            &open,
        ),
        with(
            row(
                "networkPolicy.apiServerPorts",
                json!([8443]),
                POLICY,
                "/spec/egress/0/ports",
                json!([{"port": 8443}]),
            ),
            &open,
        ),
        with(row("networkPolicy.metricsFrom", peers.clone(), POLICY, "/spec/ingress/1/from", peers), &open),
    ]
}

/// Notifications.
fn notifications() -> Vec<Row> {
    let url = [("notify.url", json!("https://hooks.example.com/a?b=c"))];
    let argument = |value, set: &str, becomes: &str| {
        with(
            row(value, json!(set), DEPLOYMENT, "/spec/template/spec/containers/0/args/4", json!(becomes)),
            &url,
        )
    };
    let of_secret = |at, becomes| row("notify.secret", json!("receiver"), DEPLOYMENT, at, becomes);
    let reference = |key: &str| json!({"name": "receiver", "key": key});
    let peers = json!([{"ipBlock": {"cidr": "10.0.0.0/8"}}]);
    let open = [url[0].clone(), ("networkPolicy.enabled", json!(true))];
    vec![
        row(
            "notify.url",
            json!("https://hooks.example.com/a?b=c"),
            DEPLOYMENT,
            "/spec/template/spec/containers/0/args/3",
            json!("--notify=https://hooks.example.com/a?b=c"),
        ),
        argument("notify.format", "slack", "--notify-format=slack"),
        argument("notify.source", "prod-1", "--notify-source=prod-1"),
        argument("notify.caConfigMap", "roots", "--notify-ca=/notify-ca/ca.crt"),
        with(
            row(
                "notify.caConfigMap",
                json!("roots"),
                DEPLOYMENT,
                "/spec/template/spec/volumes/0/configMap/name",
                json!("roots"),
            ),
            &url,
        ),
        of_secret("/spec/template/spec/containers/0/env/0/valueFrom/secretKeyRef", reference("url")),
        of_secret("/spec/template/spec/containers/0/env/1/valueFrom/secretKeyRef/key", json!("key")),
        with(row("networkPolicy.notifyTo", peers.clone(), POLICY, "/spec/egress/1/to", peers), &open),
        with(row("notify.url", json!("https://a"), POLICY, "/spec/egress/1", json!({})), &open[1..]),
    ]
}

/// Alerts and the dashboard.
fn signals() -> Vec<Row> {
    const RULE: &str = "PrometheusRule/confrev";
    const DASHBOARD: &str = "ConfigMap/confrev-dashboard";
    const GRAFANA: &str = "/metadata/labels/grafana_dashboard";
    let rule = [("prometheusRule.enabled", json!(true))];
    let dashboard = [("dashboard.enabled", json!(true))];
    let folder = json!({"grafana_folder": "Kubernetes"});
    vec![
        row("prometheusRule.enabled", json!(true), RULE, "/spec/groups/0/name", json!("confrev")),
        with(
            row(
                "prometheusRule.labels",
                json!({"release": "a"}),
                RULE,
                "/metadata/labels/release",
                json!("a"),
            ),
            &rule,
        ),
        row("dashboard.enabled", json!(true), DASHBOARD, GRAFANA, json!("1")),
        with(
            row("dashboard.labels", json!({"grafana_dashboard": "a"}), DASHBOARD, GRAFANA, json!("a")),
            &dashboard,
        ),
        with(
            row("dashboard.annotations", folder.clone(), DASHBOARD, "/metadata/annotations", folder),
            &dashboard,
        ),
    ]
}
