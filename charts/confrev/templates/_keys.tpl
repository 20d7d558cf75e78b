{{/* Lists of labels and annotations, in CEL. Do not edit: tests/repository/keys.rs writes them from the table in
core/src/annotations.rs. */}}

{{/* All labels. */}}
{{- define "confrev.keys.labels" -}}
["confrev.dev/carried", "confrev.dev/enabled", "confrev.dev/group", "confrev.dev/group-revert",
"confrev.dev/revision", "confrev.dev/source"]
{{- end }}

{{/* All annotations. */}}
{{- define "confrev.keys.annotations" -}}
["confrev.dev/analysis", "confrev.dev/bake", "confrev.dev/bytes", "confrev.dev/carried",
"confrev.dev/change", "confrev.dev/changed-at", "confrev.dev/changed-by", "confrev.dev/decision",
"confrev.dev/digest", "confrev.dev/enabled-by", "confrev.dev/exclude", "confrev.dev/hold",
"confrev.dev/keep", "confrev.dev/live", "confrev.dev/max-in-flight", "confrev.dev/min-interval",
"confrev.dev/missing", "confrev.dev/mount", "confrev.dev/on-failure", "confrev.dev/on-undo",
"confrev.dev/order", "confrev.dev/partly-known", "confrev.dev/progress-deadline",
"confrev.dev/report", "confrev.dev/revoked", "confrev.dev/roll", "confrev.dev/schema",
"confrev.dev/schema-for", "confrev.dev/schema-keys", "confrev.dev/secrets",
"confrev.dev/secrets-mode", "confrev.dev/set", "confrev.dev/source-name",
"confrev.dev/source-namespace", "confrev.dev/sources", "confrev.dev/state", "confrev.dev/strategy",
"confrev.dev/track", "confrev.dev/unhealthy-after", "confrev.dev/verdict", "confrev.dev/waves",
"confrev.dev/window"]
{{- end }}

{{/* Those that users write on Namespaces. */}}
{{- define "confrev.keys.namespace" -}}
["confrev.dev/exclude", "confrev.dev/max-in-flight", "confrev.dev/min-interval", "confrev.dev/missing",
"confrev.dev/on-undo", "confrev.dev/order", "confrev.dev/secrets", "confrev.dev/secrets-mode",
"confrev.dev/strategy", "confrev.dev/window"]
{{- end }}

{{/* Those that users write on workloads. */}}
{{- define "confrev.keys.workload" -}}
["confrev.dev/exclude", "confrev.dev/hold", "confrev.dev/min-interval", "confrev.dev/missing",
"confrev.dev/mount", "confrev.dev/on-undo", "confrev.dev/order", "confrev.dev/progress-deadline",
"confrev.dev/roll", "confrev.dev/secrets", "confrev.dev/track", "confrev.dev/window"]
{{- end }}

{{/* Those that users write on sources. */}}
{{- define "confrev.keys.source" -}}
["confrev.dev/analysis", "confrev.dev/bake", "confrev.dev/keep", "confrev.dev/max-in-flight",
"confrev.dev/on-failure", "confrev.dev/report", "confrev.dev/schema", "confrev.dev/schema-for",
"confrev.dev/schema-keys", "confrev.dev/set", "confrev.dev/strategy", "confrev.dev/unhealthy-after",
"confrev.dev/waves", "confrev.dev/window"]
{{- end }}

{{/* The annotations that confrev writes on pod templates. */}}
{{- define "confrev.keys.template" -}}
["confrev.dev/live", "confrev.dev/sources"]
{{- end }}

{{/* Those of workloads that admission decides on. */}}
{{- define "confrev.keys.decided" -}}
["confrev.dev/carried", "confrev.dev/enabled-by", "confrev.dev/exclude", "confrev.dev/hold",
"confrev.dev/min-interval", "confrev.dev/missing", "confrev.dev/mount", "confrev.dev/on-undo",
"confrev.dev/order", "confrev.dev/progress-deadline", "confrev.dev/roll", "confrev.dev/secrets",
"confrev.dev/state", "confrev.dev/track", "confrev.dev/window"]
{{- end }}

{{/* Those that confrev's own writes of a workload may change. */}}
{{- define "confrev.keys.rewritten" -}}
["confrev.dev/carried", "confrev.dev/enabled-by", "confrev.dev/roll", "confrev.dev/state"]
{{- end }}

{{/* Settings of workloads, and a pattern of valid values. */}}
{{- define "confrev.keys.plain" -}}
[["confrev.dev/min-interval", "^(0|[0-9]{1,3}(ms|s|m|h))$"], ["confrev.dev/missing", "^(warn|allow)$"],
["confrev.dev/on-undo", "^(hold|none)$"], ["confrev.dev/secrets", "^(true|false)$"],
["confrev.dev/track", "^(true|false)$"]]
{{- end }}

{{/* Settings of workloads whose values are always checked. */}}
{{- define "confrev.keys.checked" -}}
["confrev.dev/exclude", "confrev.dev/hold", "confrev.dev/mount", "confrev.dev/order",
"confrev.dev/progress-deadline", "confrev.dev/window"]
{{- end }}
