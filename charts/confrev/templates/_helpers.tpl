{{/* The labels of every object. Selectors use them too, so add no label that changes between versions. */}}
{{- define "confrev.labels" -}}
app.kubernetes.io/name: confrev
{{- end }}

{{/* The namespaces that every webhook excludes: confrev must always be able to restart, and the cluster must be able to
start without it. */}}
{{- define "confrev.excludedNamespaces" -}}
{{- concat (list "kube-system" "kube-public" "kube-node-lease" .Release.Namespace) .Values.excludedNamespaces | uniq | join ", " -}}
{{- end }}

{{/* The excluded namespaces as the elements of a list in CEL. */}}
{{- define "confrev.celExcludedNamespaces" -}}
{{- range $i, $namespace := splitList ", " (include "confrev.excludedNamespaces" .) }}
{{- if $i }}
, {{ end }}{{ $namespace | quote }}
{{- end }}
{{- end }}

{{/* An additional term of a namespaceSelector: only the namespaces in which confrev may write, if they are listed. */}}
{{- define "confrev.onlyNamespaces" -}}
{{- with .Values.rbac.namespaces }}
- key: kubernetes.io/metadata.name
  operator: In
  values: [{{ join ", " . }}]
{{- end }}
{{- end }}

{{/* Whether confrev writes the `caBundle` of its webhook configurations. */}}
{{- define "confrev.writesWebhooks" -}}
{{- with .Values.certificates }}
{{- if or (eq .mode "self-signed") (and (eq .mode "secret") (not .secret.caBundle)) }}true{{ end }}
{{- end }}
{{- end }}

{{/* A CEL expression: whether confrev is installed. It checks a right that confrev has in its own namespace, and that is
deleted with that namespace. Objects that remain in the cluster then block no request. */}}
{{- define "confrev.installed" -}}
authorizer.serviceAccount({{ .Release.Namespace | quote }}, "confrev").group("coordination.k8s.io")
.resource("leases").namespace({{ .Release.Namespace | quote }}).name("confrev").check("update").allowed()
{{- end }}

{{- define "confrev.image" -}}
{{- .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ with .Values.image.digest }}@{{ . }}{{ end }}
{{- end }}

{{/* The Secret that is mounted if the certificate is a file. */}}
{{- define "confrev.tlsSecret" -}}
{{- if eq .Values.certificates.mode "secret" }}{{ .Values.certificates.secret.name }}{{ else }}confrev-tls{{ end }}
{{- end }}

{{/* The volume with the CA of clients; empty if clients need no certificate. */}}
{{- define "confrev.clientCA" -}}
{{- with .Values.certificates.clientCA }}
{{- if .configMap -}}
configMap:
  name: {{ .configMap }}
{{- else if .secret -}}
secret:
  secretName: {{ .secret }}
{{- end }}
{{- end }}
{{- end }}

{{/* Whether there are notifications; empty if not. */}}
{{- define "confrev.notifies" -}}
{{- if or .Values.notify.url .Values.notify.secret -}}true{{- end }}
{{- end }}

{{/* The clientConfig of a webhook: (dict "root" $ "path" PATH). */}}
{{- define "confrev.clientConfig" -}}
{{- if .root.Values.webhookUrl -}}
url: {{ printf "%s%s" (trimSuffix "/" .root.Values.webhookUrl) .path | quote }}
{{- else -}}
service:
  name: confrev
  namespace: {{ .root.Release.Namespace }}
  path: {{ .path }}
{{- end }}
{{- with .root.Values.certificates }}
{{- if and (eq .mode "secret") .secret.caBundle }}
caBundle: {{ .secret.caBundle | b64enc }}
{{- end }}
{{- end }}
{{- end }}

{{/* The rules that select workloads. */}}
{{- define "confrev.workloadRules" -}}
- apiGroups: [apps]
  apiVersions: [v1]
  operations: [CREATE, UPDATE]
  resources: [deployments, statefulsets, daemonsets]
  scope: Namespaced
- apiGroups: [batch]
  apiVersions: [v1]
  operations: [CREATE, UPDATE]
  resources: [cronjobs, jobs]
  scope: Namespaced
