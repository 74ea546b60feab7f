{{/*
One alert, unless the values omit it. Arguments: top (the chart's scope), name, severity, expr, summary, description,
board and for. The board is the dashboard that it links to, with its variables. The values may set another for.
Prometheus fills in the templates of summary, description and board.
*/}}
{{- define "headway.alert" -}}
{{- $rule := .top.Values.prometheusRule }}
{{- if not (has .name ($rule.disabled | default list)) -}}
- alert: {{ .name }}
  expr: |-
    {{- .expr | trim | nindent 4 }}
  for: {{ get ($rule.for | default dict) .name | default .for }}
  {{- with $rule.keepFiringFor }}
  keep_firing_for: {{ . }}
  {{- end }}
  labels:
    {{- $severity := get ($rule.severity | default dict) .name | default .severity }}
    {{- toYaml (merge (dict "severity" $severity) ($rule.alertLabels | default dict)) | nindent 4 }}
  annotations:
    summary: {{ .summary | quote }}
    description: {{ .description | quote }}
    {{- with $rule.runbookUrl }}
    runbook_url: {{ printf "%s/%s" (trimSuffix "/" .) $.name | quote }}
    {{- end }}
    {{- with $rule.dashboardUrl }}
    dashboard_url: {{ printf "%s/d/headway-%s" (trimSuffix "/" .) $.board | quote }}
    {{- end }}
{{- end }}
{{- end -}}

{{/* Labels of the scraped operator of this release, as its PodMonitor sets them. */}}
{{- define "headway.operatorTarget" -}}
namespace="{{ .Release.Namespace }}", job="{{ .Release.Namespace }}/{{ include "headway.operator" . }}"
{{- end -}}

{{/* Whether the chart's own PodMonitor scrapes the operator, without changes of its labels. */}}
{{- define "headway.operatorScraped" -}}
{{- $plain := true }}
{{- range .Values.podMonitor.relabelings }}
{{- if or (has .targetLabel (list "namespace" "job")) (has (lower (.action | default "")) (list "drop" "keep" "labeldrop" "labelkeep" "labelmap" "hashmod" "dropequal" "keepequal")) }}
{{- $plain = false }}
{{- end }}
{{- end }}
{{- if and .Values.podMonitor.enabled $plain (gt (int .Values.replicas) 0) }}yes{{ end }}
{{- end -}}
