// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"os"
	"regexp"
	"strings"

	"github.com/weir-net/weir/internal/cni/wire"
)

// The agent does not rely on the plugin's checks: whatever can write to the socket may send
// anything.
var (
	containerText = regexp.MustCompile(`^[a-zA-Z0-9][-a-zA-Z0-9_.]{0,127}$`)
	namespaceText = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	podText       = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$`)
	uidText       = regexp.MustCompile(`^[-a-zA-Z0-9]{1,64}$`)
)

func validate(req wire.Request, netns *os.File) *wire.Error {
	switch req.Command {
	case "STATUS":
		return nil
	case "GC":
		for _, v := range req.Valid {
			if v.ContainerID == "" || v.IfName == "" {
				return refusal(wire.CodeInvalidConfig, "cni.dev/valid-attachments has an entry without containerID or ifname: nothing is removed")
			}
		}
		return nil
	case "ADD", "DEL", "CHECK":
	default:
		return refusal(wire.CodeInvalidEnv, "there is no command %.20q", req.Command)
	}
	if !containerText.MatchString(req.ContainerID) {
		return refusal(wire.CodeInvalidEnv, "CNI_CONTAINERID %.140q is not a container id", req.ContainerID)
	}
	if !ifnameOK(req.IfName) {
		return refusal(wire.CodeInvalidEnv, "CNI_IFNAME %.40q is not an interface name that a pod can have", req.IfName)
	}
	if req.Command == "DEL" && req.Namespace == "" && req.Pod == "" {
		return nil
	}
	if !namespaceText.MatchString(req.Namespace) || !podText.MatchString(req.Pod) || req.UID != "" && !uidText.MatchString(req.UID) {
		return refusal(wire.CodeInvalidEnv, "CNI_ARGS: namespace %.70q, name %.260q, uid %.70q do not name a pod", req.Namespace, req.Pod, req.UID)
	}
	if req.Command == "DEL" {
		return nil
	}
	if netns == nil {
		return refusal(wire.CodeInvalidNetns, "CNI_NETNS %.200q did not come with the call", req.Netns)
	}
	if err := wire.IsNetns(netns); err != nil {
		return refusal(wire.CodeInvalidNetns, "CNI_NETNS %.200q %v", req.Netns, err)
	}
	if req.MTU != 0 && (req.MTU < 576 || req.MTU > 65535) {
		return refusal(wire.CodeInvalidConfig, "network configuration key mtu: %d is not 0 (derive) or 576..65535", req.MTU)
	}
	return nil
}

// ifnameOK follows the kernel's dev_valid_name, and refuses what would reach outside of a sysctl
// directory or name the loopback.
func ifnameOK(name string) bool {
	if name == "" || len(name) > 15 || name == "." || name == ".." || name == "lo" || name == "all" || name == "default" {
		return false
	}
	return !strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '/' || r == ':' || r == '%' })
}