- apiGroups: [argoproj.io]
  apiVersions: [v1alpha1]
  operations: [CREATE, UPDATE]
  resources: [rollouts]
  scope: Namespaced
{{- range .Values.extraKinds }}
- apiGroups: [{{ .group | quote }}]
  apiVersions: [{{ .version }}]
  operations: [CREATE, UPDATE]
  resources: [{{ .resource }}]
  scope: Namespaced
{{- end }}
{{- end }}

{{/* A CEL expression: a template's path (dict "object" NAME "path" PATH). It uses indexes, since a field's name may be a CEL
keyword. */}}
{{- define "confrev.celPath" -}}
{{ .object }}{{ range splitList "." .path }}[?{{ . | quote }}]{{ end }}
{{- end }}

{{/* An additional term of a condition for each kind whose template has a path that no built-in kind uses. The built-in
terms cover the other kinds. A second term for those would match again the writes of Rollouts that the first one excludes. */}}
{{- define "confrev.extraTemplatesChanged" -}}
{{- range .Values.extraKinds }}
{{- if not (has .path (list "spec.template" "spec.jobTemplate.spec.template")) }}
|| (request.kind.kind == {{ .kind | quote }}
&& {{ include "confrev.celPath" (dict "object" "object" "path" .path) }}
!= {{ include "confrev.celPath" (dict "object" "oldObject" "path" .path) }})
{{- end }}
{{- end }}
{{- end }}

{{/* A ReplicaSet that has a controller is a revision, and is never changed. Only if ReplicaSets are configured. */}}
{{- define "confrev.notARevision" -}}
{{- $kinds := list }}{{ range .Values.extraKinds }}{{ $kinds = append $kinds .kind }}{{ end }}
{{- if has "ReplicaSet" $kinds }}
- name: not-a-revision-of-another
  expression: >-
    request.kind.kind != "ReplicaSet" || !object.metadata.?ownerReferences.orValue([]).exists(o,
    o.?controller.orValue(false))
{{- end }}
{{- end }}

{{/* The Secrets that confrev keeps in its own namespace, as CEL strings. The CA is among them only in mode self-signed. */}}
{{- define "confrev.ownSecretNames" -}}
{{ if eq .Values.certificates.mode "self-signed" }}"confrev-ca", {{ end }}"confrev-digest-key"
{{- end }}

{{/* The same for messages. */}}
{{- define "confrev.ownSecrets" -}}
{{ include "confrev.ownSecretNames" . | replace "\"" "" }}
{{- end }}

{{/* A CEL expression: whether two maps differ only in these fields: (dict "a" NAME "b" NAME "except" LIST). */}}
{{- define "confrev.celSame" -}}
[[{{ .a }}, {{ .b }}], [{{ .b }}, {{ .a }}]]
.all(pair, pair[0].all(key, key in
{{ .except }}
|| pair[0][?key] == pair[1][?key]))
{{- end }}

{{/* A CEL expression: whether a snapshot of a source may have this name: (dict "source" NAME "name" NAME): the name of the source, a
dash, and one of the numbers of hex digits that confrev uses. The name of the source is cut, with the dots at its end, if the digits would not
fit otherwise. */}}
{{- define "confrev.celIsSnapshotOf" -}}
[{{ .name }}.find(r'-([0-9a-f]{10}|[0-9a-f]{16}|[0-9a-f]{30}|[0-9a-f]{32}|[0-9a-f]{64})$')].all(end, end != ""
&& [{{ .source }}.substring(0, [size({{ .source }}), 253 - size(end)].min())].all(cut,
[{{ .name }}.substring(0, size({{ .name }}) - size(end))].all(stem,
cut.startsWith(stem) && cut.substring(size(stem)).replace(".", "") == "")))
{{- end }}

{{/* A CEL string: the form of the annotation `sources`, as confrev writes it. */}}
{{- define "confrev.celSources" -}}
{{- $entry := `"[0-9a-z.-]+":"[0-9a-z.-]+"` }}
{{- $configMaps := printf `"configmaps":[{](%s,)*%s[}]` $entry $entry }}
{{- $secrets := printf `"secrets":[{](%s,)*%s[}]` $entry $entry -}}
r'^[{](({{ $configMaps }}|{{ $secrets }}|{{ $configMaps }},{{ $secrets }}))?[}]$'
{{- end }}

