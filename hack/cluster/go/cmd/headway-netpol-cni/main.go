// headway-netpol-cni is the last network plugin called for a pod. It holds the
// pod's start until the enforcer has its policies in the kernel, and so fails
// closed: with no enforcer, no pod starts.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"

	"headway.dev/cluster/internal/registration"
)

const tryAgainLater = 11 // error code of the CNI specification

type config struct {
	CNIVersion string          `json:"cniVersion"`
	Socket     string          `json:"socket"`
	PrevResult json.RawMessage `json:"prevResult"`
}

func main() {
	input, err := io.ReadAll(os.Stdin)
	if err != nil {
		fail("", err)
	}
	var c config
	if err := json.Unmarshal(input, &c); err != nil {
		fail("", err)
	}
	switch os.Getenv("CNI_COMMAND") {
	case "ADD":
		err = add(c)
	case "DEL":
		remove(c)
	case "VERSION":
		fmt.Println(`{"cniVersion":"0.4.0","supportedVersions":["0.3.0","0.3.1","0.4.0"]}`)
	}
	if err != nil {
		fail(c.CNIVersion, err)
	}
}

// remove never fails: if the enforcer is not running, it will later see the pod's end in the API.
func remove(c config) {
	if ip, err := address(c.PrevResult); err == nil {
		_ = registration.Send(c.Socket, request("delete", ip))
	}
}

func add(c config) error {
	ip, err := address(c.PrevResult)
	if err != nil {
		return err
	}
	if err := registration.Send(c.Socket, request("add", ip)); err != nil {
		return err
	}
	_, err = os.Stdout.Write(c.PrevResult)
	return err
}

// address is what the plugin before this one gave the pod.
func address(result json.RawMessage) (string, error) {
	var parsed struct {
		IPs []struct {
			Address string `json:"address"`
		} `json:"ips"`
	}
	if err := json.Unmarshal(result, &parsed); err != nil {
		return "", fmt.Errorf("previous plugin's result: %w", err)
	}
	for _, ip := range parsed.IPs {
		if prefix, err := netip.ParsePrefix(ip.Address); err == nil && prefix.Addr().Is4() {
			return prefix.Addr().String(), nil
		}
	}
	return "", fmt.Errorf("the previous plugin gave no IPv4 address")
}

func request(operation, ip string) registration.Request {
	values := map[string]string{}
	for _, pair := range strings.Split(os.Getenv("CNI_ARGS"), ";") {
		key, value, _ := strings.Cut(pair, "=")
		values[key] = value
	}
	return registration.Request{
		Operation: operation,
		Namespace: values["K8S_POD_NAMESPACE"],
		Name:      values["K8S_POD_NAME"],
		UID:       values["K8S_POD_UID"],
		IP:        ip,
	}
}

func fail(version string, err error) {
	answer, _ := json.Marshal(map[string]any{"cniVersion": version, "code": tryAgainLater, "msg": err.Error()})
	os.Stdout.Write(answer)
	os.Exit(1)
}
