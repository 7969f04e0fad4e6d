// SPDX-License-Identifier: Apache-2.0

package nodespec

import (
	"net/netip"
	"slices"
	"strconv"

	"github.com/weir-net/weir/lab/internal/plan"
)

var (
	loopback       = netip.MustParseAddr("127.0.0.1")
	apiServerNames = []string{
		plan.ControlPlane, "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc",
		"kubernetes.default.svc." + plan.ClusterDomain,
	}
)

const (
	etcdURL     = "http://127.0.0.1:2379"
	etcdPeerURL = "http://127.0.0.1:2380"
	confDir     = "/etc/kubernetes"
)

// Ready is what the API server answers once it serves.
func Ready(l *plan.Lab) string { return l.APIServer() + "/readyz" }

// controlPlane adds etcd, the API server and its controllers.
func (s *Spec) controlPlane(in Inputs, c *Credentials) error {
	s.pair("apiserver", c.issued["apiserver"])
	s.pair("apiserver-kubelet", c.issued["apiserver-kubelet"])
	s.pair("front-proxy", c.issued["front-proxy"])
	s.file(pkiDir+"/ca.key", 0o600, string(c.Authority.CA().Key))
	s.file(pkiDir+"/sa.pub", 0o644, string(c.tokens.Cert))
	s.file(pkiDir+"/sa.key", 0o600, string(c.tokens.Key))
	for _, who := range []string{"controller-manager", "scheduler"} {
		if err := s.kubeconfig(confDir+"/"+who+".conf", c, who); err != nil {
			return err
		}
	}
	// The lab is thrown away with its store, so nothing is gained by syncing it.
	s.daemon(in, "etcd", nil,
		"--name="+plan.ControlPlane, "--data-dir=/var/lib/etcd", "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls="+etcdURL, "--advertise-client-urls="+etcdURL,
		"--listen-peer-urls="+etcdPeerURL, "--initial-advertise-peer-urls="+etcdPeerURL,
		"--initial-cluster="+plan.ControlPlane+"="+etcdPeerURL)
	var gates []string
	if in.FeatureGates != "" {
		gates = []string{"--feature-gates=" + in.FeatureGates}
	}
	s.daemon(in, "kube-apiserver", nil, append(apiServerFlags(in.Lab), gates...)...)
	kubeconfig := func(who string) []string {
		f := confDir + "/" + who + ".conf"
		return []string{"--kubeconfig=" + f, "--authentication-kubeconfig=" + f, "--authorization-kubeconfig=" + f,
			"--bind-address=127.0.0.1", "--leader-elect=false"}
	}
	// At its usual rate of requests, the controllers take five seconds to start.
	s.daemon(in, "kube-controller-manager", []string{Ready(in.Lab)}, append(append(kubeconfig("controller-manager"), gates...),
		"--kube-api-qps=200", "--kube-api-burst=400",
		"--use-service-account-credentials=true", "--service-account-private-key-file="+pkiDir+"/sa.key",
		"--root-ca-file="+pkiDir+"/ca.crt", "--client-ca-file="+pkiDir+"/ca.crt",
		"--cluster-signing-cert-file="+pkiDir+"/ca.crt", "--cluster-signing-key-file="+pkiDir+"/ca.key",
		"--controllers=*,bootstrapsigner,tokencleaner",
		"--allocate-node-cidrs="+strconv.FormatBool(in.Proxy == plan.ProxyFlannel), "--cluster-cidr="+in.Lab.PodCIDRs(), "--service-cluster-ip-range="+in.Lab.ServiceCIDRs())...)
	s.daemon(in, "kube-scheduler", []string{Ready(in.Lab)}, kubeconfig("scheduler")...)
	return nil
}

// apiServerAddrs are the addresses that the API server's certificate is for.
func apiServerAddrs(l *plan.Lab) []netip.Addr {
	return slices.Concat([]netip.Addr{loopback}, l.KubernetesService(), l.Nodes()[0].Addrs())
}

func apiServerFlags(l *plan.Lab) []string {
	all := "0.0.0.0"
	if l.Family.Has6() {
		all = "::" // both families
	}
	return []string{
		"--etcd-servers=" + etcdURL,
		"--bind-address=" + all, "--secure-port=6443", "--advertise-address=" + l.APIServerIP().String(),
		"--service-cluster-ip-range=" + l.ServiceCIDRs(), "--service-node-port-range=30000-32767",
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true",
		"--client-ca-file=" + pkiDir + "/ca.crt",
		"--tls-cert-file=" + pkiDir + "/apiserver.crt", "--tls-private-key-file=" + pkiDir + "/apiserver.key",
		"--kubelet-client-certificate=" + pkiDir + "/apiserver-kubelet.crt", "--kubelet-client-key=" + pkiDir + "/apiserver-kubelet.key",
		"--kubelet-certificate-authority=" + pkiDir + "/ca.crt", "--kubelet-preferred-address-types=InternalIP",
		"--service-account-issuer=https://kubernetes.default.svc." + plan.ClusterDomain,
		"--service-account-key-file=" + pkiDir + "/sa.pub", "--service-account-signing-key-file=" + pkiDir + "/sa.key",
		"--requestheader-client-ca-file=" + pkiDir + "/ca.crt", "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-username-headers=X-Remote-User",
		"--proxy-client-cert-file=" + pkiDir + "/front-proxy.crt", "--proxy-client-key-file=" + pkiDir + "/front-proxy.key",
		"--enable-aggregator-routing=true",
	}
}