{{/* A CEL expression: the entries of a part of the annotation `sources`, each as the names of the source and of its snapshot. */}}
{{- define "confrev.celEntries" -}}
{{ . }}.findAll(r'"[^"]+":"[^"]+"').map(entry, entry.substring(1, size(entry) - 1).split("\":\""))
{{- end }}

{{/* A CEL expression: the name of the source of a reference: (dict "name" NAME "kind" KIND), with KIND `configMap` or `secret`. It is the
name itself if the annotation `sources` of neither template has it as a snapshot. */}}
{{- define "confrev.celBase" -}}
{{ .name }} in variables.{{ .kind }}Plain ? {{ .name }}.substring(0, {{ .name }}.lastIndexOf("-"))
: {{ .name }} in variables.{{ .kind }}Names ? variables.{{ .kind }}Bases[variables.{{ .kind }}Names.indexOf({{ .name }})]
: {{ .name }}
{{- end }}

{{/* A CEL expression: a reference to a ConfigMap or Secret, with the name of its source: (dict "of" REFERENCE "name" FIELD
"fields" FIELDS "kind" KIND). FIELDS are all its fields except the name. */}}
{{- define "confrev.celReference" -}}
[dyn([{{ .of }}.?{{ .name }}.orValue("")].map(n,
{{ include "confrev.celBase" (dict "name" "n" "kind" .kind) }})),
{{ range $i, $field := .fields }}{{ if $i }}, {{ end }}dyn({{ $.of }}.?{{ $field }}){{ end }}]
{{- end }}

{{/* A CEL expression: whether a map has no other fields than these: (dict "of" MAP "fields" FIELDS). */}}
{{- define "confrev.celOnly" -}}
{{ .of }}.all(f, f in [{{ range $i, $field := .fields }}{{ if $i }}, {{ end }}{{ $field | quote }}{{ end }}])
{{- end }}

{{/* A CEL expression: an entry that is compared as a whole. The forms of an entry are lists that begin with their name: Kubernetes 1.37
answers a comparison of an object with a list by an error, and a list with such elements is then equal to the other one. */}}
{{- define "confrev.celWhole" -}}
dyn([dyn("whole"), dyn({{ . }})])
{{- end }}

{{/* A CEL expression: an entry of `env`. */}}
{{- define "confrev.celEnv" -}}
!has({{ . }}.valueFrom) || size({{ . }}) != 2 || !has({{ . }}.name) || size({{ . }}.valueFrom) != 1
? {{ include "confrev.celWhole" . }} : (
{{- range $field := list "configMapKeyRef" "secretKeyRef" }}
{{- $of := printf "%s.valueFrom.%s" $ $field }}
has({{ $of }})
&& has({{ $of }}.name) && has({{ $of }}.key)
&& size({{ $of }}) == (has({{ $of }}.optional) ? 3 : 2)
? dyn([dyn({{ $field | quote }}), dyn({{ $ }}.name),
dyn({{ include "confrev.celReference" (dict "of" $of "name" "name" "fields" (list "key" "optional") "kind" (trimSuffix "KeyRef" $field)) }})]) :
{{- end }}
{{ include "confrev.celWhole" . }})
{{- end }}

{{/* A CEL expression: an entry of `envFrom`. */}}
{{- define "confrev.celEnvFrom" -}}
{{- range $field := list "configMapRef" "secretRef" }}
{{- $of := printf "%s.%s" $ $field -}}
has({{ $of }})
&& {{ include "confrev.celOnly" (dict "of" $ "fields" (list "prefix" $field)) }}
&& {{ include "confrev.celOnly" (dict "of" $of "fields" (list "name" "optional")) }}
? dyn([dyn({{ $field | quote }}), dyn({{ $ }}.?prefix),
dyn({{ include "confrev.celReference" (dict "of" $of "name" "name" "fields" (list "optional") "kind" (trimSuffix "Ref" $field)) }})]) :
{{ end }}{{ include "confrev.celWhole" . }}
{{- end }}

