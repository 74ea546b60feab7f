// headway-netpol enforces NetworkPolicy on the one node of a local cluster. It
// watches pods, namespaces and policies, computes what must hold (package
// policy), and brings the kernel's firewall there in one transaction at a time.
package main

import (
	"context"
	"flag"
	"log"
	"net"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"headway.dev/cluster/internal/policy"
	"headway.dev/cluster/internal/registration"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "file with the API server's address and a client certificate")
	node := flag.String("node", "", "the node whose pods are enforced upon")
	socket := flag.String("socket", "", "where the network plugin announces pods")
	var table policy.Table
	flag.StringVar(&table.Name, "table", "headway-policy", "name of the firewall table, which is this program's alone")
	flag.StringVar(&table.Bridge, "bridge", "", "the interface pods are behind")
	flag.StringVar(&table.PodCIDR, "pod-cidr", "", "the addresses of pods")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, *kubeconfig, *node, *socket, table); err != nil {
		log.Fatal(err)
	}
}

// run ends with the context. The rules stay in the kernel: pods keep their
// isolation while the enforcer is restarted.
func run(ctx context.Context, kubeconfig, node, socket string, table policy.Table) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = config.ContentType + ",application/json"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	enforcer := newEnforcer(table)
	world, err := watch(ctx, client, node, enforcer.mark)
	if err != nil {
		return err
	}
	enforcer.world = world
	if err := enforcer.sync(); err != nil {
		return err
	}
	go enforcer.loop(ctx)

	if err := os.RemoveAll(socket); err != nil {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	go func() {
		<-ctx.Done()
		listener.Close()
	}()
	err = registration.Serve(listener, enforcer.register)
	if ctx.Err() != nil {
		return nil
	}
	return err
}
