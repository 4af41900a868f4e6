{{/*
What every component has: service account, Deployment, PodDisruptionBudget.
Takes a dict: root, component (its name), values, port (metrics), args (list), and for some ports, volumes,
volumeMounts, hostNetwork.
*/}}
{{- define "vpa.componentObjects" -}}
{{- $root := .root -}}
{{- $values := .values -}}
{{- $who := list $root .component -}}
{{- $name := include "vpa.component" $who -}}
{{- $serviceAccount := include "vpa.serviceAccount" (list $root .component $values) -}}
{{- if $values.serviceAccount.create }}
---
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ $serviceAccount }}
  namespace: {{ include "vpa.namespace" $root }}
  labels:
    {{- include "vpa.labels" $who | nindent 4 }}
    {{- with $values.serviceAccount.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with $values.serviceAccount.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ $name }}
  namespace: {{ include "vpa.namespace" $root }}
  labels:
    {{- include "vpa.labels" $who | nindent 4 }}
  {{- with $values.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  replicas: {{ $values.replicas }}
  revisionHistoryLimit: {{ $values.revisionHistoryLimit }}
  {{- with $values.updateStrategy }}
  strategy:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  selector:
    matchLabels:
      {{- include "vpa.selector" $who | nindent 6 }}
  template:
    metadata:
      labels:
        {{- include "vpa.labels" $who | nindent 8 }}
        {{- with $values.podLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with $values.podAnnotations }}
      annotations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
    spec:
      serviceAccountName: {{ $serviceAccount }}
      {{- with $root.Values.imagePullSecrets }}
      imagePullSecrets:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      securityContext:
        {{- toYaml (merge (deepCopy $root.Values.podSecurityContext) (dict "seccompProfile" (dict "type" "RuntimeDefault"))) | nindent 8 }}
      {{- if .hostNetwork }}
      hostNetwork: true
      dnsPolicy: ClusterFirstWithHostNet
      {{- end }}
      {{- with $values.priorityClassName }}
      priorityClassName: {{ . }}
      {{- end }}
      containers:
        - name: {{ .component }}
          image: {{ printf "%s:%s" $values.image.repository (default $root.Chart.AppVersion $values.image.tag) | quote }}
          imagePullPolicy: {{ $values.image.pullPolicy }}
          args:
            {{- with $values.logLevel }}
            - --v={{ . }}
            {{- end }}
            - --stderrthreshold=info
            {{- if ne $root.Values.compatibility "safe" }}
            - --compatibility={{ $root.Values.compatibility }}
            {{- end }}
            {{- if ne $root.Values.defaultUpdateMode "Recreate" }}
            - --default-update-mode={{ $root.Values.defaultUpdateMode }}
            {{- end }}
            {{- range .args }}
            - {{ . }}
            {{- end }}
            {{- if hasKey $values "leaderElection" }}
            {{- if eq (include "vpa.electsLeader" $values) "true" }}
            - --leader-elect=true
            - --leader-elect-resource-namespace={{ include "vpa.leaseNamespace" (list $root $values) }}
            - --leader-elect-resource-name={{ $values.leaderElection.resourceName }}
            - --leader-elect-lease-duration={{ $values.leaderElection.leaseDuration }}
            - --leader-elect-renew-deadline={{ $values.leaderElection.renewDeadline }}
            - --leader-elect-retry-period={{ $values.leaderElection.retryPeriod }}
            {{- end }}
            {{- end }}
            {{- range $values.extraArgs }}
            - {{ . | quote }}
            {{- end }}
          env:
            - name: NAMESPACE
              valueFrom:
                fieldRef:
                  fieldPath: metadata.namespace
            {{- with $values.extraEnv }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
          ports:
            {{- with .ports }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
            - name: prometheus
              containerPort: {{ .port }}
          livenessProbe:
            httpGet:
              path: /health-check
              port: prometheus
              scheme: HTTP
            initialDelaySeconds: 5
            periodSeconds: 10
            failureThreshold: 3
          readinessProbe:
            httpGet:
              path: /health-check
              port: prometheus
              scheme: HTTP
            periodSeconds: 10
            failureThreshold: 3
          {{- with $values.resources }}
          resources:
            {{- toYaml . | nindent 12 }}
          {{- end }}
          securityContext:
            {{- toYaml (merge (deepCopy $root.Values.containerSecurityContext) (dict "allowPrivilegeEscalation" false "readOnlyRootFilesystem" true "capabilities" (dict "drop" (list "ALL")))) | nindent 12 }}
          {{- with .volumeMounts }}
          volumeMounts:
            {{- toYaml . | nindent 12 }}
          {{- end }}
      {{- with .volumes }}
      volumes:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $values.nodeSelector }}
      nodeSelector:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $values.topologySpreadConstraints }}
      topologySpreadConstraints:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $values.affinity }}
      affinity:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $values.tolerations }}
      tolerations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
{{- if $values.podDisruptionBudget.enabled }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ $name }}
  namespace: {{ include "vpa.namespace" $root }}
  labels:
    {{- include "vpa.labels" $who | nindent 4 }}