{{/* A CEL expression: a volume. */}}
{{- define "confrev.celVolume" -}}
size({{ . }}) != 2 ? {{ include "confrev.celWhole" . }} :
{{- range $field, $name := dict "configMap" "name" "secret" "secretName" }}
{{- $of := printf "%s.%s" $ $field }}
has({{ $of }})
&& {{ include "confrev.celOnly" (dict "of" $of "fields" (list $name "items" "defaultMode" "optional")) }}
? dyn([dyn({{ $field | quote }}), dyn({{ $ }}.?name),
dyn({{ include "confrev.celReference" (dict "of" $of "name" $name "fields" (list "items" "defaultMode" "optional") "kind" $field) }})]) :
{{- end }}
has({{ . }}.projected)
&& {{ include "confrev.celOnly" (dict "of" (printf "%s.projected" .) "fields" (list "sources" "defaultMode")) }}
? dyn([dyn("projected"), dyn({{ . }}.?name), dyn({{ . }}.projected.?defaultMode),
dyn({{ . }}.projected.?sources.orValue([]).map(s, size(s) != 1 ? {{ include "confrev.celWhole" "s" }} :
{{- range $field := list "configMap" "secret" }}
{{- $of := printf "s.%s" $field }}
has({{ $of }})
&& {{ include "confrev.celOnly" (dict "of" $of "fields" (list "name" "items" "optional")) }}
? dyn([dyn({{ $field | quote }}),
dyn({{ include "confrev.celReference" (dict "of" $of "name" "name" "fields" (list "items" "optional") "kind" $field) }})]) :
{{- end }} {{ include "confrev.celWhole" "s" }}))])
: {{ include "confrev.celWhole" . }}
{{- end }}

{{/* A CEL expression: whether a volume has the form of the volume of `confrev.dev/mount`. */}}
{{- define "confrev.celIsMount" -}}
size({{ . }}) == 2 && has({{ . }}.projected)
&& {{ include "confrev.celOnly" (dict "of" (printf "%s.projected" .) "fields" (list "sources" "defaultMode")) }}
&& {{ . }}.projected.?sources.orValue([]).all(s, size(s) == 1 && has(s.configMap)
&& size(s.configMap) == 1 && has(s.configMap.name))
{{- end }}

{{/* The kinds whose template is not at spec.template, each as "group/resource=path", the configured ones first. */}}
{{- define "confrev.otherPaths" -}}
{{- $paths := list }}
{{- range .Values.extraKinds }}
{{- if or (ne .path "spec.template") (eq .resource "cronjobs") }}
{{- $paths = append $paths (printf "%s/%s=%s" .group .resource .path) }}
{{- end }}
{{- end }}
{{- append $paths "batch/cronjobs=spec.jobTemplate.spec.template" | join " " }}
{{- end }}

{{/* A CEL expression: whether the request is for one of these kinds. */}}
{{- define "confrev.celIsResource" -}}
{{- $parts := regexSplit "/" . 2 -}}
request.resource.group == {{ first $parts | quote }} && request.resource.resource == {{ last $parts | quote }}
{{- end }}

{{/* A CEL expression: the objects from the root to the one that contains the template, new and old, each with its next
field on that path, and whether it is the root. */}}
{{- define "confrev.celLevelsOf" -}}
[
{{- $at := "" }}
{{- range $i, $field := splitList "." . }}
{{- if $i }},{{ end }}
[dyn(variables.new{{ $at }}{{ if $i }}.orValue({}){{ end }}),
dyn(variables.old{{ $at }}{{ if $i }}.orValue({}){{ end }}), dyn({{ $field | quote }}), dyn({{ eq $i 0 }})]
{{- $at = printf "%s[?%s]" $at ($field | quote) }}
{{- end }}]
{{- end }}

{{- define "confrev.celLevels" -}}
{{- range splitList " " (include "confrev.otherPaths" .) }}
{{- $pair := splitList "=" . -}}
{{ include "confrev.celIsResource" (first $pair) }}
? {{ include "confrev.celLevelsOf" (last $pair) }} :
{{ end }}{{ include "confrev.celLevelsOf" "spec.template" }}
{{- end }}

