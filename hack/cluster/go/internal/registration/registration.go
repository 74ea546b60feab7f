// Package registration is how a starting pod becomes known to the enforcer. The
// network plugin says which address a pod was given. It gets an answer when the
// pod's policies are in the kernel. The pod's processes start after that.
package registration

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"
)

// Deadline bounds one exchange; a pod whose policies take longer is retried by the kubelet.
const Deadline = 10 * time.Second

// Request is sent by the network plugin, one a connection.
type Request struct {
	Operation string `json:"operation"` // "add" or "delete"
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
	IP        string `json:"ip,omitempty"`
}

// Reply is the enforcer's answer; an empty error means done.
type Reply struct {
	Error string `json:"error,omitempty"`
}

// Send makes one request and waits for its reply.
func Send(socket string, request Request) error {
	connection, err := net.DialTimeout("unix", socket, Deadline)
	if err != nil {
		return fmt.Errorf("the network policy enforcer does not answer: %w", err)
	}
	defer connection.Close()
	if err := connection.SetDeadline(time.Now().Add(Deadline)); err != nil {
		return err
	}
	if err := json.NewEncoder(connection).Encode(request); err != nil {
		return err
	}
	var reply Reply
	if err := json.NewDecoder(connection).Decode(&reply); err != nil {
		return fmt.Errorf("no reply from the network policy enforcer: %w", err)
	}
	if reply.Error != "" {
		return errors.New(reply.Error)
	}
	return nil
}

// Serve answers requests until the listener is closed.
func Serve(listener net.Listener, handle func(Request) error) error {
	for {
		connection, err := listener.Accept()
		if err != nil {
			return err
		}
		go answer(connection, handle)
	}
}

func answer(connection net.Conn, handle func(Request) error) {
	defer connection.Close()
	if err := connection.SetDeadline(time.Now().Add(Deadline)); err != nil {
		return
	}
	var request Request
	var reply Reply
	if err := json.NewDecoder(connection).Decode(&request); err != nil {
		reply.Error = err.Error()
	} else if err := handle(request); err != nil {
		reply.Error = err.Error()
	}
	// The other side may be gone; it will ask again.
	_ = json.NewEncoder(connection).Encode(reply)
}
