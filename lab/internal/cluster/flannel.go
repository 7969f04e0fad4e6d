// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/weir-net/weir/lab/internal/build"
	"github.com/weir-net/weir/lab/internal/images"
)

// flannel deploys flannel from its own manifest.
func (u *starter) flannel(ctx context.Context) error {
	src, err := (&build.Builder{Cache: u.o.Cache, Progress: u.p}).FlannelSource(ctx)
	if err != nil {
		return err
	}
	raw, err := os.ReadFile(filepath.Join(src, "Documentation", "kube-flannel.yml"))
	if err != nil {
		return fmt.Errorf("read flannel's manifest: %w", err)
	}
	manifest, err := flannelManifest(raw)
	if err != nil {
		return err
	}
	if err := u.inControlPlane(ctx, manifest, u.set.Path("kubectl"), "--kubeconfig", KubeconfigPath(u.s.Name), "apply", "--server-side", "-f", "-"); err != nil {
		return fmt.Errorf("deploy flannel: %w", err)
	}
	return nil
}

// flannelManifest is flannel's own, which has to name the release of the lab's image. The image of
// its CNI plugin is published apart; the lab has one for both, with a plugin of an older version of
// CNI.
func flannelManifest(raw []byte) ([]byte, error) {
	if !bytes.Contains(raw, []byte("image: "+images.FlannelImage+"\n")) {
		return nil, fmt.Errorf("flannel's manifest does not name %s", images.FlannelImage)
	}
	var out strings.Builder
	for line := range strings.Lines(string(raw)) {
		if indent, _, is := strings.Cut(line, "image: ghcr.io/flannel-io/flannel-cni-plugin:"); is {
			line = indent + "image: " + images.FlannelImage + "\n"
		}
		out.WriteString(strings.Replace(line, `"cniVersion": "1.0.0"`, `"cniVersion": "0.4.0"`, 1))
	}
	return []byte(out.String()), nil
}