{{- define "confrev.celTemplate" -}}
{{- $object := .object }}
{{- range splitList " " (include "confrev.otherPaths" .root) }}
{{- $pair := splitList "=" . -}}
{{ include "confrev.celIsResource" (first $pair) }}
? {{ include "confrev.celPath" (dict "object" $object "path" (last $pair)) }}.orValue({}) :
{{ end }}{{ include "confrev.celPath" (dict "object" $object "path" "spec.template") }}.orValue({})
{{- end }}

{{/* The conditions under which a write of a workload is sent to admission. All of them must be true. An error in an expression
refuses the write, so every path is optional: a Rollout with workloadRef has no template, and an object may have no labels or
annotations. */}}
{{- define "confrev.workloadConditions" -}}
# If only confrev's namespace is deleted, this object remains, and no webhook could answer. So this condition
# checks a right that is deleted with the namespace: without it, nothing is sent.
- name: confrev-is-installed
  expression: >-
    {{- include "confrev.installed" . | nindent 4 }}
# The removal of the last finalizer of an object under deletion must never be blocked.
- name: not-being-deleted
  expression: '!has(object.metadata.deletionTimestamp)'
# A CronJob's template is resolved when the CronJob is admitted, and its Jobs have the resolved template. If Jobs
# were sent here, no schedule would run while confrev is down, and a CronJob's own opt-out would not apply to its
# Jobs.
- name: not-the-job-of-a-cronjob
  expression: >-
    request.kind.kind != "Job" || !object.metadata.?ownerReferences.orValue([]).exists(o,
    o.kind == "CronJob" && o.?controller.orValue(false))
{{- with include "confrev.notARevision" . }}{{ . | trim | nindent 0 }}{{ end }}
- name: template-or-settings-changed
  expression: >-
    {{- include "confrev.templateOrSettingsChanged" . | nindent 4 }}
{{- end }}

{{/* A CEL expression. If none of these fields changes, there is nothing to decide: scaling, pausing, other labels and
annotations, and the writes of controllers.

One controller changes a template: on a new revision, the Rollout controller writes the whole Rollout in its own notation
(`resources: {}` is added, cpu "1000m" becomes "1"). The condition recognises this write by the revision annotation that it
sets. Such a write is not sent if every reference is unchanged, so a canary continues while confrev is down. */}}
{{- define "confrev.templateOrSettingsChanged" -}}
request.operation == "CREATE"
|| (object.?spec.?template != oldObject.?spec.?template && !(request.kind.kind == "Rollout"
&& object.metadata.?annotations[?"rollout.argoproj.io/revision"].hasValue()
&& object.metadata.?annotations[?"rollout.argoproj.io/revision"]
!= oldObject.metadata.?annotations[?"rollout.argoproj.io/revision"]
&& object.?spec.?template.?metadata.?labels == oldObject.?spec.?template.?metadata.?labels
&& object.?spec.?template.?metadata.?annotations == oldObject.?spec.?template.?metadata.?annotations
&& object.?spec.?template.?spec.?volumes.orValue([]).map(volume,
[dyn(volume.?configMap), dyn(volume.?secret),
dyn(volume.?projected.?sources.orValue([]).map(source, [source.?configMap, source.?secret]))])
== oldObject.?spec.?template.?spec.?volumes.orValue([]).map(volume,
[dyn(volume.?configMap), dyn(volume.?secret),
dyn(volume.?projected.?sources.orValue([]).map(source, [source.?configMap, source.?secret]))])
&& ["containers", "initContainers"].all(list,
object.?spec.?template.?spec[?list].orValue([]).map(container, [container.?envFrom.orValue([]),
dyn(container.?env.orValue([]).map(variable,
[variable.?valueFrom.?configMapKeyRef, variable.?valueFrom.?secretKeyRef]))])
== oldObject.?spec.?template.?spec[?list].orValue([]).map(container, [container.?envFrom.orValue([]),
dyn(container.?env.orValue([]).map(variable,
[variable.?valueFrom.?configMapKeyRef, variable.?valueFrom.?secretKeyRef]))]))))
|| object.?spec.?jobTemplate.?spec.?template != oldObject.?spec.?jobTemplate.?spec.?template
|| object.?spec.?jobTemplate.?metadata.?labels != oldObject.?spec.?jobTemplate.?metadata.?labels
{{- with include "confrev.extraTemplatesChanged" . }}{{ . | trim | nindent 0 }}{{ end }}
|| object.?spec.?workloadRef != oldObject.?spec.?workloadRef
|| ["confrev.dev/enabled", "confrev.dev/carried"].exists(key,
object.metadata.?labels[?key] != oldObject.metadata.?labels[?key])
|| {{ include "confrev.keys.decided" . }}.exists(key,
object.metadata.?annotations[?key] != oldObject.metadata.?annotations[?key])
{{- end }}

