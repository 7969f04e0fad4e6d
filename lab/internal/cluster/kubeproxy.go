// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	_ "embed"
	"fmt"
	"strings"

	"github.com/weir-net/weir/lab/internal/images"
	"github.com/weir-net/weir/lab/internal/plan"
)

//go:embed kubeproxy.yaml
var kubeproxyYAML string

// kubeProxy deploys a kube-proxy. It needs no pod network, so it runs before there is one.
func (u *starter) kubeProxy(ctx context.Context) error {
	err := u.inControlPlane(ctx, []byte(kubeProxyManifest(u.l, u.o.Proxy.KubeProxyMode())), u.set.Path("kubectl"), "--kubeconfig", KubeconfigPath(u.s.Name),
		"apply", "-f", "-")
	if err != nil {
		return fmt.Errorf("deploy kube-proxy: %w", err)
	}
	return nil
}

// kubeProxyManifest is that of a kube-proxy in a mode.
func kubeProxyManifest(l *plan.Lab, mode string) string {
	return strings.NewReplacer("IMAGE", images.KubeProxyImage, "MODE", mode, "PODS", l.PodCIDRs(), "APISERVER", l.APIServer()).Replace(kubeproxyYAML)
}
