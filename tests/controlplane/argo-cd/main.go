// Command argo-cd-sync syncs a namespace with manifests, as an Argo CD Application with automated sync does: Argo CD's own
// code compares and applies. Everything around it (repositories, projects, a database) is left out.
//
// Each line of the input is the path of a file with manifests. The answer is a line of JSON: the resources that differ
// before the sync and, if any do, the results of the sync.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/argoproj/argo-cd/v3/pkg/apis/application/v1alpha1"
	"github.com/argoproj/argo-cd/v3/util/argo"
	argodiff "github.com/argoproj/argo-cd/v3/util/argo/diff"
	"github.com/argoproj/argo-cd/v3/util/argo/normalizers"
	"github.com/argoproj/gitops-engine/pkg/cache"
	"github.com/argoproj/gitops-engine/pkg/diff"
	"github.com/argoproj/gitops-engine/pkg/sync"
	"github.com/argoproj/gitops-engine/pkg/sync/common"
	"github.com/argoproj/gitops-engine/pkg/utils/kube"
	"github.com/argoproj/gitops-engine/pkg/utils/tracing"
	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// The field manager of Argo CD's server-side applies.
const manager = "argocd-controller"

// The label that identifies an Application's objects, if labels do so.
const instanceLabel = "app.kubernetes.io/instance"

type application struct {
	config    *rest.Config
	cache     cache.ClusterCache
	kubectl   kube.Kubectl
	name      string
	namespace string
	ignored   []v1alpha1.ResourceIgnoreDifferences
	// The sync options ServerSideApply and ApplyOutOfSyncOnly, and the compare option ServerSideDiff.
	serverSideApply, outOfSyncOnly, serverSideDiff bool
	prune                                          bool
}

type change struct {
	Kind      string          `json:"kind"`
	Name      string          `json:"name"`
	Live      json.RawMessage `json:"live"`
	Predicted json.RawMessage `json:"predicted"`
}

type result struct {
	Kind    string `json:"kind"`
	Name    string `json:"name"`
	Status  string `json:"status"`
	Message string `json:"message"`
}

