// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/weir-net/weir/internal/model"
)

// maxFailsafes bounds a list of ports: each is a rule of every host endpoint.
const maxFailsafes = 256

// failsafes is a field of a list of ports: in the resource objects of protocol, port and, where
// given, net; in the environment protocol:port or protocol:net:port, separated by commas, or the
// word none. def is what is in force without it.
func failsafes(name, env string, def []model.Failsafe, set func(*Effective, []model.Failsafe)) field {
	return field{name: name, env: env, def: failsafeText(def), allow: "a list such as tcp:22,udp:10.0.0.0/8:68, or none",
		apply: func(e *Effective, text string) ([]string, error) {
			list, err := parseFailsafes(text)
			if err != nil {
				return nil, err
			}
			if len(list) > maxFailsafes {
				return nil, fmt.Errorf("has %d ports, and %d are the most", len(list), maxFailsafes)
			}
			set(e, list)
			return nil, nil
		}}
}

func failsafeText(list []model.Failsafe) string {
	var words []string
	for _, f := range list {
		words = append(words, f.Protocol.String()+":"+strconv.Itoa(int(f.Port)))
	}
	return strings.Join(words, ",")
}

func parseFailsafes(text string) (out []model.Failsafe, _ error) {
	text = strings.TrimSpace(text)
	if strings.HasPrefix(text, "[") {
		var list []struct {
			Protocol string `json:"protocol"`
			Port     uint16 `json:"port"`
			Net      string `json:"net"`
		}
		if err := json.Unmarshal([]byte(text), &list); err != nil {
			return nil, fmt.Errorf("is not a list of ports: %v", err)
		}
		for _, p := range list {
			f, err := failsafe(p.Protocol, p.Net, strconv.Itoa(int(p.Port)))
			if err != nil {
				return nil, err
			}
			out = append(out, f)
		}
		return out, nil
	}
	if strings.EqualFold(text, "none") {
		return nil, nil
	}
	for _, w := range strings.Split(text, ",") {
		proto, rest, ok := strings.Cut(strings.TrimSpace(w), ":")
		if !ok {
			proto, rest = "tcp", proto
		}
		network, port := "", rest
		if i := strings.LastIndexByte(rest, ':'); i >= 0 {
			network, port = strings.Trim(rest[:i], "[]"), rest[i+1:]
		}
		f, err := failsafe(proto, network, port)
		if err != nil {
			return nil, err
		}
		out = append(out, f)
	}
	return out, nil
}

func failsafe(proto, network, port string) (f model.Failsafe, _ error) {
	switch strings.ToLower(proto) {
	case "tcp", "":
		f.Protocol = model.ProtocolTCP
	case "udp":
		f.Protocol = model.ProtocolUDP
	case "sctp":
		f.Protocol = model.ProtocolSCTP
	default:
		return f, fmt.Errorf("has the protocol %q, which is none of tcp, udp, sctp", proto)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return f, fmt.Errorf("has the port %q, which is not within 1..65535", port)
	}
	f.Port = uint16(n)
	if network == "" {
		return f, nil
	}
	if f.Net, err = cidr(network); err != nil {
		return f, err
	}
	if f.Net == netip.PrefixFrom(f.Net.Addr(), 0) && f.Net.Addr().IsUnspecified() && f.Net.Addr().Is4() {
		f.Net = netip.Prefix{} // 0.0.0.0/0: everybody, of IPv6 too
	}
	return f, nil
}
