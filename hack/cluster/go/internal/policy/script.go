package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Table is where the rules live and which packets they look at.
type Table struct {
	Name    string
	Bridge  string // the interface every pod is behind
	PodCIDR string
}

// Replace is the nft script that puts the table in place, whatever was there, in
// one transaction.
func (t Table) Replace(r Ruleset) string {
	var s script
	s.table = t.Name
	s.line("table inet %s", t.Name)
	s.line("delete table inet %s", t.Name)
	s.line("%s", t.skeleton())
	s.difference(newRuleset(), r)
	return s.String()
}

// Change is the nft script that leads from one ruleset to another; empty where
// there is nothing to do.
func (t Table) Change(from, to Ruleset) string {
	s := script{table: t.Name}
	s.difference(from, to)
	return s.String()
}

// skeleton looks at new connections only, sender's side first. An address
// behind the bridge that is not yet known as a pod's may neither send nor receive.
// Its process started before its policies were in place, or made the address up.
// The node's own traffic to pods leaves through the output hook and is not looked at.
func (t Table) skeleton() string {
	return fmt.Sprintf(`table inet %[1]s {
	set pods { type ipv4_addr; }
	map ingress { type ipv4_addr : verdict; }
	map egress { type ipv4_addr : verdict; }
	chain forward {
		type filter hook forward priority -10; policy accept;
		meta nfproto ipv6 iifname %[2]q drop
		meta nfproto ipv6 oifname %[2]q drop
		ct state established,related accept
		iifname %[2]q ip saddr != @pods drop
		oifname %[2]q ip daddr %[3]s ip daddr != @pods drop
		ip saddr vmap @egress
		ip daddr vmap @ingress
	}
	chain input {
		type filter hook input priority -10; policy accept;
		iifname != %[2]q accept
		meta nfproto ipv6 drop
		ct state established,related accept
		ip saddr != @pods drop
		ip saddr vmap @egress
	}
}`, t.Name, t.Bridge, t.PodCIDR)
}

// script collects nft commands.
type script struct {
	strings.Builder
	table string
}

func (s *script) line(format string, values ...any) {
	fmt.Fprintf(s, format+"\n", values...)
}

// difference orders commands so that nothing refers to what does not exist.
// Sets come first, then the chains that use them, then the chain of each pod.
// Removals follow in the opposite order.
func (s *script) difference(from, to Ruleset) {
	for _, name := range sorted(to.Sets) {
		old, existed := from.Sets[name]
		if !existed {
			s.line("add set inet %s %s { type %s; }", s.table, name, to.Sets[name].Type)
			old = &Set{}
		}
		s.elements("delete", name, missing(old.Elements, to.Sets[name].Elements))
		s.elements("add", name, missing(to.Sets[name].Elements, old.Elements))
	}
	for _, name := range missing(to.Chains, from.Chains) {
		s.line("add chain inet %s %s", s.table, name)
		for _, line := range to.Chains[name].lines() {
			s.line("add rule inet %s %s %s", s.table, name, line)
		}
	}
	s.dispatch("ingress", from.Ingress, to.Ingress)
	s.dispatch("egress", from.Egress, to.Egress)
	for _, name := range missing(from.Chains, to.Chains) {
		s.line("flush chain inet %s %s", s.table, name)
		s.line("delete chain inet %s %s", s.table, name)
	}
	for _, name := range missing(from.Sets, to.Sets) {
		s.line("delete set inet %s %s", s.table, name)
	}
}

func (s *script) elements(verb, set string, elements []string) {
	if len(elements) > 0 {
		s.line("%s element inet %s %s { %s }", verb, s.table, set, strings.Join(elements, ", "))
	}
}

func (s *script) dispatch(name string, from, to map[string]string) {
	var gone, come []string
	for _, ip := range sorted(from) {
		if to[ip] != from[ip] {
			gone = append(gone, fmt.Sprintf("%s : jump %s", ip, from[ip]))
		}
	}
	for _, ip := range sorted(to) {
		if to[ip] != from[ip] {
			come = append(come, fmt.Sprintf("%s : jump %s", ip, to[ip]))
		}
	}
	s.elements("delete", name, gone)
	s.elements("add", name, come)
}

// lines are the chain's rules; returning from the chain means allowed on this side.
func (c Chain) lines() []string {
	var out []string
	for _, rule := range c.Rules {
		line := strings.TrimSpace(rule.Peer.match(c.Direction) + rule.Port.match() + " return")
		if !slices.Contains(out, line) {
			out = append(out, line)
		}
	}
	return append(out, "drop")
}

func (p Peer) match(direction Direction) string {
	field := "ip saddr"
	if direction == Egress {
		field = "ip daddr"
	}
	switch {
	case p.Set != "":
		return fmt.Sprintf(" %s @%s", field, p.Set)
	case !p.Block.IsValid():
		return ""
	}
	match := fmt.Sprintf(" %s %s", field, p.Block)
	for _, except := range p.Except {
		match += fmt.Sprintf(" %s != %s", field, except)
	}
	return match
}

func (p PortMatch) match() string {
	switch {
	case p.Protocol == "":
		return ""
	case p.Set != "":
		return fmt.Sprintf(" ip daddr . meta l4proto . th dport @%s", p.Set)
	case p.First == 0:
		return " meta l4proto " + p.Protocol
	case p.First == p.Last:
		return fmt.Sprintf(" %s dport %d", p.Protocol, p.First)
	}
	return fmt.Sprintf(" %s dport %d-%d", p.Protocol, p.First, p.Last)
}

func sorted[V any](m map[string]V) []string {
	return slices.Sorted(maps.Keys(m))
}

// missing lists, in order, the keys of `in` that `from` has not.
func missing[A, B any](in map[string]A, from map[string]B) []string {
	var out []string
	for _, key := range sorted(in) {
		if _, has := from[key]; !has {
			out = append(out, key)
		}
	}
	return out
}
