// headway-dns is CoreDNS with the handful of plugins that cluster DNS needs.
// The stock build carries every cloud's SDK, which would double the build time.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/ready"
)

// CoreDNS runs plugins in this order, whatever their order in the Corefile.
func init() {
	dnsserver.Directives = []string{
		"bind", "health", "ready", "errors", "cache", "loadbalance", "kubernetes", "forward",
	}
}

func main() { coremain.Run() }
