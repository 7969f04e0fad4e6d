// SPDX-License-Identifier: Apache-2.0

package nodespec

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/weir-net/weir/lab/internal/plan"
	"sigs.k8s.io/yaml"
)

const (
	// PauseImage is the image of every pod's sandbox.
	PauseImage = "registry.k8s.io/pause:3.10.1"

	kubeletConf    = confDir + "/kubelet.conf"
	kubeletYAML    = confDir + "/kubelet.yaml"
	containerdTOML = "/etc/containerd/weir-lab.toml"
	cniBin         = "/opt/cni/bin"
	cniConf        = "/etc/cni/net.d"

	// ControlPlaneTaint keeps ordinary pods off the control-plane node.
	ControlPlaneTaint = "node-role.kubernetes.io/control-plane"
)

// node adds containerd, the kubelet and, where the lab itself makes the pod network,
// the CNI plugins.
func (s *Spec) node(in Inputs, c *Credentials, m plan.Machine) error {
	runtime, config := "containerd", containerdConfig // the machine's
	if in.SELinux {
		config = strings.Replace(config, criSettings, criSettings+"  enable_selinux = true\n", 1)
	}
	if in.Proxy.VPC() {
		runtime = WeirPrograms + "/containerd2/containerd" // it looks for its shim in the same folder
		config += nriValidator
	}
	s.file(containerdTOML, 0o644, config)
	s.Daemons = append(s.Daemons, Daemon{Name: "containerd", Args: []string{runtime, "--config", containerdTOML}})

	if in.Proxy.RoutesPods() {
		conf, err := cniConfig(m)
		if err != nil {
			return err
		}
		s.file(cniConf+"/10-lab.conflist", 0o644, conf)
		for _, p := range []string{"ptp", "host-local", "portmap"} {
			s.link(in, p)
		}
	}
	s.link(in, "loopback")
	after := []string{"unix://" + containerdSocket, Ready(in.Lab)}
	if in.Proxy.VPC() {
		if err := s.aws(in, m); err != nil {
			return err
		}
		after = append(after, "unix://"+awsSocket)
	}
	if in.Proxy.VNet() {
		if err := s.azure(in, m); err != nil {
			return err
		}
		after = append(after, "http://"+azureListen+"/healthz")
	}

	var nodeIPs []string
	for _, a := range m.Addrs() {
		nodeIPs = append(nodeIPs, a.String())
	}
	kubelet, err := kubeletConfig(in, m)
	if err != nil {
		return err
	}
	s.file(kubeletYAML, 0o644, kubelet)
	if err := s.kubeconfig(kubeletConf, c, m.Name); err != nil {
		return err
	}
	s.daemon(in, "kubelet", after,
		"--config="+kubeletYAML, "--kubeconfig="+kubeletConf, "--hostname-override="+m.Name,
		"--node-ip="+strings.Join(nodeIPs, ","), "--root-dir=/var/lib/kubelet", "--v=2")
	return nil
}

// link makes a CNI plugin of the lab available in the node. A file whose mode is a
// symbolic link's holds the link's target.
func (s *Spec) link(in Inputs, plugin string) {
	s.file(cniBin+"/"+plugin, ModeLink, Programs+"/"+in.Program(plugin))
}

// ModeLink marks a File as a symbolic link to its Content.
const ModeLink = 0o120000

// nriValidator has containerd from 2.2 on refuse containers whose pod's annotation names a plugin
// of NRI that is not there.
const nriValidator = `
[plugins."io.containerd.nri.v1.nri".default_validator]
  enable = true
`

const criSettings = `[plugins."io.containerd.grpc.v1.cri"]
`

