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

{{/* Rules of the operator's role. */}}
{{- define "headway.rules" -}}
- apiGroups: [headway.dev]
  resources: [rltrainingjobs, rlevaljobs]
  verbs: [get, list, watch, patch, delete]
- apiGroups: [headway.dev]
  resources: [rlbudgets]
  verbs: [get, list, watch]
- apiGroups: [headway.dev]
  resources: [rltrainingjobs/status, rlevaljobs/status, rlbudgets/status]
  verbs: [patch]
- apiGroups: [headway.dev]
  resources: [rltrainingjobs/finalizers, rlevaljobs/finalizers]
  verbs: [update]
# This resource does not exist. The admission policies let its holders set labels below headway.dev/.
- apiGroups: [headway.dev]
  resources: [sandboxes]
  verbs: [create]
- apiGroups: [""]
  resources: [configmaps, serviceaccounts, services]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [secrets]
  verbs: [create, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, delete]
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
  resources: [rolebindings]
  verbs: [get, list, watch, create, patch, delete]
# To delete roles that an older operator made for jobs.
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles]
  verbs: [get, list, watch, delete]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [{{ .Values.watchNamespaces | empty | ternary "clusterroles" "roles" }}]
  resourceNames:
    {{- range $name, $_ := include "headway.jobRoles" . | fromYaml }}
    - {{ $name }}
    {{- end }}
  verbs: [bind]
{{- end -}}

{{/* Rules of the fixed roles of jobs' accounts, by name. The operator may create no role. */}}
{{- define "headway.jobRoles" -}}
{{ include "headway.fullname" . }}-broker:
  - apiGroups: [""]
    resources: [pods]
    verbs: [create, delete, get, list, watch]
  # This resource does not exist. By this rule the admission policies recognize a broker.
  - apiGroups: [headway.dev]
    resources: [sandboxes]
    verbs: [create]
{{ include "headway.fullname" . }}-coordinator-rltrainingjobs:
  - apiGroups: [headway.dev]
    resources: [rltrainingjobs/status]
    verbs: [patch]
{{ include "headway.fullname" . }}-coordinator-rlevaljobs:
  - apiGroups: [headway.dev]
    resources: [rlevaljobs/status]
    verbs: [patch]
{{- end -}}

{{- define "headway.config" -}}
images: {{- toYaml .Values.images | nindent 2 }}
imagePullPolicy: {{ .Values.imagePullPolicy }}
imagePullSecrets: {{ .Values.imagePullSecrets | default list | toJson }}
accelerator: {{ .Values.accelerator | quote }}
{{- if not (kindIs "invalid" .Values.costLabels) }}
costLabels: {{ .Values.costLabels | toJson }}
{{- end }}
resources: {{- toYaml .Values.resources | nindent 2 }}
roleTemplates: {{- toYaml .Values.roleTemplates | nindent 2 }}
caps: {{- toYaml .Values.caps | nindent 2 }}
policy: {{- toYaml .Values.policy | nindent 2 }}
cacheSizeLimit: {{ .Values.cacheSizeLimit | quote }}
shmSizeLimit: {{ .Values.shmSizeLimit | quote }}
metricsFrom: {{- .Values.metricsFrom | default list | toYaml | nindent 2 }}
manager: {{ .Values.manager }}
jobRoles:
  kind: {{ .Values.watchNamespaces | empty | ternary "ClusterRole" "Role" }}
  prefix: {{ include "headway.fullname" . }}
watchNamespaces: {{ .Values.watchNamespaces | default list | toJson }}
resyncSeconds: {{ .Values.resyncSeconds }}
workers: {{ .Values.workers }}
stalledAfterSeconds: {{ .Values.stalledAfterSeconds }}
leaseName: {{ include "headway.operator" . }}
leaseNamespace: {{ .Release.Namespace }}
port: 8080
{{- end -}}
