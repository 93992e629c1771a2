{{/* What a schema cannot say. Each rule ends the rendering with a sentence that says what to set. */}}
{{- define "retsu-collector.validate" -}}
{{- include "retsu-collector.validateNames" . }}
{{- include "retsu-collector.validateDatabase" . }}
{{- include "retsu-collector.validateConfig" . }}
{{- include "retsu-collector.validateLabels" . }}
{{- include "retsu-collector.validateBudget" . }}
{{- include "retsu-collector.validateServices" . }}
{{- include "retsu-collector.validateExtras" . }}
{{- include "retsu-collector.validateMonitors" . }}
{{- include "retsu-collector.validateVersion" . }}
{{- end }}

{{- define "retsu-collector.validateNames" -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" (include "retsu-collector.fullname" .)) }}
{{- fail (printf "%s: no name for a Service, which has lower-case letters, digits and -, a letter first; set fullnameOverride" (include "retsu-collector.fullname" .)) }}
{{- end }}
{{- end }}

{{- define "retsu-collector.validateDatabase" -}}
{{- $database := .Values.database | default dict }}
{{- $config := (.Values.config).database | default dict }}
{{- range $secret, $instead := dict "url" "database.existingSecret.name" "password" "database.passwordSecret.name" }}
{{- if not (kindIs "invalid" (index $config $secret)) }}
{{- fail (printf "config.database.%s: a ConfigMap is no place for a secret; make a Secret and name it in %s" $secret $instead) }}
{{- end }}
{{- end }}
{{- range $file, $instead := dict "url_file" "database.existingSecret" "password_file" "database.passwordSecret" "sslrootcert" "database.tls.ca" "sslcert" "database.tls.clientCertificate" "sslkey" "database.tls.clientCertificate" }}
{{- if not (kindIs "invalid" (index $config $file)) }}
{{- fail (printf "config.database.%s: the chart sets it; use %s" $file $instead) }}
{{- end }}
{{- end }}
{{- $url := ($database.existingSecret).name }}
{{- if not (or $url $config.host) }}
{{- fail "no database: name a Secret that holds its connection URL in database.existingSecret.name, or set config.database.host" }}
{{- end }}
{{- if $url }}
{{- range $part := list "host" "port" "user" "dbname" "sslmode" }}
{{- if not (kindIs "invalid" (index $config $part)) }}
{{- fail (printf "config.database.%s: a URL is given in database.existingSecret.name already; put it there, or leave that out" $part) }}
{{- end }}
{{- end }}
{{- if ($database.passwordSecret).name }}
{{- fail "database.passwordSecret.name: the URL of database.existingSecret.name has the password; leave one of them out" }}
{{- end }}
{{- end }}
{{- $ca := ($database.tls).ca | default dict }}
{{- if and $ca.secretName $ca.configMapName }}
{{- fail "database.tls.ca: set secretName or configMapName, not both" }}
{{- end }}
{{- if and (or $ca.secretName $ca.configMapName) $config.sslmode (not (has $config.sslmode (list "verify-ca" "verify-full"))) }}
{{- fail (printf "config.database.sslmode: %s does not verify the server, and database.tls.ca is given; leave it out, or set verify-full or verify-ca" $config.sslmode) }}
{{- end }}
{{- end }}

{{- define "retsu-collector.validateConfig" -}}
{{- range $key := list "mode" "instance_selector" "container_name" }}
{{- if not (kindIs "invalid" (index (($.Values.config).kubernetes | default dict) $key)) }}
{{- fail (printf "config.kubernetes.%s: the chart sets it, so that Services and program agree; leave it out" $key) }}
{{- end }}
{{- end }}
{{- $grace := include "retsu-collector.gracePeriod" . | int }}
{{- $shutdown := include "retsu-collector.shutdownTimeout" . | int }}
{{- if lt $grace $shutdown }}
{{- fail (printf "terminationGracePeriodSeconds: %d is less than config.worker.shutdown_timeout_seconds, %d; set at least that" $grace $shutdown) }}
{{- end }}
{{- end }}

{{- define "retsu-collector.validateLabels" -}}
{{- $selecting := list "app.kubernetes.io/name" "app.kubernetes.io/instance" "pod-template-hash" }}
{{- if has (include "retsu-collector.roleLabel" .) $selecting }}
{{- fail (printf "config.kubernetes.role_label: workloads and Services select by %s; set another label" (include "retsu-collector.roleLabel" .)) }}
{{- end }}
{{- $reserved := append $selecting (include "retsu-collector.roleLabel" .) }}
{{- range $value := list "commonLabels" "podLabels" }}
{{- range $label, $_ := index $.Values $value }}
{{- if has $label $reserved }}
{{- fail (printf "%s: %s tells replicas and leader apart and is not yours to set; use another label" $value $label) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "retsu-collector.validateBudget" -}}
{{- $budget := .Values.podDisruptionBudget | default dict }}
{{- $replicas := .Values.replicaCount | default 2 | int }}
{{- if $budget.enabled }}
{{- $hasMin := not (kindIs "invalid" $budget.minAvailable) }}
{{- $hasMax := not (kindIs "invalid" $budget.maxUnavailable) }}
{{- if and $hasMin $hasMax }}
{{- fail "podDisruptionBudget: minAvailable and maxUnavailable are both set; set maxUnavailable: null to use minAvailable" }}
{{- end }}
{{- if not (or $hasMin $hasMax) }}
{{- fail "podDisruptionBudget: set maxUnavailable or minAvailable, or enabled: false" }}
{{- end }}
{{- if $hasMax }}
{{- if eq 0 ($budget.maxUnavailable | toString | trimSuffix "%" | int) }}
{{- fail "podDisruptionBudget.maxUnavailable: 0 would let no node be drained; set at least 1" }}
{{- end }}
{{- else }}
{{- $min := $budget.minAvailable | toString | trimSuffix "%" | int }}
{{- if hasSuffix "%" ($budget.minAvailable | toString) }}
{{- /* The eviction API rounds a percentage up. */}}
{{- $min = div (add (mul $min $replicas) 99) 100 | int }}
{{- end }}
{{- if ge $min $replicas }}
{{- fail (printf "podDisruptionBudget.minAvailable: %v of %d replicas would let no node be drained; set less, or raise replicaCount" $budget.minAvailable $replicas) }}
{{- end }}
{{- end }}
{{- end }}
{{- $strategy := .Values.updateStrategy | default dict }}
{{- if and (eq "0" ($strategy.maxSurge | toString | trimSuffix "%")) (eq "0" ($strategy.maxUnavailable | default 0 | toString | trimSuffix "%")) }}
{{- fail "updateStrategy: maxSurge and maxUnavailable are both 0, so that a roll-out could not begin; set maxSurge: 1" }}
{{- end }}
{{- end }}

{{- /* The API server adds the other family, and refuses an upgrade that takes it away again. */}}
{{- define "retsu-collector.validateServices" -}}
{{- range $value := list "leaderService" "metricsService" }}
{{- $service := index $.Values $value | default dict }}
{{- if and (has $service.ipFamilyPolicy (list "PreferDualStack" "RequireDualStack")) (eq 1 (len ($service.ipFamilies | default list))) }}
{{- fail (printf "%s.ipFamilies: %s has two families; name both, or none" $value $service.ipFamilyPolicy) }}
{{- end }}
{{- if and (eq 2 (len ($service.ipFamilies | default list))) (not (has $service.ipFamilyPolicy (list "PreferDualStack" "RequireDualStack"))) }}
{{- fail (printf "%s.ipFamilyPolicy: two families are named; set PreferDualStack or RequireDualStack, or name one" $value) }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The API server, or who merges by it, knows the members of these lists by one field. */}}
{{- define "retsu-collector.validateExtras" -}}
{{- $taken := dict
  "extraContainers" (list "retsu-collector")
  "extraVolumes" (list "config" "token")
  "extraVolumeMounts" (list "/etc/retsu-collector" "/var/run/secrets/kubernetes.io/serviceaccount")
  "extraEnv" (list "RETSU_CONFIG" "POD_NAME" "POD_NAMESPACE" "POD_UID" "RETSU_WORKER__MANAGEMENT__PORT" "RETSU_KUBERNETES__MODE"
    "RETSU_KUBERNETES__INSTANCE_SELECTOR" "RETSU_KUBERNETES__CONTAINER_NAME" "RETSU_KUBERNETES__ROLE_LABEL" "RETSU_KUBERNETES__TERM_ANNOTATION") }}
{{- range include "retsu-collector.secretMounts" . | fromYamlArray }}
{{- $_ := set $taken "extraVolumes" (append $taken.extraVolumes .name) }}
{{- $_ := set $taken "extraVolumeMounts" (append $taken.extraVolumeMounts .mountPath) }}
{{- end }}
{{- range include "retsu-collector.tlsEnv" . | fromYamlArray }}
{{- $_ := set $taken "extraEnv" (append $taken.extraEnv .name) }}
{{- end }}
{{- range $value, $names := $taken }}
{{- $field := ternary "mountPath" "name" (eq $value "extraVolumeMounts") }}
{{- range index $.Values $value }}
{{- if has (index . $field) $names }}
{{- fail (printf "%s: %v is the chart's own, or there twice; leave it out, name it otherwise, or set it in config" $value (index . $field)) }}
{{- end }}
{{- $names = append $names (index . $field) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "retsu-collector.validateMonitors" -}}
{{- if and (.Values.serviceMonitor).enabled (.Values.podMonitor).enabled }}
{{- fail "serviceMonitor.enabled and podMonitor.enabled: both would scrape every replica, and each gauge would be there twice; enable one" }}
{{- end }}
{{- range $value := list "serviceMonitor" "podMonitor" }}
{{- $monitor := index $.Values $value | default dict }}
{{- $interval := include "retsu-collector.milliseconds" $monitor.interval | int }}
{{- if and $monitor.enabled (gt $interval 0) (gt (include "retsu-collector.milliseconds" $monitor.scrapeTimeout | int) $interval) }}
{{- fail (printf "%s.scrapeTimeout: %s is longer than the interval, %s, and the operator would scrape nothing; set at most that" $value $monitor.scrapeTimeout $monitor.interval) }}
{{- end }}
{{- end }}
{{- if and (.Values.prometheusRule).enabled (gt (include "retsu-collector.scrapeSeconds" . | int) 120) }}
{{- fail (printf "prometheusRule.enabled: alerts look back some minutes, and a scrape each %s s leaves nothing there; set an interval of 2m at most" (include "retsu-collector.scrapeSeconds" .)) }}
{{- end }}
{{- if and ((.Values.serviceMonitor).leader).enabled (not (.Values.serviceMonitor).enabled) }}
{{- fail "serviceMonitor.leader.enabled: needs serviceMonitor.enabled: true, or nothing is scraped of the standbys" }}
{{- end }}
{{- end }}

{{- define "retsu-collector.validateVersion" -}}
{{- if and (.Values.admissionPolicy).enabled (semverCompare "<1.30.0-0" .Capabilities.KubeVersion.Version) }}
{{- fail (printf "admissionPolicy.enabled: needs Kubernetes 1.30, and this is %s; set it to false" .Capabilities.KubeVersion.Version) }}
{{- end }}
{{- end }}
