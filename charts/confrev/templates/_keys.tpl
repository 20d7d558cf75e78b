{{/* Lists of labels and annotations, in CEL. Do not edit: tests/repository/keys.rs writes them from the table in
core/src/annotations.rs. */}}

{{/* All labels. */}}
{{- define "confrev.keys.labels" -}}
["confrev.dev/enabled", "confrev.dev/group", "confrev.dev/group-revert", "confrev.dev/revision",
"confrev.dev/source"]
{{- end }}

{{/* All annotations. */}}
{{- define "confrev.keys.annotations" -}}
["confrev.dev/secrets", "confrev.dev/secrets-mode", "confrev.dev/exclude", "confrev.dev/track",
"confrev.dev/missing", "confrev.dev/min-interval", "confrev.dev/roll", "confrev.dev/mount",
"confrev.dev/hold", "confrev.dev/on-undo", "confrev.dev/max-in-flight", "confrev.dev/waves",
"confrev.dev/bake", "confrev.dev/analysis", "confrev.dev/on-failure", "confrev.dev/order",
"confrev.dev/progress-deadline", "confrev.dev/window", "confrev.dev/set", "confrev.dev/schema",
"confrev.dev/schema-keys", "confrev.dev/schema-for", "confrev.dev/keep", "confrev.dev/sources",
"confrev.dev/live", "confrev.dev/seen", "confrev.dev/unhealthy", "confrev.dev/moved",
"confrev.dev/previous", "confrev.dev/pinned", "confrev.dev/promoted", "confrev.dev/aborted",
"confrev.dev/revoked", "confrev.dev/retried", "confrev.dev/refused", "confrev.dev/refused-at",
"confrev.dev/enabled-by", "confrev.dev/partly-known", "confrev.dev/source-name",
"confrev.dev/source-namespace", "confrev.dev/digest", "confrev.dev/bytes", "confrev.dev/changed-at",
"confrev.dev/changed-by"]
{{- end }}

{{/* Those that users write on Namespaces. */}}
{{- define "confrev.keys.namespace" -}}
["confrev.dev/secrets", "confrev.dev/secrets-mode", "confrev.dev/order", "confrev.dev/window"]
{{- end }}

{{/* Those that users write on workloads. */}}
{{- define "confrev.keys.workload" -}}
["confrev.dev/secrets", "confrev.dev/exclude", "confrev.dev/track", "confrev.dev/missing",
"confrev.dev/min-interval", "confrev.dev/roll", "confrev.dev/mount", "confrev.dev/hold",
"confrev.dev/on-undo", "confrev.dev/order", "confrev.dev/progress-deadline", "confrev.dev/window"]
{{- end }}

{{/* Those that users write on sources. */}}
{{- define "confrev.keys.source" -}}
["confrev.dev/max-in-flight", "confrev.dev/waves", "confrev.dev/bake", "confrev.dev/analysis",
"confrev.dev/on-failure", "confrev.dev/window", "confrev.dev/set", "confrev.dev/schema",
"confrev.dev/schema-keys", "confrev.dev/schema-for", "confrev.dev/keep"]
{{- end }}

{{/* Those of workloads that admission decides on. */}}
{{- define "confrev.keys.decided" -}}
["confrev.dev/secrets", "confrev.dev/exclude", "confrev.dev/track", "confrev.dev/missing",
"confrev.dev/min-interval", "confrev.dev/roll", "confrev.dev/mount", "confrev.dev/hold",
"confrev.dev/on-undo", "confrev.dev/order", "confrev.dev/progress-deadline", "confrev.dev/window",
"confrev.dev/seen", "confrev.dev/enabled-by"]
{{- end }}

{{/* Those that confrev's own writes of a workload may change. */}}
{{- define "confrev.keys.rewritten" -}}
["confrev.dev/roll", "confrev.dev/seen", "confrev.dev/unhealthy", "confrev.dev/moved",
"confrev.dev/previous", "confrev.dev/pinned", "confrev.dev/enabled-by"]
{{- end }}

{{/* Settings of workloads, and a pattern of valid values. */}}
{{- define "confrev.keys.plain" -}}
[["confrev.dev/secrets", "^(true|false)$"], ["confrev.dev/track", "^(true|false)$"],
["confrev.dev/missing", "^(warn|allow)$"], ["confrev.dev/min-interval", "^(0|[0-9]{1,3}(ms|s|m|h))$"],
["confrev.dev/on-undo", "^hold$"]]
{{- end }}

{{/* Settings of workloads whose values are always checked. */}}
{{- define "confrev.keys.checked" -}}
["confrev.dev/exclude", "confrev.dev/mount", "confrev.dev/hold", "confrev.dev/order",
"confrev.dev/progress-deadline", "confrev.dev/window"]
{{- end }}
