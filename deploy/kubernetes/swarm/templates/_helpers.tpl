{{- define "swarm.labels" -}}
app.kubernetes.io/name: swarm
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* What selects the pods of one role; context: a dict with root and role. */}}
{{- define "swarm.selector" -}}
app.kubernetes.io/name: swarm
app.kubernetes.io/instance: {{ .root.Release.Name }}
swarm/role: {{ .role }}
{{- end }}

{{- define "swarm.nats" -}}
{{- if .Values.nats.enabled -}}
{{- $name := printf "%s-nats" .Release.Name -}}
{{- $hosts := list $name -}}
{{- $servers := int .Values.nats.replicas -}}
{{- if gt $servers 1 -}}
{{- $hosts = list -}}
{{- range $number := until $servers -}}
{{- $hosts = append $hosts (printf "%s-%d.%s" $name $number $name) -}}
{{- end -}}
{{- end -}}
{{- $scheme := ternary "tls" "nats" (ne .Values.nats.secret "") -}}
{{- $urls := list -}}
{{- range $hosts -}}
{{- $urls = append $urls (printf "%s://%s:4222" $scheme .) -}}
{{- end -}}
{{ join "," $urls }}
{{- else -}}
{{ required "nats.url is needed where nats.enabled is false" .Values.nats.url }}
{{- end -}}
{{- end }}

{{/* No two pods of one role on one machine. Context: a dict with root and role. */}}
{{- define "swarm.affinity" -}}
{{- if ne .root.Values.antiAffinity "none" -}}
affinity:
  podAntiAffinity:
    {{- if eq .root.Values.antiAffinity "required" }}
    requiredDuringSchedulingIgnoredDuringExecution:
      - topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels: {{- include "swarm.selector" . | nindent 12 }}
    {{- else }}
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels: {{- include "swarm.selector" . | nindent 14 }}
    {{- end }}
{{- end }}
{{- end }}

{{/* The image with what a pod needs. Context: root, gpus, pictures (whether it is sent some). */}}
{{- define "swarm.image" -}}
{{- $images := .root.Values.image -}}
{{- if and .gpus .pictures -}}
{{- fail "stages[0].gpus: no image has both GPUs and the decoders that --send of a camera needs" -}}
{{- end -}}
{{- if and .root.Values.language .pictures -}}
{{- fail "language: a language model is sent no pictures; leave out --send of the cameras" -}}
{{- end -}}
{{- if .gpus }}{{ $images.gpu }}{{ else if .root.Values.language }}{{ $images.language }}{{ else if .pictures }}{{ $images.cameras }}{{ else }}{{ $images.node }}{{ end -}}
{{- end }}

{{/* Whether a camera sends pictures, which the nodes of stage 1 then decode: "true" or "". */}}
{{- define "swarm.pictures" -}}
{{- range .Values.cameras }}{{ range .arguments }}{{ if regexMatch "^--send(=|$)" . }}true{{ end }}{{ end }}{{ end -}}
{{- end }}

{{/* A pod of a node. Context: root, role, user (whose credentials; empty: the role), image, command, resources,
     nodeSelector, gpus, ports. */}}
{{- define "swarm.pod" -}}
{{- $user := .user | default .role -}}
metadata:
  labels:
    {{- include "swarm.labels" .root | nindent 4 }}
    swarm/role: {{ .role }}
