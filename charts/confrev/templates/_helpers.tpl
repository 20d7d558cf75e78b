{{/* Every object's labels. Selectors use them too, so nothing that changes between versions may be added. */}}
{{- define "confrev.labels" -}}
app.kubernetes.io/name: confrev
{{- end }}

{{/* Namespaces out of every webhook: confrev must always be able to restart, and the cluster to start without it. */}}
{{- define "confrev.excludedNamespaces" -}}
{{- concat (list "kube-system" "kube-public" "kube-node-lease" .Release.Namespace) .Values.excludedNamespaces | uniq | join ", " -}}
{{- end }}

{{/* As a CEL expression: whether confrev is installed, seen by a right that it has in its own namespace and that goes with
that namespace. Nothing that was left behind in the cluster can then be in anybody's way. */}}
{{- define "confrev.installed" -}}
authorizer.serviceAccount({{ .Release.Namespace | quote }}, "confrev").group("coordination.k8s.io")
.resource("leases").namespace({{ .Release.Namespace | quote }}).name("confrev").check("update").allowed()
{{- end }}

{{- define "confrev.image" -}}
{{- .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ with .Values.image.digest }}@{{ . }}{{ end }}
{{- end }}

{{/* The Secret that is mounted, where the certificate is a file. */}}
{{- define "confrev.tlsSecret" -}}
{{- if eq .Values.certificates.mode "secret" }}{{ .Values.certificates.secret.name }}{{ else }}confrev-tls{{ end }}
{{- end }}

{{/* The volume with the authority of clients; nothing where clients need no certificate. */}}
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

{{/* Whom the API server asks: (dict "root" $ "path" PATH). */}}
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

{{/* The workloads that are sent. */}}
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

{{/* A template's path as a CEL expression: (dict "object" NAME "path" PATH). Indexed, as a field may be a CEL word. */}}
{{- define "confrev.celPath" -}}
{{ .object }}{{ range splitList "." .path }}[?{{ . | quote }}]{{ end }}
{{- end }}

{{/* One more term of a condition for each kind whose template is where no built-in kind has it. The others are covered,
and a second term for them would undo what the first lets pass of Rollouts. */}}
{{- define "confrev.extraTemplatesChanged" -}}
{{- range .Values.extraKinds }}
{{- if not (has .path (list "spec.template" "spec.jobTemplate.spec.template")) }}
|| (request.kind.kind == {{ .kind | quote }}
&& {{ include "confrev.celPath" (dict "object" "object" "path" .path) }}
!= {{ include "confrev.celPath" (dict "object" "oldObject" "path" .path) }})
{{- end }}
{{- end }}
{{- end }}

{{/* A ReplicaSet that has a controller is a revision, and stays as it was made. Only where ReplicaSets are configured. */}}
{{- define "confrev.notARevision" -}}
{{- $kinds := list }}{{ range .Values.extraKinds }}{{ $kinds = append $kinds .kind }}{{ end }}
{{- if has "ReplicaSet" $kinds }}
- name: not-a-revision-of-another
  expression: >-
    request.kind.kind != "ReplicaSet" || !object.metadata.?ownerReferences.orValue([]).exists(o,
    o.?controller.orValue(false))
{{- end }}
{{- end }}
