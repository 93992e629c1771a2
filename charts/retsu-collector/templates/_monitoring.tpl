{{/* What monitors and alerts share. */}}

{{/* The job of every series of the release, whichever monitor scrapes it: what alerts and dashboard select, with the namespace. */}}
{{- define "retsu-collector.job" -}}
{{- include "retsu-collector.fullname" . }}
{{- end }}

{{/* The families of queue state that only a leader has, and only while it exports. */}}
{{- define "retsu-collector.leaderFamilies" -}}
{{- list
  "queue_messages_in_flight"
  "queue_messages_ready"
  "queue_oldest_in_flight_message_age_seconds"
  "queue_oldest_ready_message_age_seconds"
  "queue_state_queues_dropped"
  "queue_state_queues_found"
  "queue_state_snapshot_age_seconds"
  "queue_state_snapshot_timestamp_seconds" | join "|" }}
{{- end }}

{{/* The scrape of one endpoint: a list of the root context, the values of the monitor, and what it relabels of targets and of metrics. */}}
{{- define "retsu-collector.endpoint" -}}
{{- $monitor := index . 1 }}
{{- $job := dict "action" "replace" "targetLabel" "job" "replacement" (include "retsu-collector.job" (index . 0)) -}}
port: http
path: /metrics
{{- with $monitor.interval }}
interval: {{ . | quote }}
{{- end }}
{{- with $monitor.scrapeTimeout }}
scrapeTimeout: {{ . | quote }}
{{- end }}
relabelings:
  {{- prepend (index . 2) $job | toYaml | nindent 2 }}
{{- with index . 3 }}
metricRelabelings:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The milliseconds of a duration of Prometheus, 0 of none. */}}
{{- define "retsu-collector.milliseconds" -}}
{{- $duration := . | default "" }}
{{- $sum := 0 }}
{{- range $unit, $length := dict "y" 31536000000 "w" 604800000 "d" 86400000 "h" 3600000 "m" 60000 "s" 1000 "ms" 1 }}
{{- $sum = add $sum (mul $length (regexFind (printf "[0-9]+%s([0-9]|$)" $unit) $duration | regexFind "^[0-9]+" | int64)) }}
{{- end }}
{{- $sum }}
{{- end }}

{{/* Whole seconds between two scrapes; where nothing or 0 is set, the 30 s of the Prometheus Operator. */}}
{{- define "retsu-collector.scrapeSeconds" -}}
{{- $monitor := ternary .Values.podMonitor .Values.serviceMonitor (eq true (.Values.podMonitor).enabled) }}
{{- $interval := include "retsu-collector.milliseconds" ($monitor).interval | int64 | default 30000 }}
{{- div (add $interval 999) 1000 }}
{{- end }}

{{/*
Whole seconds that a normal hand-over may show in Prometheus: the next attempt, the take-over wait and the first refresh,
until they are scraped; and the last samples of a target that is gone, which end two scrape intervals after it.
*/}}
{{- define "retsu-collector.handoverSeconds" -}}
{{- $collector := (((.Values.config).worker).queue).state_metrics_collector | default dict }}
{{- $retry := $collector.leadership_retry_interval_seconds | default 15 }}
{{- $fence := ($collector.lease).fence_seconds | default 3 }}
{{- $refresh := $collector.refresh_timeout_seconds | default 10 }}
{{- add (addf $retry $fence $refresh | ceil | int) (mul 3 (include "retsu-collector.scrapeSeconds" . | int)) }}
{{- end }}

{{/* Age at which the last refresh is too old: two that are due, and a hand-over. */}}
{{- define "retsu-collector.staleSeconds" -}}
{{- $collector := (((.Values.config).worker).queue).state_metrics_collector | default dict }}
{{- add (mulf 2 ($collector.collection_interval_seconds | default 15) | ceil | int) (include "retsu-collector.handoverSeconds" . | int) }}
{{- end }}
