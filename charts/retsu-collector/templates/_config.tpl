{{/* The configuration of the program, and what follows from it. */}}

{{- define "retsu-collector.port" -}}
{{- (((.Values.config).worker).management).port | default 24247 | int }}
{{- end }}

{{/* One key for the program that sets the label and for the Service that selects it. */}}
{{- define "retsu-collector.roleLabel" -}}
{{- ((.Values.config).kubernetes).role_label | default "retsu.io/collector-role" }}
{{- end }}

{{- define "retsu-collector.termAnnotation" -}}
{{- ((.Values.config).kubernetes).term_annotation | default "retsu.io/collector-term" }}
{{- end }}

{{- define "retsu-collector.config" -}}
{{- $config := deepCopy (.Values.config | default dict) }}
{{- $database := dict }}
{{- if ((.Values.database).existingSecret).name }}
{{- $_ := set $database "url_file" "/run/secrets/retsu-collector/url/url" }}
{{- else if ((.Values.database).passwordSecret).name }}
{{- $_ := set $database "password_file" "/run/secrets/retsu-collector/password/password" }}
{{- end }}
{{- $kubernetes := dict "mode" "on" "instance_selector" (include "retsu-collector.instanceSelector" .) "container_name" "retsu-collector" }}
{{- range $section := list "database" "kubernetes" }}
{{- if not (index $config $section) }}{{ $_ := set $config $section dict }}{{ end }}
{{- end }}
{{- mergeOverwrite $config (dict "database" $database "kubernetes" $kubernetes) | toYaml }}
{{- end }}

{{/* Seconds from SIGTERM to SIGKILL: never less than the program takes for itself. */}}
{{- define "retsu-collector.gracePeriod" -}}
{{- $given := .Values.terminationGracePeriodSeconds }}
{{- ternary (add 5 (include "retsu-collector.shutdownTimeout" .)) $given (kindIs "invalid" $given) | int }}
{{- end }}

{{- define "retsu-collector.shutdownTimeout" -}}
{{- ((.Values.config).worker).shutdown_timeout_seconds | default 30 | ceil | int }}
{{- end }}

{{/*
Mode of mounted secrets. Without fsGroup they are root's, and a process that is not root reads what all may. Modes are
decimal, 288 for 0440 and 292 for 0444: YAML 1.2 takes a leading zero for text.
*/}}
{{- define "retsu-collector.secretMode" -}}
{{- ternary 292 288 (kindIs "invalid" (.Values.podSecurityContext).fsGroup) }}
{{- end }}

{{/* Volumes of the database's secrets. Mounted as directories, a file follows its Secret; a `subPath` would not. */}}
{{- define "retsu-collector.secretVolumes" -}}
{{- $database := .Values.database | default dict }}
{{- $existing := $database.existingSecret | default dict }}
{{- $password := $database.passwordSecret | default dict }}
{{- $ca := ($database.tls).ca | default dict }}
{{- $client := ($database.tls).clientCertificate | default dict }}
{{- if $existing.name }}
- name: database-url
  secret:
    secretName: {{ $existing.name | quote }}
    defaultMode: {{ include "retsu-collector.secretMode" . }}
    items:
      - key: {{ $existing.key | default "url" | quote }}
        path: url
{{- else if $password.name }}
- name: database-password
  secret:
    secretName: {{ $password.name | quote }}
    defaultMode: {{ include "retsu-collector.secretMode" . }}
    items:
      - key: {{ $password.key | default "password" | quote }}
        path: password
{{- end }}
{{- if $ca.secretName }}
- name: database-ca
  secret:
    secretName: {{ $ca.secretName | quote }}
    defaultMode: 292
    items:
      - key: {{ $ca.key | default "ca.crt" | quote }}
        path: ca.crt
{{- else if $ca.configMapName }}
- name: database-ca
  configMap:
    name: {{ $ca.configMapName | quote }}
    defaultMode: 292
    items:
      - key: {{ $ca.key | default "ca.crt" | quote }}
        path: ca.crt
{{- end }}
{{- if $client.secretName }}
- name: database-client
  secret:
    secretName: {{ $client.secretName | quote }}
    defaultMode: {{ include "retsu-collector.secretMode" . }}
    items:
      - key: {{ $client.certificateKey | default "tls.crt" | quote }}
        path: tls.crt
      - key: {{ $client.privateKeyKey | default "tls.key" | quote }}
        path: tls.key
{{- end }}
{{- end }}

{{/* Where they are mounted: each below its own directory, named as the volume without "database-". */}}
{{- define "retsu-collector.secretMounts" -}}
{{- range include "retsu-collector.secretVolumes" . | fromYamlArray }}
- name: {{ .name }}
  mountPath: /run/secrets/retsu-collector/{{ .name | trimPrefix "database-" }}
  readOnly: true
{{- end }}
{{- end }}

{{/* TLS by libpq's variables, which complete a URL and the parts alike. */}}
{{- define "retsu-collector.tlsEnv" -}}
{{- $tls := (.Values.database).tls | default dict }}
{{- if or ($tls.ca).secretName ($tls.ca).configMapName }}
- name: PGSSLMODE
  value: verify-full
- name: PGSSLROOTCERT
  value: /run/secrets/retsu-collector/ca/ca.crt
{{- end }}
{{- if ($tls.clientCertificate).secretName }}
- name: PGSSLCERT
  value: /run/secrets/retsu-collector/client/tls.crt
- name: PGSSLKEY
  value: /run/secrets/retsu-collector/client/tls.key
{{- end }}
{{- end }}

{{/* Seconds after which no snapshot is served any more. */}}
{{- define "retsu-collector.maxAge" -}}
{{- $collector := (((.Values.config).worker).queue).state_metrics_collector | default dict }}
{{- addf ($collector.collection_interval_seconds | default 15) (($collector.lease).fence_seconds | default 3) }}
{{- end }}

{{/* Empty where the leader collects nothing: nobody has gauges to be seen or verified. */}}
{{- define "retsu-collector.collects" -}}
{{- $collection := ((((.Values.config).worker).queue).state_metrics_collector).collection }}
{{- if not (has ($collection | toString) (list "off" "false")) }}true{{ end }}
{{- end }}
