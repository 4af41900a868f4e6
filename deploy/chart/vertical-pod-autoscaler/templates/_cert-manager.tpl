{{/* The webhook's certificate by cert-manager, with an issuer of its own where none is given. */}}
{{- define "vpa.certManagerObjects" -}}
{{- $values := .Values.admissionController -}}
{{- $manager := $values.certManager -}}
{{- $name := include "vpa.fullname" . -}}
{{- $who := list . "admission-controller" -}}
{{- $issuer := $manager.issuerRef }}
{{- if $manager.createSelfSignedIssuer.enabled }}
{{- $issuer = dict "name" (printf "%s-webhook-ca" $name) "kind" "Issuer" "group" "cert-manager.io" }}
---
apiVersion: cert-manager.io/v1
kind: Issuer
metadata:
  name: {{ $name }}-selfsigned
  namespace: {{ include "vpa.namespace" . }}
  labels:
    {{- include "vpa.labels" $who | nindent 4 }}
spec:
  selfSigned: {}
---
apiVersion: cert-manager.io/v1
kind: Certificate
metadata:
  name: {{ $name }}-ca
  namespace: {{ include "vpa.namespace" . }}
  labels:
    {{- include "vpa.labels" $who | nindent 4 }}
spec:
  isCA: true
  commonName: {{ $name }}-ca
  secretName: {{ $name }}-ca
  duration: {{ $manager.createSelfSignedIssuer.duration }}
  renewBefore: {{ $manager.createSelfSignedIssuer.renewBefore }}
  privateKey:
    {{- toYaml $manager.privateKey | nindent 4 }}
  issuerRef:
    name: {{ $name }}-selfsigned
    kind: Issuer
    group: cert-manager.io
---
apiVersion: cert-manager.io/v1
kind: Issuer
metadata:
  name: {{ $name }}-webhook-ca
  namespace: {{ include "vpa.namespace" . }}
  labels:
    {{- include "vpa.labels" $who | nindent 4 }}
spec:
  ca:
    secretName: {{ $name }}-ca
{{- end }}
---
apiVersion: cert-manager.io/v1
kind: Certificate
metadata:
  name: {{ $name }}-webhook-cert
  namespace: {{ include "vpa.namespace" . }}
  labels:
    {{- include "vpa.labels" $who | nindent 4 }}
  {{- with $manager.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  secretName: {{ $values.tls.secretName }}
  dnsNames:
    - {{ $values.service.name }}
    - {{ $values.service.name }}.{{ include "vpa.namespace" . }}
    - {{ $values.service.name }}.{{ include "vpa.namespace" . }}.svc
  duration: {{ $manager.duration }}
  renewBefore: {{ $manager.renewBefore }}
  privateKey:
    {{- toYaml $manager.privateKey | nindent 4 }}
  issuerRef:
    {{- toYaml $issuer | nindent 4 }}
{{- end -}}
