// SPDX-License-Identifier: Apache-2.0

// Package plugin is the CNI plugin: it validates what the runtime says and hands it to the agent.
// It holds no state and touches nothing of the machine.
package plugin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/weir-net/weir/internal/cni/wire"
)

// config is the network configuration: the keys that Weir reads. Keys that other releases or
// runtimes add are not an error (CNI specification, section 1).
type config struct {
	CNIVersion string          `json:"cniVersion"`
	Name       string          `json:"name"`
	Type       string          `json:"type"`
	MTU        int             `json:"mtu"`
	Socket     string          `json:"socket"` // of the agent
	IPAM       ipamConfig      `json:"ipam"`
	PrevResult json.RawMessage `json:"prevResult"`

	Valid       *[]wire.Attachment `json:"cni.dev/valid-attachments"`
	Attachments *[]wire.Attachment `json:"cni.dev/attachments"` // the key's earlier name
}

type ipamConfig struct {
	Type       string   `json:"type"`
	AssignIPv4 *boolean `json:"assign_ipv4"`
	AssignIPv6 *boolean `json:"assign_ipv6"`
	IPv4Pools  []string `json:"ipv4_pools"`
	IPv6Pools  []string `json:"ipv6_pools"`
}

// boolean is true or "true": existing configurations have either.
type boolean bool

func (b *boolean) UnmarshalJSON(data []byte) error {
	switch strings.ToLower(strings.Trim(string(data), `"`)) {
	case "true":
		*b = true
	case "false":
		*b = false
	default:
		return fmt.Errorf("%s is neither true nor false", data)
	}
	return nil
}

var (
	dnsLabel     = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	dnsSubdomain = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$`)
	uidText      = regexp.MustCompile(`^[-a-zA-Z0-9]{1,64}$`)
)

func fail(code uint, format string, args ...any) error {
	return types.NewError(code, fmt.Sprintf(format, args...), "")
}

// parse makes a request and the path of the agent's socket from a call. Everything in it comes from
// outside.
func parse(command string, args *skel.CmdArgs) (wire.Request, config, error) {
	var conf config
	req := wire.Request{Command: command}
	dec := json.NewDecoder(bytes.NewReader(args.StdinData))
	if err := dec.Decode(&conf); err != nil {
		return req, conf, fail(wire.CodeDecode, "the network configuration cannot be read: %v", err)
	}
	if conf.Socket == "" {
		conf.Socket = wire.DefaultSocket
	}
	if !filepath.IsAbs(conf.Socket) || len(conf.Socket) > 107 {
		return req, conf, fail(wire.CodeInvalidConfig, "network configuration key socket: %q is not an absolute path of at most 107 bytes", conf.Socket)
	}
	if conf.MTU != 0 && (conf.MTU < 576 || conf.MTU > 65535) {
		return req, conf, fail(wire.CodeInvalidConfig, "network configuration key mtu: %d is not 0 (derive) or 576..65535", conf.MTU)
	}
	req.Network, req.MTU = conf.Name, conf.MTU
	req.IPv4 = conf.IPAM.AssignIPv4 == nil || bool(*conf.IPAM.AssignIPv4)
	req.IPv6 = conf.IPAM.AssignIPv6 != nil && bool(*conf.IPAM.AssignIPv6)
	req.Pools4, req.Pools6 = conf.IPAM.IPv4Pools, conf.IPAM.IPv6Pools
	req.ContainerID, req.IfName, req.Netns = args.ContainerID, args.IfName, args.Netns
	var err error
	switch command {
	case "ADD":
		if len(conf.PrevResult) > 0 && string(conf.PrevResult) != "null" {
			return req, conf, fail(wire.CodeInvalidConfig, "network configuration: %s has a result of an earlier plugin: Weir must be the first plugin of the list", conf.Name)
		}
		err = parsePod(&req, args.Args)
	case "CHECK":
		if err = parsePod(&req, args.Args); err == nil {
			req.Addrs, err = previousAddrs(conf.PrevResult)
		}
	case "DEL":
		// A container must go also when its arguments are damaged: its id is enough.
		if parsePod(&req, args.Args) != nil {
			req.Namespace, req.Pod, req.UID = "", "", ""
		}
	case "GC":
		valid := conf.Valid
		if valid == nil {
			valid = conf.Attachments
		}
		if valid == nil {
			return req, conf, fail(wire.CodeInvalidConfig, "network configuration key cni.dev/valid-attachments is missing: without it nothing is removed")
		}
		req.Valid = *valid
	}
	return req, conf, err
}

// parsePod reads CNI_ARGS, "KEY=VALUE" separated by semicolons.
func parsePod(req *wire.Request, args string) error {
	if len(args) > 4096 {
		return fail(wire.CodeInvalidEnv, "CNI_ARGS has %d bytes, at most 4096 are possible", len(args))
	}
	for _, pair := range strings.Split(args, ";") {
		if pair == "" {
			continue
		}
		key, value, ok := strings.Cut(pair, "=")
		if !ok {
			return fail(wire.CodeInvalidEnv, "CNI_ARGS: %q is not KEY=VALUE", pair)
		}
		switch key {
		case "K8S_POD_NAMESPACE":
			req.Namespace = value
		case "K8S_POD_NAME":
			req.Pod = value
		case "K8S_POD_UID":
			req.UID = value
		}
	}
	switch {
	case !dnsLabel.MatchString(req.Namespace):
		return fail(wire.CodeInvalidEnv, "CNI_ARGS: K8S_POD_NAMESPACE %q is not the name of a namespace", req.Namespace)
	case !dnsSubdomain.MatchString(req.Pod):
		return fail(wire.CodeInvalidEnv, "CNI_ARGS: K8S_POD_NAME %q is not the name of a pod", req.Pod)
	case req.UID != "" && !uidText.MatchString(req.UID):
		return fail(wire.CodeInvalidEnv, "CNI_ARGS: K8S_POD_UID %q is not a UID", req.UID)
	}
	return nil
}

// previousAddrs returns the addresses of a result of any version from 0.3.0 on.
func previousAddrs(raw json.RawMessage) ([]string, error) {
	var prev *struct {
		IPs []struct {
			Address string `json:"address"`
		} `json:"ips"`
	}
	if err := json.Unmarshal(raw, &prev); len(raw) > 0 && err != nil {
		return nil, fail(wire.CodeDecode, "network configuration key prevResult cannot be read: %v", err)
	}
	if prev == nil {
		return nil, fail(wire.CodeInvalidConfig, "network configuration key prevResult is missing: CHECK needs the result of the ADD")
	}
	var out []string
	for _, ip := range prev.IPs {
		p, err := netip.ParsePrefix(ip.Address)
		if err != nil {
			return nil, fail(wire.CodeDecode, "network configuration key prevResult: %q is not an address with its prefix length", ip.Address)
		}
		out = append(out, p.String())
	}
	return out, nil
}
