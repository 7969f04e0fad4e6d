// SPDX-License-Identifier: Apache-2.0

package build

import (
	"context"
	_ "embed"

	"github.com/weir-net/weir/lab/internal/again"
)

// FlannelVersion is the release of flannel that labs have, and FlannelCNIVersion that of the CNI
// plugins with which flannel's own plugin was published as a Go module.
const (
	FlannelVersion    = "v0.28.10"
	FlannelCNIVersion = "v0.9.1"
)

const flannelModule = "github.com/flannel-io/flannel"

//go:embed files/flanneld.go.txt
var flannelSource string

// flannel is flannel's daemon, and its CNI plugin, which has the plugin bridge do the work.
func flannel() []Group {
	return []Group{
		// It is a client of Kubernetes, and shares what is compiled for that.
		{Name: "flannel", Module: flannelModule, Version: FlannelVersion, OnKubernetes: true, Source: flannelSource, Programs: []Program{
			{Name: "flanneld", Package: ".", Other: "flannel"},
		}},
		{Name: "flannel-cni", Module: "github.com/containernetworking/plugins", Version: FlannelCNIVersion, Programs: []Program{
			{Name: "flannel", Package: "github.com/containernetworking/plugins/plugins/meta/flannel", Other: "flannel"},
		}},
	}
}

// FlannelSource is the folder of flannel's module, with its manifest.
func (b *Builder) FlannelSource(ctx context.Context) (string, error) {
	if err := b.findGo(ctx); err != nil {
		return "", err
	}
	var dir string
	err := again.Do(ctx, func() (err error) {
		dir, err = b.download(ctx, flannelModule, FlannelVersion)
		return err
	})
	return dir, err
}
