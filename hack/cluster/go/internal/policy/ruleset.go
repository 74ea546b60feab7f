package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"strings"
)

// Direction is the side of a pod that a rule applies to.
type Direction string

const (
	Ingress Direction = "ingress"
	Egress  Direction = "egress"
)

const (
	knownPods    = "pods"
	addressType  = "ipv4_addr"
	endpointType = "ipv4_addr . inet_proto . inet_service"
)

// Peer says who is at the other end: a set of pods, a block of addresses, or,
// left empty, anybody.
type Peer struct {
	Set    string
	Block  netip.Prefix
	Except []netip.Prefix
}

// PortMatch says which ports of the receiving pod: a range, a set of named ones,
// every port of a protocol, or, left empty, everything.
type PortMatch struct {
	Protocol    string
	First, Last uint16
	Set         string
}

// Rule allows what matches both.
type Rule struct {
	Peer Peer
	Port PortMatch
}

// Chain is what isolates a pod on one side: what no rule allows is dropped.
type Chain struct {
	Direction Direction
	Rules     []Rule
}

// Set is a named set of the firewall.
type Set struct {
	Type     string
	Elements map[string]bool
}

func (s *Set) add(element string) { s.Elements[element] = true }

// Ruleset is everything the firewall must hold. Chains and sets are named after
// their content, so pods with the same policies share a chain. A chain never
// changes: a pod whose policies change is pointed at another.
type Ruleset struct {
	Sets    map[string]*Set
	Chains  map[string]Chain
	Ingress map[string]string // chain by pod address
	Egress  map[string]string
}

func newRuleset() Ruleset {
	r := Ruleset{
		Sets:    map[string]*Set{},
		Chains:  map[string]Chain{},
		Ingress: map[string]string{},
		Egress:  map[string]string{},
	}
	r.addSet(knownPods, addressType)
	return r
}

func (r *Ruleset) addSet(name, kind string) *Set {
	r.Sets[name] = &Set{Type: kind, Elements: map[string]bool{}}
	return r.Sets[name]
}

func (r *Ruleset) addChain(chain Chain) string {
	name := named(string(chain.Direction), chain.lines()...)
	r.Chains[name] = chain
	return name
}

func (r *Ruleset) dispatch(direction Direction) map[string]string {
	if direction == Ingress {
		return r.Ingress
	}
	return r.Egress
}

// named makes an identifier that stands for its parts.
func named(kind string, parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\n")))
	return kind + "_" + hex.EncodeToString(sum[:8])
}

func endpoint(ip netip.Addr, protocol string, port uint16) string {
	return fmt.Sprintf("%s . %s . %d", ip, protocol, port)
}
