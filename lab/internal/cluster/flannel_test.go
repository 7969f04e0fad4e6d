// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"strings"
	"testing"

	"github.com/weir-net/weir/lab/internal/images"
)

// TestFlannelManifest: the plugin's image is the lab's; another release of flannel is not run.
func TestFlannelManifest(t *testing.T) {
	const of = "      - image: ghcr.io/flannel-io/flannel-cni-plugin:v9\n        image: "
	raw, err := flannelManifest([]byte(of + images.FlannelImage + "\n"))
	if err != nil || strings.Count(string(raw), "image: "+images.FlannelImage+"\n") != 2 {
		t.Errorf("%v: %s", err, raw)
	}
	if _, err := flannelManifest([]byte(of + "ghcr.io/flannel-io/flannel:v0.1.0\n")); err == nil {
		t.Error("another release is taken")
	}
}
