package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/fluxcd/cli-utils/pkg/kstatus/polling"
	"github.com/fluxcd/cli-utils/pkg/kstatus/polling/clusterreader"
	"github.com/fluxcd/cli-utils/pkg/kstatus/polling/engine"
	"github.com/fluxcd/cli-utils/pkg/object"
	"github.com/fluxcd/pkg/apis/kustomize"
	"github.com/fluxcd/pkg/runtime/cel"
	"github.com/fluxcd/pkg/ssa"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

// What stands for a Kustomization's timeout. An end before it is an end at once.
const (
	waitTimeout  = 5 * time.Second
	waitInterval = 50 * time.Millisecond
)

// Wait is how a wait for an object ended: Ready, Failed before the time was over, or TimedOut.
type Wait struct {
	Ended string `json:"ended"`
	Error string `json:"error"`
}

// fluxStatus is what the expressions say of an object.
func fluxStatus(
	ctx context.Context, judged *unstructured.Unstructured, checks []kustomize.CustomHealthCheck,
) (string, error) {
	for _, check := range checks {
		if check.APIVersion != judged.GetAPIVersion() || check.Kind != judged.GetKind() {
			continue
		}
		evaluator, err := cel.NewStatusEvaluator(&check.HealthCheckExpressions)
		if err != nil {
			return "", err
		}
		found, err := evaluator.Evaluate(ctx, judged)
		if err != nil {
			return "", err
		}
		return found.Status.String(), nil
	}
	return "", fmt.Errorf("none is of %s %s", judged.GetAPIVersion(), judged.GetKind())
}

// fluxWaits waits for an object as a Kustomization does, with or without expressions, on a cluster in memory.
func fluxWaits(
	ctx context.Context, judged *unstructured.Unstructured, checks []kustomize.CustomHealthCheck,
) (Wait, error) {
	kind := judged.GroupVersionKind()
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{kind.GroupVersion()})
	mapper.Add(kind, meta.RESTScopeNamespace)
	scheme := runtime.NewScheme()
	scheme.AddKnownTypeWithName(kind, &unstructured.Unstructured{})
	cluster := fake.NewClientBuilder().WithScheme(scheme).WithRESTMapper(mapper).WithObjects(judged.DeepCopy()).Build()
	options := polling.Options{
		ClusterReaderFactory: engine.ClusterReaderFactoryFunc(clusterreader.NewDirectClusterReader),
	}
	if len(checks) > 0 {
		reader, err := cel.NewStatusReader(checks)
		if err != nil {
			return Wait{}, err
		}
		options.CustomStatusReaders = []engine.StatusReader{reader(mapper)}
	}
	manager := ssa.NewResourceManager(
		cluster, polling.NewStatusPoller(cluster, mapper, options), ssa.Owner{Field: "test", Group: "test"},
	)
	set := object.ObjMetadataSet{object.UnstructuredToObjMetadata(judged)}
	failed := manager.WaitForSetWithContext(
		ctx, set, ssa.WaitOptions{Interval: waitInterval, Timeout: waitTimeout, FailFast: true},
	)
	return ending(failed), nil
}

func ending(failed error) Wait {
	switch {
	case failed == nil:
		return Wait{Ended: "Ready"}
	case strings.HasPrefix(failed.Error(), "timeout"):
		return Wait{Ended: "TimedOut", Error: failed.Error()}
	}
	return Wait{Ended: "Failed", Error: failed.Error()}
}
