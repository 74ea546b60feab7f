// headway-verdicts prints how GitOps tools judge objects: by kstatus' rules, Argo CD's health check in Lua, and
// Flux's expressions in CEL. Each judges by the code that the tool itself runs or is built on.
//
// It reads one Question as JSON and writes one Verdict for each object.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"github.com/fluxcd/pkg/apis/kustomize"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Question is what is asked.
type Question struct {
	// Objects as an API server shows them.
	Objects []json.RawMessage `json:"objects"`
	// Lua has a health check for each kind.
	Lua map[string]string `json:"lua"`
	// HealthCheckExprs is the field of that name of a Flux Kustomization.
	HealthCheckExprs []kustomize.CustomHealthCheck `json:"healthCheckExprs"`
}

// Verdict is what the tools make of one object.
type Verdict struct {
	Kstatus string `json:"kstatus"`
	Argo    Health `json:"argo"`
	Flux    string `json:"flux"`
	// Waited is how Flux's wait ends with the expressions; WaitedPlainly, without any.
	Waited        Wait `json:"waited"`
	WaitedPlainly Wait `json:"waitedPlainly"`
}

func main() {
	if err := answer(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "headway-verdicts:", err)
		os.Exit(1)
	}
}

func answer(ctx context.Context) error {
	var asked Question
	if err := json.NewDecoder(os.Stdin).Decode(&asked); err != nil {
		return fmt.Errorf("the question cannot be read: %w", err)
	}
	verdicts, failures := make([]Verdict, len(asked.Objects)), make([]error, len(asked.Objects))
	var all sync.WaitGroup
	for number, raw := range asked.Objects {
		all.Go(func() { verdicts[number], failures[number] = judge(ctx, asked, raw) })
	}
	all.Wait()
	for number, err := range failures {
		if err != nil {
			return fmt.Errorf("object %d: %w", number, err)
		}
	}
	return json.NewEncoder(os.Stdout).Encode(verdicts)
}

func judge(ctx context.Context, asked Question, raw json.RawMessage) (Verdict, error) {
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(raw); err != nil {
		return Verdict{}, err
	}
	standing, err := status.Compute(object)
	if err != nil {
		return Verdict{}, fmt.Errorf("kstatus: %w", err)
	}
	argo, err := argoHealth(object, asked.Lua[object.GetKind()])
	if err != nil {
		return Verdict{}, fmt.Errorf("health check of %s: %w", object.GetKind(), err)
	}
	flux, err := fluxStatus(ctx, object, asked.HealthCheckExprs)
	if err != nil {
		return Verdict{}, fmt.Errorf("healthCheckExprs: %w", err)
	}
	found := Verdict{Kstatus: standing.Status.String(), Argo: argo, Flux: flux}
	if found.Waited, err = fluxWaits(ctx, object, asked.HealthCheckExprs); err != nil {
		return Verdict{}, err
	}
	found.WaitedPlainly, err = fluxWaits(ctx, object, nil)
	return found, err
}