spec:
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: 20
  securityContext:
    runAsNonRoot: true
    runAsUser: 64321
    runAsGroup: 64321
    fsGroup: 64321
    seccompProfile: {type: RuntimeDefault}
  {{- with .root.Values.image.pullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ . }}
    {{- end }}
  {{- end }}
  {{- with .nodeSelector | default .root.Values.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .root.Values.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- include "swarm.affinity" . | nindent 2 }}
  containers:
    - name: node
      image: "{{ .image }}:{{ .root.Values.image.tag }}"
      imagePullPolicy: {{ .root.Values.image.pullPolicy }}
      args: {{- toYaml (concat .command .root.Values.arguments) | nindent 8 }}
      env:
        - {name: SWARM_NATS, value: {{ include "swarm.nats" .root | quote }}}
        - {name: SWARM_MESH, value: {{ .root.Values.mesh | quote }}}
        {{- if ne .role "gateway" }}
        - {name: SWARM_MODEL, value: {{ .root.Values.model | quote }}}
        {{- end }}
        - {name: SWARM_METRICS_PORT, value: "0.0.0.0:{{ .root.Values.metrics.port }}"}
        {{- if and .root.Values.nats.enabled (gt (int .root.Values.nats.replicas) 1) }}
        - {name: SWARM_LANES, value: replicated}
        # Of requests that name none. A lane elects another leader 4 to 9 s after its server is lost.
        - {name: SWARM_BUDGET, value: 15s}
        {{- end }}
        # Pods share no /dev/shm, and no sockets.
        - {name: SWARM_SHM, value: "false"}
        {{- if .root.Values.credentials.secret }}
        - {name: SWARM_CREDENTIALS, value: /etc/swarm/{{ $user }}.creds}
        - {name: SWARM_TLS_CA, value: /etc/swarm/ca.pem}
        - {name: SWARM_TRUST, value: /etc/swarm/trusted}
        {{- else }}
        - {name: SWARM_ALLOW_UNSIGNED, value: "true"}
        {{- end }}
      ports:
        - {name: metrics, containerPort: {{ .root.Values.metrics.port }}}
        {{- range .ports }}
        - {name: {{ .name }}, containerPort: {{ .port }}}
        {{- end }}
      startupProbe:
        httpGet: {path: /livez, port: metrics}
        periodSeconds: 2
        failureThreshold: 60
      livenessProbe:
        httpGet: {path: /livez, port: metrics}
        periodSeconds: 5
        timeoutSeconds: 4
        failureThreshold: 3
      readinessProbe:
        httpGet: {path: /readyz, port: metrics}
        periodSeconds: 2
        timeoutSeconds: 3
        failureThreshold: 2
      {{- $resources := .resources | default .root.Values.resources }}
      {{- if .gpus }}
      {{- $limits := merge (dict "nvidia.com/gpu" .gpus) ($resources.limits | default dict) }}
      resources:
        {{- with $resources.requests }}
        requests: {{- toYaml . | nindent 10 }}
        {{- end }}
        limits: {{- toYaml $limits | nindent 10 }}
      {{- else }}
      resources: {{- toYaml $resources | nindent 8 }}
      {{- end }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
      volumeMounts:
        - {name: run, mountPath: /run/swarm}
        {{- if .root.Values.credentials.secret }}
        - {name: credentials, mountPath: /etc/swarm, readOnly: true}
        {{- end }}
        {{- if and (eq .role "gateway") .root.Values.gateway.secret }}
        - {name: gateway, mountPath: /etc/swarm-gateway, readOnly: true}
        {{- end }}
  volumes:
    - name: run
      emptyDir: {}
    {{- if .root.Values.credentials.secret }}
    # A pod sees the credentials of its own role alone.
    - name: credentials
      secret:
        secretName: {{ .root.Values.credentials.secret }}
        defaultMode: 0440
        items:
          - {key: {{ $user }}.creds, path: {{ $user }}.creds}
          - {key: ca.pem, path: ca.pem}
          - {key: trusted, path: trusted}
    {{- end }}
    {{- if and (eq .role "gateway") .root.Values.gateway.secret }}
    - name: gateway
      secret:
        secretName: {{ .root.Values.gateway.secret }}
        defaultMode: 0440
    {{- end }}
{{- end }}

{{/* A Deployment of one role. Context: that of a pod, and replicas. */}}
{{- define "swarm.deployment" -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ .root.Release.Name }}-{{ .role }}
  labels:
    {{- include "swarm.labels" .root | nindent 4 }}
    swarm/role: {{ .role }}
spec:
  {{- if not .scaled }}
  replicas: {{ .replicas }}
  {{- end }}
  selector:
    matchLabels: {{- include "swarm.selector" . | nindent 6 }}
  strategy:
    # The new node serves before the old one drains.
    rollingUpdate: {maxUnavailable: 0, maxSurge: 1}
  template: {{- include "swarm.pod" . | nindent 4 }}
{{- end }}
