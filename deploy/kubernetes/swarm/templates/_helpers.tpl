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


{{/* Values of a part that is off, which would be dropped without a word. Context: values (of the part), usual (as
     values.yaml has them, JSON), name, and why with what to do. */}}
{{- define "swarm.unused" -}}
{{- $values := .values -}}
{{- range $key, $usual := fromJson .usual -}}
{{- if ne (index $values $key | toJson) ($usual | toJson) -}}
{{- fail (printf "%s.%s has no use: %s" $.name $key $.why) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Refuses values that exclude each other; a value alone is judged by values.schema.json. */}}
{{- define "swarm.check" -}}
{{- $nats := .Values.nats -}}
{{- $gateway := .Values.gateway -}}
{{- $scaling := .Values.autoscaling -}}
{{- if not $nats.enabled -}}
{{- $usual := `{"replicas": 1, "image": "docker.io/library/nats:2.12-alpine", "secret": "", "maxPayload": "", "storage": "10Gi", "storageClass": "", "resources": {"requests": {"cpu": "500m", "memory": "256Mi"}, "limits": {"memory": "2Gi"}}}` -}}
{{- include "swarm.unused" (dict "values" $nats "usual" $usual "name" "nats" "why" "nats.enabled is false, and the server at nats.url has settings of its own; leave it out, or leave out nats.enabled and nats.url") -}}
{{- else if $nats.url -}}
{{- fail "nats.url has no use: nats.enabled is true, and all pods would go to the chart's own server; set nats.enabled=false too, or leave out nats.url" -}}
{{- else if and $nats.secret (not .Values.credentials.secret) -}}
{{- fail "nats.secret without credentials.secret: the server would admit no pod; set credentials.secret too, or leave out both for an open mesh" -}}
{{- else if and .Values.credentials.secret (not $nats.secret) -}}
{{- fail "credentials.secret without nats.secret: the chart's own server would be open and without TLS, which the pods ask for; set nats.secret too, or leave out both for an open mesh" -}}
{{- end -}}
{{- /* No message shows the password that a URL may hold. */ -}}
{{- $port := "([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])" -}}
{{- $server := printf `(nats|tls)://([^\s,/?#@:][^\s,/?#@]*@)?(\[[0-9A-Fa-f:.]+\]|[^\s,/@:?#\[\]]+)(:%s)?/?` $port -}}
{{- range splitList "," $nats.url -}}
{{- if and $nats.url (not (regexMatch (printf "^%s$" $server) .)) -}}
{{- fail "nats.url is no address of a server: write nats://HOST:PORT or tls://HOST:PORT, several of one cluster separated by commas" -}}
{{- end -}}
{{- end -}}
{{- with $nats.maxPayload -}}
{{- $unit := ternary 1048576 (ternary 1024 1 (hasSuffix "KB" .)) (hasSuffix "MB" .) -}}
{{- $digits := regexFind "^[0-9]+" . -}}
{{- if or (gt (len $digits) 8) (gt (mul $digits $unit) 67108864) -}}
{{- fail (printf "nats.maxPayload %s: a server takes 64MB at most" .) -}}
{{- else if lt (mul $digits $unit) 1048576 -}}
{{- fail (printf "nats.maxPayload %s: a mesh needs 1MB at least; write the unit, as in 16MB" .) -}}
{{- end -}}
{{- end -}}
{{- if $gateway.replicas -}}
{{- $ports := list (int $gateway.http) (int $gateway.grpc) (int .Values.metrics.port) -}}
{{- if ne (len (uniq $ports)) 3 -}}
{{- fail (printf "gateway.http, gateway.grpc and metrics.port are %v: a gateway listens on all three; give each a port of its own" $ports) -}}
{{- end -}}
{{- else -}}
{{- $usual := `{"http": 8000, "grpc": 8001, "secret": "", "service": {"type": "ClusterIP"}}` -}}
{{- include "swarm.unused" (dict "values" $gateway "usual" $usual "name" "gateway" "why" "gateway.replicas is 0; leave it out, or set gateway.replicas to 1 or more") -}}
{{- end -}}
{{- if not (has $scaling.kind (list "none" "hpa" "keda")) -}}
{{- fail (printf "autoscaling.kind %q: it is none, hpa or keda. By objectives scales keda alone, which reads the nodes that the mesh wants for a stage from Prometheus: Kubernetes itself has no way to, and --autoscale of `swarm up` starts processes of one machine" $scaling.kind) -}}
{{- end -}}
{{- if eq $scaling.kind "none" -}}
{{- include "swarm.unused" (dict "values" $scaling "usual" `{"most": 4}` "name" "autoscaling" "why" "autoscaling.kind is none; set it to hpa or keda, or leave this out") -}}
{{- end -}}
{{- if ne $scaling.kind "hpa" -}}
{{- include "swarm.unused" (dict "values" $scaling "usual" `{"cpu": 70}` "name" "autoscaling" "why" (printf "autoscaling.kind is %s; set it to hpa, or leave this out" $scaling.kind)) -}}
{{- end -}}
{{- if ne $scaling.kind "keda" -}}
{{- include "swarm.unused" (dict "values" $scaling "usual" `{"prometheus": "http://prometheus.monitoring:9090"}` "name" "autoscaling" "why" (printf "autoscaling.kind is %s; set it to keda, or leave this out" $scaling.kind)) -}}
{{- end -}}
{{- range $index, $stage := .Values.stages -}}
{{- $replicas := int ($stage.replicas | default 1) -}}
{{- $resources := $stage.resources | default $.Values.resources -}}
{{- if and (ne $scaling.kind "none") (lt (int $scaling.most) $replicas) -}}
{{- fail (printf "autoscaling.most %d is below stages[%d].replicas %d, the fewest of that stage; raise it, or lower the replicas" (int $scaling.most) $index $replicas) -}}
{{- end -}}
{{- if and (eq $scaling.kind "hpa") (not (dig "requests" "cpu" "" $resources)) (not (dig "limits" "cpu" "" $resources)) -}}
{{- fail (printf "autoscaling.kind hpa scales by a share of the processor that a pod requests; set stages[%d].resources.requests.cpu" $index) -}}
{{- end -}}
{{- end -}}
{{- $names := list -}}
{{- range .Values.cameras -}}
{{- if has .name $names -}}
{{- fail (printf "cameras: two have the name %s; give each a name of its own" .name) -}}
{{- end -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- $clients := list (dict "podSelector" dict) -}}
{{- if and (not .Values.networkPolicy.enabled) (ne (toJson .Values.networkPolicy.clients) (toJson $clients)) -}}
{{- fail "networkPolicy.clients has no use: networkPolicy.enabled is false, and everybody would reach the gateway; enable it, or leave out the clients" -}}
{{- end -}}
{{- $arguments := .Values.arguments -}}
{{- range .Values.cameras -}}
{{- $arguments = concat $arguments (.arguments | default list) -}}
{{- end -}}
{{- range $arguments -}}
{{- if regexMatch "^--(nats|mesh|model|role|metrics-port|credentials|tls-ca|trust|http|grpc)(=|$)" . -}}
{{- fail (printf "arguments: %s contradicts what the chart tells the node; set the chart's own value instead" .) -}}
{{- end -}}
{{- end -}}
{{- end }}