{{/* The memory of one check of a schema, in MiB. */}}
{{- define "confrev.memoryOfCheck" -}}27{{- end }}

{{/* The container's memory limit in MiB: the sum of its parts. */}}
{{- define "confrev.memory" -}}
{{- with .Values.memory -}}
{{- $checks := mul .checks (include "confrev.memoryOfCheck" . | int) -}}
{{- add .program .connections .index .controller .reviews .body $checks .notifications -}}
{{- end -}}
{{- end }}

{{/* The resources of the container. A memory limit below the sum of the parts is refused. */}}
{{- define "confrev.resources" -}}
{{- $parts := include "confrev.memory" . | int -}}
{{- $resources := deepCopy .Values.resources -}}
{{- $limits := $resources.limits | default dict -}}
{{- with $limits.memory -}}
{{- $text := kindIs "string" . | ternary . (int64 . | toString) -}}
{{- $unit := regexFind "[A-Za-z]*$" $text -}}
{{- $units := dict "" 1 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- if hasKey $units $unit -}}
{{- if lt (mulf (trimSuffix $unit $text | float64) (get $units $unit | float64)) (mulf $parts 1048576) -}}
{{- printf "resources.limits.memory is %s, and the parts in memory need %dMi: lower those, or raise the limit" $text $parts | fail -}}
{{- end -}}
{{- end -}}
{{- else -}}
{{- $limits = merge (dict "memory" (printf "%dMi" $parts)) (omit $limits "memory") -}}
{{- end -}}
{{- toYaml (merge (dict "limits" $limits) (omit $resources "limits")) -}}
{{- end }}

{{/* The annotations of a webhook configuration; nothing without any. */}}
{{- define "confrev.webhookAnnotations" -}}
{{- $annotations := deepCopy (.Values.webhookAnnotations | default dict) -}}
{{- if eq .Values.certificates.mode "cert-manager" -}}
{{- $_ := set $annotations "cert-manager.io/inject-ca-from" (printf "%s/confrev-tls" .Release.Namespace) -}}
{{- end -}}
{{- with $annotations -}}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end -}}
{{- end -}}

