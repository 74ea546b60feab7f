package policy

import (
	"net/netip"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
)

var table = Table{Name: "t", Bridge: "br0", PodCIDR: "10.88.0.0/16"}

func TestNoDifferenceIsNoScript(t *testing.T) {
	rules := Compile(world(onServer(networkingv1.NetworkPolicySpec{})))
	if script := table.Change(rules, Compile(world(onServer(networkingv1.NetworkPolicySpec{})))); script != "" {
		t.Errorf("the same world asked for changes:\n%s", script)
	}
}

func TestANewPodTouchesOnlyElements(t *testing.T) {
	policy := onServer(networkingv1.NetworkPolicySpec{Ingress: from(networkingv1.NetworkPolicyPeer{PodSelector: having("role", "friend")})})
	before := world(policy)
	after := world(policy)
	after.Pods = append(after.Pods,
		Pod{Namespace: "lab", Labels: map[string]string{"app": "server"}, IP: netip.MustParseAddr("10.88.0.30")},
		Pod{Namespace: "lab", Labels: map[string]string{"role": "friend"}, IP: netip.MustParseAddr("10.88.0.31")})
	script := table.Change(Compile(before), Compile(after))
	for _, line := range strings.Split(strings.TrimSpace(script), "\n") {
		if !strings.HasPrefix(line, "add element ") {
			t.Errorf("a new pod should need no %q", line)
		}
	}
	if !strings.Contains(script, "10.88.0.30 : jump ingress_") {
		t.Errorf("the new pod is sent to no chain:\n%s", script)
	}
}

func TestRemovalRunsAgainstTheOrderOfReference(t *testing.T) {
	policy := onServer(networkingv1.NetworkPolicySpec{Ingress: from(networkingv1.NetworkPolicyPeer{PodSelector: everyPod})})
	script := table.Change(Compile(world(policy)), Compile(world()))
	order := []string{"delete element inet t ingress", "flush chain", "delete chain", "delete set"}
	last := -1
	for _, want := range order {
		at := strings.Index(script, want)
		if at <= last {
			t.Fatalf("%q is missing or too early in:\n%s", want, script)
		}
		last = at
	}
}

func TestPodsWithTheSamePoliciesShareAChain(t *testing.T) {
	snapshot := world(onServer(networkingv1.NetworkPolicySpec{}))
	for _, ip := range []string{"10.88.0.40", "10.88.0.41"} {
		snapshot.Pods = append(snapshot.Pods,
			Pod{Namespace: "lab", Labels: map[string]string{"app": "server"}, IP: netip.MustParseAddr(ip)})
	}
	rules := Compile(snapshot)
	if len(rules.Chains) != 1 || len(rules.Ingress) != 3 {
		t.Errorf("got %d chains for %d pods", len(rules.Chains), len(rules.Ingress))
	}
}
