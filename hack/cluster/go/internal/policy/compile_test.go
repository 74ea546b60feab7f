package policy

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// The world of every case: three pods in namespace "lab", one in "office".
const (
	server  = "10.88.0.10" // lab, app=server, port 8080 named "web", 5353/udp named "dns"
	friend  = "10.88.0.11" // lab, role=friend
	other   = "10.88.0.12" // lab, no labels
	visitor = "10.88.0.20" // office, role=friend, port 9090 named "web"
	outside = "192.0.2.7"
)

func world(policies ...*networkingv1.NetworkPolicy) Snapshot {
	pod := func(namespace, ip string, labels map[string]string, ports ...Port) Pod {
		return Pod{Namespace: namespace, Labels: labels, IP: netip.MustParseAddr(ip), Ports: ports}
	}
	return Snapshot{
		Namespaces: map[string]map[string]string{"lab": {"team": "a"}, "office": {"team": "b"}},
		Pods: []Pod{
			pod("lab", server, map[string]string{"app": "server"},
				Port{"web", corev1.ProtocolTCP, 8080}, Port{"dns", corev1.ProtocolUDP, 5353}),
			pod("lab", friend, map[string]string{"role": "friend"}),
			pod("lab", other, nil),
			pod("office", visitor, map[string]string{"role": "friend"}, Port{"web", corev1.ProtocolTCP, 9090}),
		},
		Policies: policies,
	}
}

// packet is a new connection: from, to, protocol and the port it is for.
type packet struct {
	from, to, protocol string
	port               uint16
}

// allows reads the compiled rules the way the kernel does.
func (r Ruleset) allows(p packet) bool {
	return r.side(r.Egress[p.from], p, p.to) && r.side(r.Ingress[p.to], p, p.from)
}

func (r Ruleset) side(chain string, p packet, peer string) bool {
	if chain == "" {
		return true
	}
	for _, rule := range r.Chains[chain].Rules {
		if r.peerMatches(rule.Peer, netip.MustParseAddr(peer)) && r.portMatches(rule.Port, p) {
			return true
		}
	}
	return false
}

func (r Ruleset) peerMatches(peer Peer, ip netip.Addr) bool {
	if peer.Set != "" {
		return r.Sets[peer.Set].Elements[ip.String()]
	}
	for _, except := range peer.Except {
		if except.Contains(ip) {
			return false
		}
	}
	return !peer.Block.IsValid() || peer.Block.Contains(ip)
}

func (r Ruleset) portMatches(match PortMatch, p packet) bool {
	switch {
	case match.Protocol == "":
		return true
	case match.Set != "":
		return r.Sets[match.Set].Elements[endpoint(netip.MustParseAddr(p.to), p.protocol, p.port)]
	case match.First == 0:
		return match.Protocol == p.protocol
	}
	return match.Protocol == p.protocol && match.First <= p.port && p.port <= match.Last
}

func onServer(spec networkingv1.NetworkPolicySpec) *networkingv1.NetworkPolicy {
	spec.PodSelector = *having("app", "server")
	return &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "p"}, Spec: spec}
}

func having(key, value string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
}

func from(peers ...networkingv1.NetworkPolicyPeer) []networkingv1.NetworkPolicyIngressRule {
	return []networkingv1.NetworkPolicyIngressRule{{From: peers}}
}

func to(peers ...networkingv1.NetworkPolicyPeer) []networkingv1.NetworkPolicyEgressRule {
	return []networkingv1.NetworkPolicyEgressRule{{To: peers}}
}

func port(protocol corev1.Protocol, value intstr.IntOrString, end int32) networkingv1.NetworkPolicyPort {
	out := networkingv1.NetworkPolicyPort{Protocol: &protocol, Port: &value}
	if end > 0 {
		out.EndPort = &end
	}
	return out
}

func fromAnyOn(ports ...networkingv1.NetworkPolicyPort) networkingv1.NetworkPolicySpec {
	return networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{{Ports: ports}}}
}

var (
	onlyIngress = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
	onlyEgress  = []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}
	both        = append(append([]networkingv1.PolicyType{}, onlyIngress...), onlyEgress...)
	everyPod    = &metav1.LabelSelector{}
)