{{/* What happens while no replica answers: the value `outage`, or by default `carry` where the API server can. */}}
{{- define "confrev.outage" -}}
{{- $can := .Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy" -}}
{{- if and (eq (.Values.outage | default "") "carry") (not $can) -}}
{{- fail "outage: carry needs the API MutatingAdmissionPolicy v1 (Kubernetes 1.36 or later), and this API server does not serve it: use refuse" -}}
{{- end -}}
{{- .Values.outage | default (ternary "carry" "refuse" $can) -}}
{{- end }}

{{/* The places of references in a pod's spec: the list below `spec`, the list in each of its entries (none: the entry itself), the
path of the reference, and the field of its name. */}}
{{- define "confrev.places" -}}
- {kind: configMap, list: volumes, reference: configMap, name: name}
- {kind: configMap, list: volumes, inner: projected.sources, reference: configMap, name: name}
- {kind: configMap, list: containers, inner: envFrom, reference: configMapRef, name: name}
- {kind: configMap, list: containers, inner: env, reference: valueFrom.configMapKeyRef, name: name}
- {kind: configMap, list: initContainers, inner: envFrom, reference: configMapRef, name: name}
- {kind: configMap, list: initContainers, inner: env, reference: valueFrom.configMapKeyRef, name: name}
- {kind: secret, list: volumes, reference: secret, name: secretName}
- {kind: secret, list: volumes, inner: projected.sources, reference: secret, name: name}
- {kind: secret, list: containers, inner: envFrom, reference: secretRef, name: name}
- {kind: secret, list: containers, inner: env, reference: valueFrom.secretKeyRef, name: name}
- {kind: secret, list: initContainers, inner: envFrom, reference: secretRef, name: name}
- {kind: secret, list: initContainers, inner: env, reference: valueFrom.secretKeyRef, name: name}
{{- end }}

{{/* A CEL expression: a path of optional fields (dict "of" NAME "path" PATH). */}}
{{- define "confrev.celFields" -}}
{{ .of }}{{ range splitList "." .path }}.?{{ . }}{{ end }}
{{- end }}

{{/* A CEL expression: the names of all references of a kind in a template, some of them more than once: (dict "template" NAME
"kind" KIND). */}}
{{- define "confrev.celNames" -}}
{{- $first := true }}
{{- range include "confrev.places" . | fromYamlArray }}
{{- if eq .kind $.kind }}
{{- if not $first }}
+ {{ end }}{{ $first = false -}}
{{ $.template }}.?spec.?{{ .list }}.orValue([]).map(x,
{{- if .inner }}
{{ include "confrev.celFields" (dict "of" "x" "path" .inner) }}.orValue([]).map(y,
{{ include "confrev.celFields" (dict "of" "y" "path" .reference) }}.?{{ .name }}.orValue(""))).flatten()
{{- else }}
{{ include "confrev.celFields" (dict "of" "x" "path" .reference) }}.?{{ .name }}.orValue(""))
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* A CEL expression: JSON patches that give each reference in `variables.template` the name that a map has for it:
(dict "kind" KIND "map" NAME). */}}
{{- define "confrev.celRenames" -}}
{{- $first := true }}
{{- range include "confrev.places" . | fromYamlArray }}
{{- if eq .kind $.kind }}
{{- if not $first }}
+ {{ end }}{{ $first = false -}}
{{- $end := printf "/%s/%s" (replace "." "/" .reference) .name -}}
variables.template.?spec.?{{ .list }}.orValue([]).transformList(i, x,
{{- if .inner }}
{{ include "confrev.celFields" (dict "of" "x" "path" .inner) }}.orValue([]).transformList(j, y,
{{ include "confrev.celFields" (dict "of" "y" "path" .reference) }}.?{{ .name }}.orValue("") in {{ $.map }}, JSONPatch{op: "replace",
path: variables.at + "/spec/{{ .list }}/" + string(i) + "/{{ replace "." "/" .inner }}/" + string(j) + "{{ $end }}",
value: {{ $.map }}[y.{{ .reference }}.{{ .name }}]})).flatten()
{{- else }}
{{ include "confrev.celFields" (dict "of" "x" "path" .reference) }}.?{{ .name }}.orValue("") in {{ $.map }}, JSONPatch{op: "replace",
path: variables.at + "/spec/{{ .list }}/" + string(i) + "{{ $end }}",
value: {{ $.map }}[x.{{ .reference }}.{{ .name }}]})
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* A CEL expression: a part of the annotation `sources` as a map: (dict "text" TEXT "kind" KIND "entry" ENTRY). In ENTRY, `e[0]` is
a source and `e[1]` its snapshot. */}}
{{- define "confrev.celMap" -}}
({{ .text }} + "\"secrets\":{").split("\"secrets\":{")[{{ ternary 0 1 (eq .kind "configMap") }}]
.findAll(r'"[^"{}]+":"[^"{}]+"').map(entry, entry.substring(1, size(entry) - 1).split("\":\""))
.transformMapEntry(i, e, {{ .entry }})
{{- end }}

{{/* A CEL expression: names, each once. */}}
{{- define "confrev.celOnce" -}}
[{{ . }}.sort()].map(all, all.transformList(i, name, i == 0 || all[i - 1] != name, name))[0]
{{- end }}

{{/* The values with which the label of a namespace opts workloads in, now or with their next deployment. */}}
{{- define "confrev.optingIn" -}}
["true", "next"]
{{- end }}

