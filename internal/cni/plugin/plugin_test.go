// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/weir-net/weir/internal/cni/wire"
)

const podArgs = "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=p;K8S_POD_UID=u-1"

func TestParse(t *testing.T) {
	conf := `{"cniVersion":"1.1.0","name":"weir","type":"weir-cni","mtu":1400,"ipam":{"assign_ipv4":false,"assign_ipv6":"True","ipv6_pools":["six"]},"unknown":{"a":1}}`
	req, c, err := parse("ADD", &skel.CmdArgs{ContainerID: "c", IfName: "eth0", Netns: "/n", Args: podArgs, StdinData: []byte(conf)})
	if err != nil {
		t.Fatal(err)
	}
	if c.Socket != wire.DefaultSocket || req.Network != "weir" || req.MTU != 1400 || req.IPv4 || !req.IPv6 || req.Pools6[0] != "six" ||
		req.Namespace != "ns" || req.Pod != "p" || req.UID != "u-1" || req.ContainerID != "c" || req.IfName != "eth0" || req.Netns != "/n" {
		t.Errorf("%+v %+v", req, c)
	}
	req, _, err = parse("ADD", &skel.CmdArgs{Args: podArgs, StdinData: []byte(`{"name":"weir"}`)})
	if err != nil || !req.IPv4 || req.IPv6 {
		t.Errorf("defaults: %+v %v", req, err)
	}
	req, _, err = parse("GC", &skel.CmdArgs{StdinData: []byte(`{"name":"weir","cni.dev/attachments":[{"containerID":"c","ifname":"eth0"}]}`)})
	if err != nil || len(req.Valid) != 1 || req.Valid[0].ContainerID != "c" {
		t.Errorf("%+v %v", req, err)
	}
}

// FuzzParse: no input makes the plugin panic, an error has a CNI code and a message, and what is
// accepted names a pod and fits on the wire.
func FuzzParse(f *testing.F) {
	for _, conf := range []string{`{"name":"weir","mtu":1400}`, `{"name":"weir","ipam":{"assign_ipv4":"true"}}`, `{`, `[]`, `null`,
		`{"name":"weir","prevResult":{"ips":[{"address":"10.0.0.1/32"}]}}`, `{"name":"weir","cni.dev/valid-attachments":[{"containerID":"c","ifname":"e"}]}`} {
		for _, command := range []string{"ADD", "DEL", "CHECK", "GC", "STATUS"} {
			f.Add(command, podArgs, conf)
		}
	}
	f.Add("ADD", "K8S_POD_NAME=../../x;=;;", `{"socket":"../x"}`)
	f.Fuzz(func(t *testing.T, command, args, conf string) {
		req, c, err := parse(command, &skel.CmdArgs{ContainerID: "c", IfName: "eth0", Netns: "/n", Args: args, StdinData: []byte(conf)})
		if err != nil {
			var e *types.Error
			if !errors.As(err, &e) || e.Code == 0 || e.Msg == "" {
				t.Fatalf("an error without a CNI code: %v", err)
			}
			return
		}
		if !strings.HasPrefix(c.Socket, "/") {
			t.Fatalf("socket %q", c.Socket)
		}
		if (command == "ADD" || command == "CHECK") && (req.Namespace == "" || req.Pod == "" || strings.ContainsAny(req.Namespace+req.Pod+req.UID, "/\x00\n;= ")) {
			t.Fatalf("accepted the pod %q/%q", req.Namespace, req.Pod)
		}
		if _, err := json.Marshal(req); err != nil {
			t.Fatal(err)
		}
	})
}