func TestWhatIsAllowed(t *testing.T) {
	tcp := func(from, to string, port uint16) packet { return packet{from, to, "tcp", port} }
	udp := func(from, to string, port uint16) packet { return packet{from, to, "udp", port} }
	type peer = networkingv1.NetworkPolicyPeer
	type spec = networkingv1.NetworkPolicySpec

	cases := map[string]struct {
		policies []*networkingv1.NetworkPolicy
		allowed  []packet
		denied   []packet
	}{
		"no policy allows everything": {
			allowed: []packet{tcp(other, server, 80), tcp(server, outside, 443), tcp(outside, server, 80)},
		},
		"default deny of ingress": {
			policies: []*networkingv1.NetworkPolicy{onServer(spec{PolicyTypes: onlyIngress})},
			allowed:  []packet{tcp(server, other, 80), tcp(other, friend, 80)},
			denied:   []packet{tcp(other, server, 80), tcp(visitor, server, 80), tcp(outside, server, 80)},
		},
		"default deny of egress, name service included": {
			policies: []*networkingv1.NetworkPolicy{onServer(spec{PolicyTypes: onlyEgress})},
			allowed:  []packet{tcp(other, server, 80)},
			denied:   []packet{tcp(server, other, 80), udp(server, visitor, 53), tcp(server, outside, 443)},
		},
		"policyTypes left out means ingress": {
			policies: []*networkingv1.NetworkPolicy{onServer(spec{})},
			allowed:  []packet{tcp(server, other, 80)},
			denied:   []packet{tcp(other, server, 80)},
		},
		"policyTypes left out means egress too where there are egress rules": {
			policies: []*networkingv1.NetworkPolicy{onServer(spec{Egress: to(peer{PodSelector: having("role", "friend")})})},
			allowed:  []packet{tcp(server, friend, 80)},
			denied:   []packet{tcp(server, other, 80), tcp(friend, server, 80)},
		},
		"rules of a side that policyTypes leaves out do not count": {
			policies: []*networkingv1.NetworkPolicy{onServer(spec{PolicyTypes: onlyEgress, Ingress: from(peer{PodSelector: everyPod})})},
			allowed:  []packet{tcp(visitor, server, 80)},
			denied:   []packet{tcp(server, visitor, 80)},
		},
		"podSelector means the policy's own namespace": {
			policies: []*networkingv1.NetworkPolicy{onServer(spec{Ingress: from(peer{PodSelector: having("role", "friend")})})},
			allowed:  []packet{tcp(friend, server, 80)},
			denied:   []packet{tcp(visitor, server, 80), tcp(other, server, 80)},
		},
		"namespaceSelector means every pod there": {
			policies: []*networkingv1.NetworkPolicy{onServer(spec{Ingress: from(peer{NamespaceSelector: having("team", "b")})})},
			allowed:  []packet{tcp(visitor, server, 80)},
			denied:   []packet{tcp(friend, server, 80)},
		},
		"both selectors in one peer must hold": {
			policies: []*networkingv1.NetworkPolicy{onServer(spec{Ingress: from(
				peer{NamespaceSelector: having("team", "a"), PodSelector: having("role", "friend")})})},
			allowed: []packet{tcp(friend, server, 80)},
			denied:  []packet{tcp(visitor, server, 80), tcp(other, server, 80)},
		},
		"two peers are alternatives": {
			policies: []*networkingv1.NetworkPolicy{onServer(spec{Ingress: from(
				peer{NamespaceSelector: having("team", "b")}, peer{PodSelector: having("role", "friend")})})},
			allowed: []packet{tcp(friend, server, 80), tcp(visitor, server, 80)},
			denied:  []packet{tcp(other, server, 80)},
		},
		"an empty namespaceSelector means every namespace": {
			policies: []*networkingv1.NetworkPolicy{onServer(spec{Ingress: from(
				peer{NamespaceSelector: everyPod, PodSelector: having("role", "friend")})})},
			allowed: []packet{tcp(friend, server, 80), tcp(visitor, server, 80)},
			denied:  []packet{tcp(other, server, 80), tcp(outside, server, 80)},
		},
		"ipBlock with except": {
			policies: []*networkingv1.NetworkPolicy{onServer(spec{PolicyTypes: onlyEgress, Egress: to(
				peer{IPBlock: &networkingv1.IPBlock{CIDR: "0.0.0.0/0", Except: []string{"10.0.0.0/8"}}})})},
			allowed: []packet{tcp(server, outside, 443)},
			denied:  []packet{tcp(server, other, 443)},
		},
		"a block of IPv6 addresses allows nothing here": {
			policies: []*networkingv1.NetworkPolicy{onServer(spec{PolicyTypes: onlyEgress, Egress: to(
				peer{IPBlock: &networkingv1.IPBlock{CIDR: "::/0"}})})},
			denied: []packet{tcp(server, outside, 443), tcp(server, other, 80)},
		},
		"an empty rule allows everybody": {
			policies: []*networkingv1.NetworkPolicy{onServer(spec{Ingress: from()})},
			allowed:  []packet{tcp(other, server, 80), tcp(outside, server, 80)},
		},
		"a numeric port": {
			policies: []*networkingv1.NetworkPolicy{onServer(fromAnyOn(port("TCP", intstr.FromInt32(80), 0)))},
			allowed:  []packet{tcp(other, server, 80)},
			denied:   []packet{tcp(other, server, 81), udp(other, server, 80)},
		},
		"a range of ports includes its end": {
			policies: []*networkingv1.NetworkPolicy{onServer(fromAnyOn(port("UDP", intstr.FromInt32(100), 200)))},
			allowed:  []packet{udp(other, server, 100), udp(other, server, 200)},
			denied:   []packet{udp(other, server, 99), udp(other, server, 201), tcp(other, server, 150)},
		},
		"a named port of the pod that is protected": {
			policies: []*networkingv1.NetworkPolicy{onServer(fromAnyOn(port("TCP", intstr.FromString("web"), 0)))},
			allowed:  []packet{tcp(other, server, 8080)},
			denied:   []packet{tcp(other, server, 9090), tcp(other, server, 80)},
		},
		"a named port is of its protocol": {
			policies: []*networkingv1.NetworkPolicy{onServer(fromAnyOn(port("UDP", intstr.FromString("dns"), 0)))},
			allowed:  []packet{udp(other, server, 5353)},
			denied:   []packet{tcp(other, server, 5353)},
		},
		"a named port in egress is looked up on the receiver": {
			policies: []*networkingv1.NetworkPolicy{onServer(spec{PolicyTypes: onlyEgress, Egress: []networkingv1.NetworkPolicyEgressRule{{
				Ports: []networkingv1.NetworkPolicyPort{port("TCP", intstr.FromString("web"), 0)}}}})},
			allowed: []packet{tcp(server, visitor, 9090)},
			denied:  []packet{tcp(server, visitor, 8080), tcp(server, outside, 9090)},
		},
		"policies add up": {
			policies: []*networkingv1.NetworkPolicy{
				onServer(spec{PolicyTypes: onlyIngress}),
				onServer(spec{Ingress: from(peer{PodSelector: having("role", "friend")})}),
			},
			allowed: []packet{tcp(friend, server, 80)},
			denied:  []packet{tcp(other, server, 80)},
		},
		"both ends must agree": {
			policies: []*networkingv1.NetworkPolicy{
				{ObjectMeta: metav1.ObjectMeta{Namespace: "lab"}, Spec: spec{PodSelector: *having("role", "friend"), PolicyTypes: both}},
				onServer(spec{Ingress: from(peer{PodSelector: everyPod})}),
			},
			allowed: []packet{tcp(other, server, 80)},
			denied:  []packet{tcp(friend, server, 80)},
		},
		"a policy reaches no other namespace": {
			policies: []*networkingv1.NetworkPolicy{
				{ObjectMeta: metav1.ObjectMeta{Namespace: "lab"}, Spec: spec{PolicyTypes: both}},
			},
			allowed: []packet{tcp(outside, visitor, 80), tcp(visitor, outside, 80)},
			denied:  []packet{tcp(visitor, server, 80)},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			rules := Compile(world(c.policies...))
			for _, p := range c.allowed {
				if !rules.allows(p) {
					t.Errorf("%+v is dropped and should pass", p)
				}
			}
			for _, p := range c.denied {
				if rules.allows(p) {
					t.Errorf("%+v passes and should be dropped", p)
				}
			}
		})
	}
}
