// Package policy turns networking.k8s.io/v1 policies into firewall rules for
// the pods of one node. Everything in it is a pure function. A Snapshot of the
// API gives a Ruleset. Two Rulesets give the nft script that leads from one to
// the other.
package policy

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Port is a container port that has a name.
type Port struct {
	Name     string
	Protocol corev1.Protocol
	Number   uint16
}

// Pod is what a policy can say about a pod: where it is and how it is labelled.
// Pods on the host's network and pods that have ended are not listed.
type Pod struct {
	Namespace string
	Labels    map[string]string
	IP        netip.Addr
	Ports     []Port
}

// Snapshot is the part of the cluster's state that decides what is allowed.
type Snapshot struct {
	Pods       []Pod
	Namespaces map[string]map[string]string // labels by name
	Policies   []*networkingv1.NetworkPolicy
}

// Compile computes the rules that hold for a snapshot.
func Compile(snapshot Snapshot) Ruleset {
	c := compiler{snapshot: snapshot, rules: newRuleset()}
	policies := c.prepare()
	for _, pod := range snapshot.Pods {
		c.rules.Sets[knownPods].add(pod.IP.String())
		for _, direction := range []Direction{Ingress, Egress} {
			if chain, isolated := c.chainFor(pod, direction, policies); isolated {
				c.rules.dispatch(direction)[pod.IP.String()] = c.rules.addChain(chain)
			}
		}
	}
	return c.rules
}

type compiler struct {
	snapshot Snapshot
	rules    Ruleset
}

// prepared is a policy with its selector parsed and its rules translated.
type prepared struct {
	namespace string
	selector  labels.Selector
	applies   map[Direction]bool
	rules     map[Direction][]Rule
}

func (c *compiler) prepare() []prepared {
	var out []prepared
	for _, policy := range c.snapshot.Policies {
		p := prepared{
			namespace: policy.Namespace,
			selector:  parse(&policy.Spec.PodSelector),
			applies:   directions(&policy.Spec),
			rules:     map[Direction][]Rule{},
		}
		for _, rule := range policy.Spec.Ingress {
			p.rules[Ingress] = append(p.rules[Ingress], c.translate(policy.Namespace, rule.From, rule.Ports)...)
		}
		for _, rule := range policy.Spec.Egress {
			p.rules[Egress] = append(p.rules[Egress], c.translate(policy.Namespace, rule.To, rule.Ports)...)
		}
		out = append(out, p)
	}
	return out
}

// directions answers which sides a policy isolates. Left out, policyTypes means
// ingress, and egress as well where there are egress rules.
func directions(spec *networkingv1.NetworkPolicySpec) map[Direction]bool {
	if len(spec.PolicyTypes) == 0 {
		return map[Direction]bool{Ingress: true, Egress: len(spec.Egress) > 0}
	}
	return map[Direction]bool{
		Ingress: slices.Contains(spec.PolicyTypes, networkingv1.PolicyTypeIngress),
		Egress:  slices.Contains(spec.PolicyTypes, networkingv1.PolicyTypeEgress),
	}
}

// chainFor unites the rules of every policy that isolates the pod on one side.
func (c *compiler) chainFor(pod Pod, direction Direction, policies []prepared) (Chain, bool) {
	chain, isolated := Chain{Direction: direction}, false
	for _, policy := range policies {
		if !policy.applies[direction] || policy.namespace != pod.Namespace {
			continue
		}
		if policy.selector.Matches(labels.Set(pod.Labels)) {
			isolated = true
			chain.Rules = append(chain.Rules, policy.rules[direction]...)
		}
	}
	return chain, isolated
}

// translate makes one Rule for each pair of a peer and a port.
func (c *compiler) translate(namespace string, peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort) []Rule {
	var out []Rule
	for _, peer := range c.peers(namespace, peers) {
		for _, port := range c.ports(ports) {
			out = append(out, Rule{Peer: peer, Port: port})
		}
	}
	return out
}

