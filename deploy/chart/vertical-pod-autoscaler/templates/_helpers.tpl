{{- define "vpa.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "vpa.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "vpa.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "vpa.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride -}}
{{- end -}}

{{/* Selector labels of one component. Takes (list $ component). */}}
{{- define "vpa.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ include "vpa.name" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{/* Labels of everything that belongs to no single component. */}}
{{- define "vpa.commonLabels" -}}
{{- with .Values.commonLabels }}
{{- toYaml . }}
{{ end -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/name: {{ include "vpa.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{/* Labels of one component's objects. Takes (list $ component). */}}
{{- define "vpa.labels" -}}
{{- $root := index . 0 -}}
{{ include "vpa.commonLabels" $root }}
app.kubernetes.io/component: {{ index . 1 }}
app.kubernetes.io/component-instance: {{ printf "%s-%s" $root.Release.Name (index . 1) | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{/* Name of one component's objects. Takes (list $ component). */}}
{{- define "vpa.component" -}}
{{- printf "%s-%s" (include "vpa.fullname" (index . 0)) (index . 1) -}}
{{- end -}}

{{/* Name of one component's service account. Takes (list $ component values). */}}
{{- define "vpa.serviceAccount" -}}
{{- $values := index . 2 -}}
{{- default (include "vpa.component" .) $values.serviceAccount.name -}}
{{- end -}}

{{/* "true" where one component elects a leader. Takes the component's values. */}}
{{- define "vpa.electsLeader" -}}
{{- $enabled := .leaderElection.enabled -}}
{{- if kindIs "invalid" $enabled -}}{{- gt (int .replicas) 1 -}}{{- else -}}{{- $enabled -}}{{- end -}}
{{- end -}}

{{- define "vpa.leaseNamespace" -}}
{{- $values := index . 1 -}}
{{- default (include "vpa.namespace" (index . 0)) $values.leaderElection.resourceNamespace -}}
{{- end -}}

{{/* Where the webhook's certificate comes from: certManager, files, generated, or own (nothing is done here). */}}
{{- define "vpa.certificates" -}}
{{- $admission := .Values.admissionController -}}
{{- if $admission.certManager.enabled -}}certManager
{{- else if $admission.tls.create -}}files
{{- else if $admission.certGen.enabled -}}generated
{{- else -}}own
{{- end -}}
{{- end -}}

{{- define "vpa.webhookConfiguration" -}}
{{- if .Values.admissionController.registerWebhook -}}
vpa-webhook-config
{{- else -}}
{{- include "vpa.fullname" . }}-webhook-config
{{- end -}}
{{- end -}}

{{/* Combinations that cannot work. */}}
{{- define "vpa.check" -}}
{{- $admission := .Values.admissionController -}}
{{- $manager := $admission.certManager -}}
{{- if and $manager.enabled $admission.certGen.enabled -}}
{{- fail "admissionController.certManager.enabled and admissionController.certGen.enabled exclude each other: set one of them to false" -}}
{{- end -}}
{{- if and $manager.enabled $admission.registerWebhook -}}
{{- fail "admissionController.certManager.enabled needs admissionController.registerWebhook=false: cert-manager writes the CA into the webhook that the chart renders" -}}
{{- end -}}
{{- if and $manager.enabled $admission.tls.create -}}
{{- fail "admissionController.certManager.enabled and admissionController.tls.create exclude each other: set one of them to false" -}}
{{- end -}}
{{- if and $manager.enabled (has "--reload-cert=false" $admission.extraArgs) -}}
{{- fail "admissionController.certManager.enabled renews certificates: remove --reload-cert=false from admissionController.extraArgs" -}}
{{- end -}}
{{- if and $manager.enabled (not $manager.createSelfSignedIssuer.enabled) (not $manager.issuerRef.name) -}}
{{- fail "admissionController.certManager.enabled needs admissionController.certManager.issuerRef.name, or createSelfSignedIssuer.enabled=true" -}}
{{- end -}}
{{- if and $admission.tls.create (not (and $admission.tls.caCert $admission.tls.cert $admission.tls.key)) -}}
{{- fail "admissionController.tls.create needs admissionController.tls.caCert, .cert and .key" -}}
{{- end -}}
{{- range $key := list "recommender" "updater" "admissionController" -}}
{{- $budget := (index $.Values $key).podDisruptionBudget -}}
{{- if and $budget.enabled (not (kindIs "invalid" $budget.minAvailable)) (not (kindIs "invalid" $budget.maxUnavailable)) -}}
{{- fail (printf "%s.podDisruptionBudget: minAvailable and maxUnavailable exclude each other: set one of them to null" $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
