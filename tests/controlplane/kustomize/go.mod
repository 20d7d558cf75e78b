// kustomize's examples. Nothing here is built.
module confrev.dev/controlplane/kustomize-examples

go 1.26.1

require sigs.k8s.io/kustomize v2.0.3+incompatible
