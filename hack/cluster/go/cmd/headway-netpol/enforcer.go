package main

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"net/netip"
	"os/exec"
	"strings"
	"sync"
	"time"

	"headway.dev/cluster/internal/policy"
	"headway.dev/cluster/internal/registration"
)

const (
	// batch is how long events are collected; a burst of pods then costs one transaction.
	batch = 10 * time.Millisecond
	// podKnownDeadline bounds the wait for a pod that the kubelet has heard of first.
	podKnownDeadline = 5 * time.Second
)

// enforcer owns the firewall table. One goroutine (loop) writes to it.
type enforcer struct {
	world   *world
	table   policy.Table
	applied *policy.Ruleset // what the kernel holds; nil where that is not known

	mu      sync.Mutex
	changed *sync.Cond
	asked   uint64 // counts events
	done    uint64 // the count up to which the kernel is in step
	failure error
	wake    chan struct{}
}

func newEnforcer(table policy.Table) *enforcer {
	e := &enforcer{table: table, wake: make(chan struct{}, 1)}
	e.changed = sync.NewCond(&e.mu)
	return e
}

// markCounted asks for a sync and says which count will include it.
func (e *enforcer) markCounted() uint64 {
	e.mu.Lock()
	e.asked++
	count := e.asked
	e.changed.Broadcast()
	e.mu.Unlock()
	select {
	case e.wake <- struct{}{}:
	default:
	}
	return count
}

func (e *enforcer) mark() { e.markCounted() }

func (e *enforcer) loop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.wake:
		}
		time.Sleep(batch)
		e.mu.Lock()
		count := e.asked
		e.mu.Unlock()
		err := e.sync()
		if err != nil {
			log.Print(err)
		}
		e.mu.Lock()
		e.done, e.failure = count, err
		e.changed.Broadcast()
		e.mu.Unlock()
	}
}

// sync brings the kernel in step with the world. After a failure the whole table
// is replaced, since what the kernel holds may not be what was thought.
func (e *enforcer) sync() error {
	snapshot, err := e.world.snapshot()
	if err != nil {
		return err
	}
	wanted := policy.Compile(snapshot)
	if e.applied != nil {
		err := apply(e.table.Change(*e.applied, wanted))
		if err == nil {
			e.applied = &wanted
			return nil
		}
		log.Printf("replacing the table: %v", err)
		e.applied = nil
	}
	if err := apply(e.table.Replace(wanted)); err != nil {
		return err
	}
	e.applied = &wanted
	return nil
}

// register answers the network plugin: for a new pod, once its policies hold.
func (e *enforcer) register(request registration.Request) error {
	ip, err := netip.ParseAddr(request.IP)
	if err != nil {
		return err
	}
	if request.Operation == "delete" {
		e.world.release(request.UID, ip)
		e.mark()
		return nil
	}
	if err := e.waitKnown(request); err != nil {
		return err
	}
	e.world.announce(request.UID, ip)
	return e.waitDone(e.markCounted())
}

// waitKnown waits until the pod's labels are here: the kubelet may be a moment ahead.
func (e *enforcer) waitKnown(request registration.Request) error {
	deadline := time.Now().Add(podKnownDeadline)
	for !e.world.has(request.Namespace, request.Name, request.UID) {
		if time.Now().After(deadline) {
			return fmt.Errorf("pod %s/%s is not in the API server's watch after %s", request.Namespace, request.Name, podKnownDeadline)
		}
		time.Sleep(5 * time.Millisecond)
	}
	return nil
}

func (e *enforcer) waitDone(count uint64) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for e.done < count {
		e.changed.Wait()
	}
	return e.failure
}

func apply(script string) error {
	if script == "" {
		return nil
	}
	command := exec.Command("nft", "-f", "-")
	command.Stdin = strings.NewReader(script)
	var said bytes.Buffer
	command.Stderr = &said
	if err := command.Run(); err != nil {
		return fmt.Errorf("nft: %w: %s\n%s", err, said.String(), script)
	}
	return nil
}
