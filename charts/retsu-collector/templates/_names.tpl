{{/* Names, labels and references. Every access to a value stands null: an upgrade with --reuse-values has none that are newer than its release. */}}

{{- define "retsu-collector.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* Release names have at most 53 characters: cut at 53, two releases still have two names, and a suffix of nine fits. */}}
{{- define "retsu-collector.fullname" -}}
{{- $name := include "retsu-collector.name" . }}
{{- $full := printf "%s-%s" .Release.Name $name }}
{{- if eq .Chart.Name "retsu-collector" }}
{{- if contains $name .Release.Name }}{{ $full = .Release.Name }}{{ end }}
{{- else if gt (len $full) 53 }}
{{- /* Under an alias, others may be beside it in one release, alike in all that is left by a cut. */}}
{{- $full = printf "%s-%s" ($full | trunc 44 | trimSuffix "-") ($full | sha256sum | trunc 8) }}
{{- end }}
{{- .Values.fullnameOverride | default $full | trunc 53 | trimSuffix "-" }}
{{- end }}

{{- define "retsu-collector.leaderService" -}}
{{ include "retsu-collector.fullname" . }}-leader
{{- end }}

{{- define "retsu-collector.metricsService" -}}
{{ include "retsu-collector.fullname" . }}-metrics
{{- end }}

{{- define "retsu-collector.namespace" -}}
{{- .Values.namespaceOverride | default .Release.Namespace }}
{{- end }}

{{- define "retsu-collector.serviceAccount" -}}
{{- $account := .Values.serviceAccount | default dict }}
{{- if $account.create }}
{{- $account.name | default (include "retsu-collector.fullname" .) }}
{{- else }}
{{- required "serviceAccount.name: name the ServiceAccount, or let the chart make one with serviceAccount.create: true" $account.name }}
{{- end }}
{{- end }}

{{- define "retsu-collector.image" -}}
{{- $image := .Values.image | default dict }}
{{- $registry := $image.registry | default (.Values.global).imageRegistry }}
{{- $repository := $image.repository | default "retsu-collector" }}
{{- if $registry }}{{ $registry | trimSuffix "/" }}/{{ end }}{{ $repository }}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{/* Some charts take the names of `global` as text; both forms do here. */}}
{{- define "retsu-collector.imagePullSecrets" -}}
{{- $names := list }}
{{- range concat (.Values.imagePullSecrets | default list) ((.Values.global).imagePullSecrets | default list) }}
{{- if kindIs "string" . }}{{ $names = append $names . }}{{ else }}{{ $names = append $names .name }}{{ end }}
{{- end }}
{{- range $names | uniq }}
- name: {{ . | quote }}
{{- end }}
{{- end }}

{{/* What Deployment, Services, budget, network policy, monitors and the program select. Never more than this: a selector cannot be changed. */}}
{{- define "retsu-collector.selectorLabels" -}}
app.kubernetes.io/name: {{ include "retsu-collector.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "retsu-collector.instanceSelector" -}}
app.kubernetes.io/name={{ include "retsu-collector.name" . }},app.kubernetes.io/instance={{ .Release.Name }}
{{- end }}

{{- define "retsu-collector.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" | quote }}
{{ include "retsu-collector.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
{{- end }}

{{/* Whoever has it as a part of something larger says so in commonLabels. */}}
{{- define "retsu-collector.partOf" -}}
app.kubernetes.io/part-of: retsu
{{- end }}

{{/*
The metadata of an object that is not a Pod. Takes a list: the root context, the name, and optionally a dict with
`labels`, `annotations`, `component`, `namespace`, and `scope: Cluster` for an object that has none.
*/}}
{{- define "retsu-collector.metadata" -}}
{{- $root := index . 0 }}
{{- $own := dict }}
{{- if gt (len .) 2 }}{{ $own = index . 2 }}{{ end }}
{{- $labels := include "retsu-collector.labels" $root | fromYaml }}
{{- if $own.component }}{{ $_ := set $labels "app.kubernetes.io/component" $own.component }}{{ end }}
{{- $namespace := include "retsu-collector.namespace" $root }}
{{- $name := index . 1 }}
{{- /* Elsewhere a release of this name and of another namespace may have an object, too. */}}
{{- if and $own.namespace (ne $own.namespace $namespace) }}{{ $name = printf "%s.%s" $name $namespace }}{{ end }}
{{- $annotations := merge dict ($own.annotations | default dict) ($root.Values.commonAnnotations | default dict) -}}
name: {{ $name | quote }}
{{- if ne ($own.scope | default "Namespace") "Cluster" }}
namespace: {{ $own.namespace | default $namespace | quote }}
{{- end }}
labels:
  {{- merge $labels ($own.labels | default dict) ($root.Values.commonLabels | default dict) (include "retsu-collector.partOf" . | fromYaml) | toYaml | nindent 2 }}
{{- with $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