func (c *compiler) peers(namespace string, peers []networkingv1.NetworkPolicyPeer) []Peer {
	if len(peers) == 0 {
		return []Peer{{}}
	}
	var out []Peer
	for _, peer := range peers {
		if peer.IPBlock == nil {
			out = append(out, Peer{Set: c.peerSet(namespace, peer)})
		} else if block, usable := translateBlock(peer.IPBlock); usable {
			out = append(out, block)
		}
	}
	return out
}

// translateBlock leaves out what is not IPv4: no pod here has another address.
func translateBlock(block *networkingv1.IPBlock) (Peer, bool) {
	prefix, err := netip.ParsePrefix(block.CIDR)
	if err != nil || !prefix.Addr().Is4() {
		return Peer{}, false
	}
	peer := Peer{Block: prefix.Masked()}
	for _, text := range block.Except {
		if except, err := netip.ParsePrefix(text); err == nil && except.Addr().Is4() {
			peer.Except = append(peer.Except, except.Masked())
		}
	}
	return peer, true
}

// peerSet is the set of pods that selectors choose. Policies that choose alike share it.
func (c *compiler) peerSet(namespace string, peer networkingv1.NetworkPolicyPeer) string {
	scope := "in " + namespace
	if peer.NamespaceSelector != nil {
		scope = "where " + metav1.FormatLabelSelector(peer.NamespaceSelector)
	}
	name := named("peers", scope, metav1.FormatLabelSelector(peer.PodSelector))
	if _, made := c.rules.Sets[name]; made {
		return name
	}
	set := c.rules.addSet(name, addressType)
	pods := labels.Everything()
	if peer.PodSelector != nil {
		pods = parse(peer.PodSelector)
	}
	for _, pod := range c.snapshot.Pods {
		if c.inScope(namespace, peer.NamespaceSelector, pod) && pods.Matches(labels.Set(pod.Labels)) {
			set.add(pod.IP.String())
		}
	}
	return name
}

func (c *compiler) inScope(namespace string, selector *metav1.LabelSelector, pod Pod) bool {
	if selector == nil {
		return pod.Namespace == namespace
	}
	found, exists := c.snapshot.Namespaces[pod.Namespace]
	return exists && parse(selector).Matches(labels.Set(found))
}

func (c *compiler) ports(ports []networkingv1.NetworkPolicyPort) []PortMatch {
	if len(ports) == 0 {
		return []PortMatch{{}}
	}
	var out []PortMatch
	for _, port := range ports {
		match := PortMatch{Protocol: "tcp"}
		if port.Protocol != nil {
			match.Protocol = strings.ToLower(string(*port.Protocol))
		}
		switch {
		case port.Port == nil:
		case port.Port.StrVal != "":
			match.Set = c.portSet(match.Protocol, port.Port.StrVal)
		default:
			match.First = uint16(port.Port.IntVal)
			match.Last = match.First
			if port.EndPort != nil {
				match.Last = uint16(*port.EndPort)
			}
		}
		out = append(out, match)
	}
	return out
}

// portSet is the set of (pod, protocol, number) behind a port's name. A name is
// looked up on the pod the packet goes to, in either direction.
func (c *compiler) portSet(protocol, portName string) string {
	name := named("ports", protocol, portName)
	if _, made := c.rules.Sets[name]; made {
		return name
	}
	set := c.rules.addSet(name, endpointType)
	for _, pod := range c.snapshot.Pods {
		for _, port := range pod.Ports {
			if port.Name == portName && strings.EqualFold(string(port.Protocol), protocol) {
				set.add(endpoint(pod.IP, protocol, port.Number))
			}
		}
	}
	return name
}

// parse takes selectors from the API server, which has refused malformed ones already.
func parse(selector *metav1.LabelSelector) labels.Selector {
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return labels.Nothing()
	}
	return parsed
}
