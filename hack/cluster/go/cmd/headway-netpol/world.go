package main

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	networkinglisters "k8s.io/client-go/listers/networking/v1"
	"k8s.io/client-go/tools/cache"

	"headway.dev/cluster/internal/policy"
)

const cacheSyncDeadline = 30 * time.Second

// world is what the enforcer knows: the API's objects, and the addresses that
// the network plugin announced ahead of the API.
type world struct {
	node       string
	pods       corelisters.PodLister
	namespaces corelisters.NamespaceLister
	policies   networkinglisters.NetworkPolicyLister

	mu        sync.Mutex
	announced map[string]netip.Addr // by pod UID; the zero address once the pod's network is gone
}

// watch returns once everything is known. `changed` is called on every event.
func watch(ctx context.Context, client kubernetes.Interface, node string, changed func()) (*world, error) {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(slim))
	w := &world{
		node:       node,
		pods:       factory.Core().V1().Pods().Lister(),
		namespaces: factory.Core().V1().Namespaces().Lister(),
		policies:   factory.Networking().V1().NetworkPolicies().Lister(),
		announced:  map[string]netip.Addr{},
	}
	handlers := cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { changed() },
		UpdateFunc: func(any, any) { changed() },
		DeleteFunc: func(object any) { w.forget(object); changed() },
	}
	for _, informer := range []cache.SharedIndexInformer{
		factory.Core().V1().Pods().Informer(),
		factory.Core().V1().Namespaces().Informer(),
		factory.Networking().V1().NetworkPolicies().Informer(),
	} {
		if _, err := informer.AddEventHandler(handlers); err != nil {
			return nil, err
		}
	}
	factory.Start(ctx.Done())
	waiting, cancel := context.WithTimeout(ctx, cacheSyncDeadline)
	defer cancel()
	for kind, synced := range factory.WaitForCacheSync(waiting.Done()) {
		if !synced {
			return nil, fmt.Errorf("the API server did not list %v within %s", kind, cacheSyncDeadline)
		}
	}
	return w, nil
}

// slim drops what takes the memory and is never read here.
func slim(object any) (any, error) {
	if pod, ok := object.(*corev1.Pod); ok {
		pod.ManagedFields = nil
		pod.Annotations = nil
		pod.Spec.Volumes = nil
		pod.Status.ContainerStatuses = nil
	}
	return object, nil
}

// announce records the address of a pod before the API knows it.
func (w *world) announce(uid string, ip netip.Addr) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.announced[uid] = ip
}

// release records that an address is no longer the pod's, whatever its status still
// says. A sandbox that was replaced is cleaned up after its successor was announced.
func (w *world) release(uid string, ip netip.Addr) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.announced[uid] == ip {
		w.announced[uid] = netip.Addr{}
	}
}

func (w *world) forget(object any) {
	if last, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = last.Obj
	}
	if pod, ok := object.(*corev1.Pod); ok {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.announced, string(pod.UID))
	}
}

// has says whether the API's view includes this very pod.
func (w *world) has(namespace, name, uid string) bool {
	pod, err := w.pods.Pods(namespace).Get(name)
	return err == nil && (uid == "" || string(pod.UID) == uid)
}

// snapshot copies what the rules are computed from, in an order that is always the same.
func (w *world) snapshot() (policy.Snapshot, error) {
	pods, err := w.pods.List(labels.Everything())
	if err != nil {
		return policy.Snapshot{}, err
	}
	namespaces, err := w.namespaces.List(labels.Everything())
	if err != nil {
		return policy.Snapshot{}, err
	}
	policies, err := w.policies.List(labels.Everything())
	if err != nil {
		return policy.Snapshot{}, err
	}
	slices.SortFunc(policies, func(a, b *networkingv1.NetworkPolicy) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	out := policy.Snapshot{Pods: w.addressed(pods), Namespaces: map[string]map[string]string{}, Policies: policies}
	for _, namespace := range namespaces {
		out.Namespaces[namespace.Name] = namespace.Labels
	}
	return out, nil
}

// addressed lists the pods that hold an address. What was announced goes before
// what the API says: an address is reused sooner than a status is corrected.
func (w *world) addressed(pods []*corev1.Pod) []policy.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	holders := map[netip.Addr]policy.Pod{}
	for _, announcedOnes := range []bool{false, true} {
		for _, pod := range pods {
			ip, announced := w.announced[string(pod.UID)]
			if announced != announcedOnes || !w.counts(pod) {
				continue
			}
			if !announced {
				ip, _ = netip.ParseAddr(pod.Status.PodIP)
			}
			if ip.Is4() {
				holders[ip] = policy.Pod{Namespace: pod.Namespace, Labels: pod.Labels, IP: ip, Ports: ports(pod)}
			}
		}
	}
	addresses := slices.SortedFunc(maps.Keys(holders), netip.Addr.Compare)
	out := make([]policy.Pod, 0, len(addresses))
	for _, address := range addresses {
		out = append(out, holders[address])
	}
	return out
}

func (w *world) counts(pod *corev1.Pod) bool {
	ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	return pod.Spec.NodeName == w.node && !pod.Spec.HostNetwork && !ended
}

func ports(pod *corev1.Pod) []policy.Port {
	var out []policy.Port
	for _, containers := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for _, container := range containers {
			for _, port := range container.Ports {
				if port.Name != "" {
					out = append(out, policy.Port{Name: port.Name, Protocol: port.Protocol, Number: uint16(port.ContainerPort)})
				}
			}
		}
	}
	return out
}
