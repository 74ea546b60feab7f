{{- define "headway.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "headway.operator" -}}
{{ include "headway.fullname" . }}-operator
{{- end -}}

{{- define "headway.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "headway.labels" -}}
{{ include "headway.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "headway.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ .Values.serviceAccount.name | default (include "headway.operator" .) }}
{{- else -}}
{{ required "serviceAccount.name is needed with serviceAccount.create: false" .Values.serviceAccount.name }}
{{- end -}}
{{- end -}}

{{/* What the operator does, and what it grants: it cannot grant what it does not hold. */}}
{{- define "headway.rules" -}}
- apiGroups: [headway.dev]
  resources: [rltrainingjobs, rlevaljobs]
  verbs: [get, list, watch, patch, delete]
- apiGroups: [headway.dev]
  resources: [rltrainingjobs/status, rlevaljobs/status]
  verbs: [patch]
- apiGroups: [headway.dev]
  resources: [rltrainingjobs/finalizers, rlevaljobs/finalizers]
  verbs: [update]
- apiGroups: [""]
  resources: [configmaps, serviceaccounts, services]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [secrets]
  verbs: [create, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete]
- apiGroups: [""]
  resources: [namespaces]
  verbs: [get]
- apiGroups: [""]
  resources: [events]
  verbs: [list, create]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [apps]
  resources: [replicasets]
  verbs: [get, list, watch]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [get, list, watch, create, patch, delete]
{{- end -}}

{{- define "headway.config" -}}
images: {{- toYaml .Values.images | nindent 2 }}
imagePullPolicy: {{ .Values.imagePullPolicy }}
imagePullSecrets: {{ .Values.imagePullSecrets | default list | toJson }}
accelerator: {{ .Values.accelerator | quote }}
resources: {{- toYaml .Values.resources | nindent 2 }}
roleTemplates: {{- toYaml .Values.roleTemplates | nindent 2 }}
caps: {{- toYaml .Values.caps | nindent 2 }}
cacheSizeLimit: {{ .Values.cacheSizeLimit | quote }}
shmSizeLimit: {{ .Values.shmSizeLimit | quote }}
metricsFrom: {{- .Values.metricsFrom | default list | toYaml | nindent 2 }}
manager: {{ .Values.manager }}
watchNamespaces: {{ .Values.watchNamespaces | default list | toJson }}
resyncSeconds: {{ .Values.resyncSeconds }}
workers: {{ .Values.workers }}
stalledAfterSeconds: {{ .Values.stalledAfterSeconds }}
leaseName: {{ include "headway.operator" . }}
leaseNamespace: {{ .Release.Namespace }}
port: 8080
{{- end -}}
