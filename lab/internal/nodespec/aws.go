// SPDX-License-Identifier: Apache-2.0

package nodespec

import (
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/weir-net/weir/lab/internal/plan"
)

// AWSPrograms are those of a node in a VPC, which are in the folder of Weir's programs: Amazon's
// CNI plugins, the stand-in for its address daemon (test/awsvpc), and a container runtime of the
// kind that nodes of EKS have: containerd 2, with the Node Resource Interface.
var AWSPrograms = []string{"aws-cni", "egress-cni", "awsvpc", "containerd2/containerd", "containerd2/containerd-shim-runc-v2"}

const (
	awsConf   = Base + "/awsvpc.json"
	awsSocket = "/run/aws-node/ipamd.sock" // where the plugin looks for it
	awsLogs   = Logs + "/aws-routed-eni"
)

// aws adds what the DaemonSet aws-node puts on a node of EKS: the plugins, the network
// configuration of its image (misc/10-aws.conflist) with the values of its defaults, and a daemon
// that gives addresses.
func (s *Spec) aws(in Inputs, m plan.Machine) error {
	mtu := strconv.Itoa(plan.MTU)
	six := in.Lab.Family.Has6()
	egress := object{
		"name": "egress-cni", "type": "egress-cni", "mtu": mtu, "enabled": "false", "randomizeSNAT": "prng", "nodeIP": "",
		"ipam":          egressIPAM("fd00::ac:00/118", "::/0", "/run/cni/v4pd/egress-v6-ipam"),
		"pluginLogFile": awsLogs + "/egress-v6-plugin.log", "pluginLogLevel": "Debug",
	}
	if six { // pods have IPv4 besides, by the node's address
		egress["enabled"], egress["nodeIP"] = "true", m.Interfaces[0].Addr.String()
		egress["ipam"] = egressIPAM("169.254.172.0/22", "0.0.0.0/0", "/run/cni/v6pd/egress-v4-ipam")
		egress["pluginLogFile"] = awsLogs + "/egress-v4-plugin.log"
	}
	conf, err := json.MarshalIndent(object{
		"cniVersion": "0.4.0", "name": "aws-cni", "disableCheck": true,
		"plugins": []object{
			{
				"name": "aws-cni", "type": "aws-cni", "vethPrefix": "eni", "mtu": mtu, "podSGEnforcingMode": "strict",
				"pluginLogFile": awsLogs + "/plugin.log", "pluginLogLevel": "Debug",
				"capabilities": object{"io.kubernetes.cri.pod-annotations": true},
			},
			egress,
			{"type": "portmap", "capabilities": object{"portMappings": true}, "snat": true},
		},
	}, "", "  ")
	if err != nil {
		return fmt.Errorf("CNI configuration of %s: %w", m.Name, err)
	}
	s.file(cniConf+"/10-aws.conflist", 0o644, string(conf)+"\n")
	type elastic struct {
		MAC, Address, Subnet string
		Pods                 []string
	}
	var all []elastic
	for _, e := range m.Interfaces {
		of := elastic{MAC: e.MAC, Address: e.Addr.String(), Subnet: plan.VPC.String()}
		if six {
			of.Address = m.Addr.Addr().String()
		}
		for _, a := range e.Pods {
			of.Pods = append(of.Pods, a.String())
		}
		all = append(all, of)
	}
	daemon, err := json.MarshalIndent(object{"Socket": awsSocket, "VPC": []string{plan.VPC.String()}, "IPv6": six, "Interfaces": all}, "", "  ")
	if err != nil {
		return fmt.Errorf("addresses of %s: %w", m.Name, err)
	}
	s.file(awsConf, 0o644, string(daemon)+"\n")
	for _, plugin := range []string{"aws-cni", "egress-cni"} {
		s.file(cniBin+"/"+plugin, ModeLink, WeirPrograms+"/"+plugin)
	}
	for _, plugin := range []string{"host-local", "portmap"} {
		s.link(in, plugin)
	}
	s.Daemons = append(s.Daemons, Daemon{Name: "aws-node", Args: []string{
		"env", "AWS_VPC_ENI_MTU=" + mtu, "AWS_VPC_K8S_CNI_LOG_FILE=" + awsLogs + "/ipamd.log", "AWS_VPC_K8S_CNI_LOGLEVEL=DEBUG",
		WeirPrograms + "/awsvpc", "--config", awsConf,
	}})
	return nil
}

func egressIPAM(subnet, to, dir string) object {
	return object{"type": "host-local", "ranges": [][]object{{{"subnet": subnet}}}, "routes": []object{{"dst": to}}, "dataDir": dir}
}

// maxPods is how many pods a node may have: on EKS, as many as its interfaces have addresses for,
// and two with the node's own.
func maxPods(m plan.Machine) int {
	if len(m.Interfaces) == 0 || m.Families[0].PodCIDR.IsValid() {
		return 250
	}
	n := 2
	for _, e := range m.Interfaces {
		n += len(e.Pods)
	}
	return n
}