type answer struct {
	OutOfSync []change `json:"outOfSync"`
	Synced    []result `json:"synced"`
	Error     string   `json:"error,omitempty"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	app := &application{}
	kubeconfig := flag.String("kubeconfig", "", "the kubeconfig")
	ignored := flag.String("ignore-differences", "[]", "the Application's spec.ignoreDifferences, as JSON")
	flag.StringVar(&app.name, "application", "app", "the Application's name")
	flag.StringVar(&app.namespace, "namespace", "", "the destination's namespace")
	flag.BoolVar(&app.serverSideApply, "server-side-apply", false, "the sync option ServerSideApply=true")
	flag.BoolVar(&app.outOfSyncOnly, "apply-out-of-sync-only", false, "the sync option ApplyOutOfSyncOnly=true")
	flag.BoolVar(&app.serverSideDiff, "server-side-diff", false, "the compare option ServerSideDiff=true")
	flag.BoolVar(&app.prune, "prune", false, "prune objects that no manifest has")
	flag.Parse()
	if err := json.Unmarshal([]byte(*ignored), &app.ignored); err != nil {
		return fmt.Errorf("--ignore-differences: %w", err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return err
	}
	config.QPS, config.Burst = 500, 1000
	config.WarningHandler = rest.NoWarnings{}
	app.config = config
	app.kubectl = &kube.KubectlCmd{Log: logr.Discard(), Tracer: tracing.NopTracer{}}
	tracking := argo.NewResourceTracking()
	app.cache = cache.NewClusterCache(config,
		cache.SetNamespaces([]string{app.namespace}),
		cache.SetLogr(logr.Discard()),
		cache.SetPopulateResourceInfoHandler(func(un *unstructured.Unstructured, _ bool) (any, bool) {
			owner := tracking.GetAppName(un, instanceLabel, v1alpha1.TrackingMethodAnnotation, "")
			return owner, owner != ""
		}),
	)
	if err := app.cache.EnsureSynced(); err != nil {
		return err
	}
	fmt.Println("{}")
	lines := bufio.NewScanner(os.Stdin)
	output := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		reply, err := app.reconcile(context.Background(), lines.Text())
		if err != nil {
			reply.Error = err.Error()
		}
		if err := output.Encode(reply); err != nil {
			return err
		}
	}
	return lines.Err()
}

// reconcile compares the manifests with the cluster, and syncs if they differ.
func (a *application) reconcile(ctx context.Context, path string) (answer, error) {
	reply := answer{OutOfSync: []change{}, Synced: []result{}}
	text, err := os.ReadFile(path)
	if err != nil {
		return reply, err
	}
	targets, err := kube.SplitYAML(text)
	if err != nil {
		return reply, err
	}
	tracking := argo.NewResourceTracking()
	for _, target := range targets {
		if target.GetNamespace() == "" {
			target.SetNamespace(a.namespace)
		}
		err := tracking.SetAppInstance(target, instanceLabel, a.name, a.namespace, v1alpha1.TrackingMethodAnnotation, "")
		if err != nil {
			return reply, err
		}
	}
	live, err := a.cache.GetManagedLiveObjs(targets, func(r *cache.Resource) bool { return r.Info == a.name })
	if err != nil {
		return reply, err
	}
	reconciled := sync.Reconcile(targets, live, a.namespace, a.cache)
	differences, err := a.compare(reconciled)
	if err != nil {
		return reply, err
	}
	for i, difference := range differences.Diffs {
		target, object := reconciled.Target[i], reconciled.Live[i]
		named := target
		if named == nil {
			named = object
		}
		missing := target == nil || object == nil
		if difference.Modified || missing {
			reply.OutOfSync = append(reply.OutOfSync, change{
				Kind: named.GetKind(), Name: named.GetName(),
				Live: raw(difference.NormalizedLive), Predicted: raw(difference.PredictedLive),
			})
		}
	}
	if len(reply.OutOfSync) == 0 {
		return reply, nil
	}
	results, err := a.sync(ctx, reconciled, differences)
	for _, one := range results {
		reply.Synced = append(reply.Synced, result{
			Kind: one.ResourceKey.Kind, Name: one.ResourceKey.Name,
			Status: string(one.Status), Message: one.Message,
		})
	}
	return reply, err
}

func raw(text []byte) json.RawMessage {
	if len(text) == 0 {
		return json.RawMessage("null")
	}
	return text
}

func (a *application) compare(reconciled sync.ReconciliationResult) (*diff.DiffResultList, error) {
	builder := argodiff.NewDiffConfigBuilder().
		WithDiffSettings(a.ignored, nil, true, normalizers.IgnoreNormalizerOpts{JQExecutionTimeout: time.Second}).
		WithTracking(instanceLabel, string(v1alpha1.TrackingMethodAnnotation)).
		WithNoCache().
		WithGVKParser(a.cache.GetGVKParser()).
		WithManager(manager).
		WithServerSideDiff(a.serverSideDiff).
		WithStructuredMergeDiff(a.serverSideApply)
	if a.serverSideDiff {
		dryRuns, cleanup, err := kube.ManageServerSideDiffDryRuns(
			a.config, a.cache.GetOpenAPISchema(), tracing.NopTracer{}, logr.Discard(), nil)
		if err != nil {
			return nil, err
		}
		defer cleanup()
		builder = builder.WithServerSideDryRunner(diff.NewK8sServerSideDryRunner(dryRuns))
	}
	config, err := builder.Build()
	if err != nil {
		return nil, err
	}
	return argodiff.StateDiffs(reconciled.Live, reconciled.Target, config)
}

func (a *application) sync(
	ctx context.Context, reconciled sync.ReconciliationResult, differences *diff.DiffResultList,
) ([]common.ResourceSyncResult, error) {
	policy := metav1.DeletePropagationForeground
	operation, cleanup, err := sync.NewSyncContext("revision", reconciled, a.config, a.config, a.kubectl, a.namespace,
		a.cache.GetOpenAPISchema(),
		sync.WithOperationSettings(false, a.prune, false, true),
		sync.WithServerSideApply(a.serverSideApply),
		sync.WithServerSideApplyManager(manager),
		sync.WithResourceModificationChecker(a.outOfSyncOnly, differences),
		sync.WithPrunePropagationPolicy(&policy),
		sync.WithManifestValidation(true),
		sync.WithLogr(logr.Discard()),
	)
	if err != nil {
		return nil, err
	}
	defer cleanup()
	limit, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		operation.Sync()
		phase, message, results := operation.GetState()
		if phase.Completed() {
			if !phase.Successful() {
				return results, errors.New(message)
			}
			return results, nil
		}
		// A sync waits for the health of waves; the cluster's events are not needed for that here.
		select {
		case <-limit.Done():
			return results, fmt.Errorf("the sync did not end within a minute: %s", message)
		case <-time.After(100 * time.Millisecond):
		}
	}
}