{{/* A CEL expression: whether the label of the namespace opts workloads in. */}}
{{- define "confrev.celOptingIn" -}}
dyn(namespaceObject).metadata.?labels[?"confrev.dev/enabled"].orValue("") in {{ include "confrev.optingIn" . }}
{{- end }}

{{/* A CEL expression: whether a workload is opted in, by its own label or by that of its namespace. A malformed label counts as an
opt-in: its write is refused. */}}
{{- define "confrev.celOptedIn" -}}
variables.new.metadata.?labels[?"confrev.dev/enabled"].hasValue()
? variables.new.metadata.labels["confrev.dev/enabled"] != "false"
: {{ include "confrev.celOptingIn" . }}
{{- end }}

{{/* A CEL expression: JSON patches that mark a workload: the label, and the annotation with this value. */}}
{{- define "confrev.celMark" -}}
(has(object.metadata.labels) ? [] : [JSONPatch{op: "add", path: "/metadata/labels", value: {}}])
+ (has(object.metadata.annotations) ? [] : [JSONPatch{op: "add", path: "/metadata/annotations", value: {}}])
+ [JSONPatch{op: "add", path: "/metadata/labels/confrev.dev~1carried", value: "true"},
JSONPatch{op: "add", path: "/metadata/annotations/confrev.dev~1carried", value: {{ . }}}]
{{- end }}

{{/* Two bindings of a policy, with the selectors of the two webhooks of workloads: (dict "root" $ "policy" NAME "kind" KIND "spec"
YAML "selector" YAML). */}}
{{- define "confrev.workloadBindings" -}}
{{- range $name := list "own" "namespaced" }}
---
apiVersion: admissionregistration.k8s.io/v1
kind: {{ $.kind }}
metadata:
  name: {{ $.policy }}-{{ $name }}
  labels:
    {{- include "confrev.labels" $.root | nindent 4 }}
spec:
  policyName: {{ $.policy }}
  {{- with $.spec }}{{ . | nindent 2 }}{{ end }}
  matchResources:
    namespaceSelector:
      {{- include "confrev.workloadNamespaces" (dict "root" $.root "optedIn" (eq $name "namespaced")) | nindent 6 }}
    objectSelector:
      matchExpressions:
        {{- if eq $name "own" }}
        - key: confrev.dev/enabled
          operator: Exists
        {{- end }}
        {{- with $.selector }}{{ . | nindent 8 }}{{ end }}
        - key: confrev.dev/enabled
          operator: NotIn
          values: ["false"]
{{- end }}
{{- end }}

{{/* The namespaces of a webhook of workloads: (dict "root" $ "optedIn" BOOL). confrev must always be able to restart, and the
cluster must be able to start without it. */}}
{{- define "confrev.workloadNamespaces" -}}
matchExpressions:
  - key: kubernetes.io/metadata.name
    operator: NotIn
    values: [{{ include "confrev.excludedNamespaces" .root }}]
  {{- with include "confrev.onlyNamespaces" .root }}{{ . | trim | nindent 2 }}{{ end }}
  - key: confrev.dev/enabled
    operator: {{ ternary "In" "NotIn" .optedIn }}
    values: {{ include "confrev.optingIn" . }}
{{- end }}

{{/* The strategies as JSON. A value of null removes one. */}}
{{- define "confrev.strategies" -}}
{{- $strategies := dict -}}
{{- range $name, $settings := .Values.strategies | default dict -}}
{{- if kindIs "map" $settings }}{{ $_ := set $strategies $name $settings }}{{ end -}}
{{- end -}}
{{- toPrettyJson $strategies -}}
{{- end }}

{{/* The condition of the webhook for sources with a check, or of that for all others. */}}
{{- define "confrev.hasCheck" -}}
# Such content is checked against its schema, or the template of its analysis is, which takes longer.
- name: {{ ternary "has-a-check" "has-no-check" . }}
  expression: >-
    {{ ternary "" "!" . }}["confrev.dev/analysis", "confrev.dev/schema", "confrev.dev/schema-keys"].exists(key,
    object.metadata.?annotations[?key].hasValue())
{{- end }}