spec:
  {{- if not (kindIs "invalid" $values.podDisruptionBudget.minAvailable) }}
  minAvailable: {{ $values.podDisruptionBudget.minAvailable }}
  {{- end }}
  {{- if not (kindIs "invalid" $values.podDisruptionBudget.maxUnavailable) }}
  maxUnavailable: {{ $values.podDisruptionBudget.maxUnavailable }}
  {{- end }}
  selector:
    matchLabels:
      {{- include "vpa.selector" $who | nindent 6 }}
{{- end }}
{{- end -}}

{{/*
A ClusterRole and its binding to one component.
Takes a dict: root, component, values, suffix ("" or "-something"), rules (YAML text).
*/}}
{{- define "vpa.clusterRole" -}}
{{- $who := list .root .component }}
{{- $name := printf "%s%s" (include "vpa.component" $who) .suffix }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {{ $name }}
  labels:
    {{- include "vpa.labels" $who | nindent 4 }}
rules:
  {{- .rules | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ $name }}
  labels:
    {{- include "vpa.labels" $who | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ $name }}
subjects:
  - kind: ServiceAccount
    name: {{ include "vpa.serviceAccount" (list .root .component .values) }}
    namespace: {{ include "vpa.namespace" .root }}
{{- end -}}

{{/* The same within one namespace. Takes also: namespace. */}}
{{- define "vpa.role" -}}
{{- $who := list .root .component }}
{{- $name := printf "%s%s" (include "vpa.component" $who) .suffix }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ $name }}
  namespace: {{ .namespace }}
  labels:
    {{- include "vpa.labels" $who | nindent 4 }}
rules:
  {{- .rules | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ $name }}
  namespace: {{ .namespace }}
  labels:
    {{- include "vpa.labels" $who | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ $name }}
subjects:
  - kind: ServiceAccount
    name: {{ include "vpa.serviceAccount" (list .root .component .values) }}
    namespace: {{ include "vpa.namespace" .root }}
{{- end -}}

{{/* The lease of the elected leader. Takes a dict: root, component, values. */}}
{{- define "vpa.leaderRole" -}}
{{- if eq (include "vpa.electsLeader" .values) "true" -}}
{{- $rules := printf `- apiGroups: ["coordination.k8s.io"]
  resources: ["leases"]
  verbs: ["create"]
- apiGroups: ["coordination.k8s.io"]
  resources: ["leases"]
  resourceNames: [%q]
  verbs: ["get", "update"]` .values.leaderElection.resourceName -}}
{{- include "vpa.role" (merge (dict "suffix" "-leader-locking" "namespace" (include "vpa.leaseNamespace" (list .root .values)) "rules" $rules) .) }}
{{- end -}}
{{- end -}}

{{- define "vpa.targetReaderRules" -}}
- apiGroups: ["*"]
  resources: ["*/scale"]
  verbs: ["get"]
- apiGroups: [""]
  resources: ["replicationcontrollers"]
  verbs: ["get", "list", "watch"]
- apiGroups: ["apps"]
  resources: ["daemonsets", "deployments", "replicasets", "statefulsets"]
  verbs: ["get", "list", "watch"]
- apiGroups: ["batch"]
  resources: ["jobs", "cronjobs"]
  verbs: ["get", "list", "watch"]
{{- end -}}

{{- define "vpa.actorRules" -}}
- apiGroups: [""]
  resources: ["pods", "limitranges"]
  verbs: ["list", "watch"]
- apiGroups: [""]
  resources: ["events"]
  verbs: ["create", "patch"]
- apiGroups: ["autoscaling.k8s.io"]
  resources: ["verticalpodautoscalers"]
  verbs: ["get", "list", "watch"]
{{- end -}}

{{- define "vpa.metricsAuthenticationRule" -}}
# --authenticate-metrics
- apiGroups: ["authentication.k8s.io"]
  resources: ["tokenreviews"]
  verbs: ["create"]
- apiGroups: ["authorization.k8s.io"]
  resources: ["subjectaccessreviews"]
  verbs: ["create"]
{{- end -}}
