#!/bin/sh
# Applies a file with a ConfigMap in one cluster after the other: in the next one when the change is complete in this one.
# A content that was refused, or with which a workload failed, is refused in all later clusters from the start.
#
# usage: stage.sh FILE CONFIGMAP CONTEXT...
set -eu

file=$1
name=$2
shift 2

# The annotation confrev.dev/change of the ConfigMap in a cluster.
change() {
    kubectl get configmap "$name" --context "$1" --output 'jsonpath={.metadata.annotations.confrev\.dev/change}'
}

# Lists a digest in confrev's namespace of a cluster. Each stage tool owns its own key.
refuse() {
    kubectl apply --server-side --field-manager "stage-$name" --context "$1" --filename - <<END
apiVersion: v1
kind: ConfigMap
metadata:
  name: confrev-refused
  namespace: confrev
data:
  stage-$name: |
    $2 refused in $3
END
}

while [ $# -gt 0 ]; do
    context=$1
    shift
    kubectl apply --context "$context" --filename "$file"
    if kubectl confrev wait "configmap/$name" --complete --timeout "${TIMEOUT:-1h}" --context "$context"; then
        continue
    fi
    state=$(change "$context")
    echo "stage: the change stops in $context: $state" >&2
    case $state in
        *'"phase":"refused"'* | *'"gate":"failed"'*)
            digest=$(printf '%s' "$state" | sed 's/.*"digest":"\([^"]*\)".*/\1/')
            for later in "$@"; do
                refuse "$later" "$digest" "$context"
            done
            ;;
    esac
    exit 1
done