// containerdConfig is for a machine whose root may not lower OOM scores, and
// leaves out the parts of containerd that a lab has no use for.
const containerdConfig = `version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs",
  "io.containerd.tracing.processor.v1.otlp",
  "io.containerd.internal.v1.tracing",
]

[grpc]
  address = "` + containerdSocket + `"

` + criSettings + `  sandbox_image = "` + PauseImage + `"
  restrict_oom_score_adj = true
  enable_unprivileged_ports = true
  enable_unprivileged_icmp = true

  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "` + cniBin + `"
    conf_dir = "` + cniConf + `"

  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"

      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        BinaryName = "runc"
        SystemdCgroup = false
`

// object is a piece of configuration.
type object = map[string]any

// cniConfig is a plain routed pod network: a point-to-point link to each pod, no
// encapsulation, no bridge.
func cniConfig(m plan.Machine) (string, error) {
	var ranges [][]object
	var routes []object
	for _, n := range m.Families {
		ranges = append(ranges, []object{{"subnet": n.PodCIDR.String()}})
		all := "0.0.0.0/0"
		if n.PodCIDR.Addr().Is6() {
			all = "::/0"
		}
		routes = append(routes, object{"dst": all})
	}
	raw, err := json.MarshalIndent(object{
		"cniVersion": "1.0.0",
		"name":       "lab",
		"plugins": []object{
			{
				"type": "ptp", "ipMasq": false, "mtu": plan.MTU,
				"ipam": object{"type": "host-local", "ranges": ranges, "routes": routes},
			},
			{"type": "portmap", "capabilities": object{"portMappings": true}},
		},
	}, "", "  ")
	if err != nil {
		return "", fmt.Errorf("CNI configuration of %s: %w", m.Name, err)
	}
	return string(raw) + "\n", nil
}

func kubeletConfig(in Inputs, m plan.Machine) (string, error) {
	c := object{
		"apiVersion": "kubelet.config.k8s.io/v1beta1",
		"kind":       "KubeletConfiguration",
		"authentication": object{
			"anonymous": object{"enabled": false},
			"webhook":   object{"enabled": true},
			"x509":      object{"clientCAFile": pkiDir + "/ca.crt"},
		},
		"authorization":            object{"mode": "Webhook"},
		"tlsCertFile":              pkiDir + "/kubelet.crt",
		"tlsPrivateKeyFile":        pkiDir + "/kubelet.key",
		"clusterDomain":            plan.ClusterDomain,
		"clusterDNS":               []string{in.Lab.DNS()[0].String()},
		"resolvConf":               "/etc/resolv.conf",
		"containerRuntimeEndpoint": "unix://" + containerdSocket,
		"volumePluginDir":          "/var/lib/kubelet/volumeplugins",

		"cgroupDriver":           "cgroupfs",
		"cgroupRoot":             "/", // of the node's cgroup namespace
		"failCgroupV1":           false,
		"enforceNodeAllocatable": []string{"pods"},
		"failSwapOn":             false,
		"oomScoreAdj":            0,
		"maxOpenFiles":           in.MaxFiles,

		// Images are imported once and cannot be pulled again.
		"imageGCHighThresholdPercent": 100,
		"imageGCLowThresholdPercent":  99,
		"evictionHard": object{
			"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%", "nodefs.inodesFree": "1%",
		},
		"nodeStatusUpdateFrequency": "5s",
		"nodeStatusReportFrequency": "1m",
		"syncFrequency":             "10s",
		// Tests kill agents many times: the n-th restart is to come as soon as the first one
		// (KEP-4603).
		"featureGates":     object{"KubeletCrashLoopBackOffMax": true},
		"crashLoopBackOff": object{"maxContainerRestartPeriod": "5s"},
		"maxPods":          maxPods(m),
	}
	if m.Role == plan.RoleControlPlane {
		c["registerWithTaints"] = []object{{"key": ControlPlaneTaint, "effect": "NoSchedule"}}
	}
	return encode("kubelet", m, c)
}

func encode(what string, m plan.Machine, c object) (string, error) {
	raw, err := yaml.Marshal(c)
	if err != nil {
		return "", fmt.Errorf("%s configuration of %s: %w", what, m.Name, err)
	}
	return string(raw), nil
}
