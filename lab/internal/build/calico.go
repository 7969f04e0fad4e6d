// SPDX-License-Identifier: Apache-2.0

package build

import (
	"context"

	"github.com/weir-net/weir/lab/internal/again"
)

// CalicoVersion is the release of Calico that labs have. Its module bears another number.
const CalicoVersion = "v3.28.5"

const (
	calicoModule        = "github.com/projectcalico/calico"
	calicoModuleVersion = "v1.11.0-cni-plugin.0.20250813170300-a0db560f0520"
)

// calico is Calico's node daemon, its plugins (one program for CNI and IPAM, by the name that it is
// called by), and what installs these; and calicoctl, for a test.
func calico() Group {
	return Group{
		Name: "calico", Module: calicoModule, Version: calicoModuleVersion,
		// The API has a module of its own, which the archive of Calico's lacks.
		Replaced: map[string]string{"github.com/projectcalico/api": "v0.0.0-20240708202104-e3f70b269c2c"},
		Programs: []Program{
			{Name: "calico-node", Package: calicoModule + "/node/cmd/calico-node", Other: "calico"},
			{Name: "calico", Package: calicoModule + "/cni-plugin/cmd/calico", Other: "calico"},
			{Name: "install", Package: calicoModule + "/cni-plugin/cmd/install", Other: "calico"},
			{Name: "calicoctl", Package: calicoModule + "/calicoctl/calicoctl", Other: "calico", OnRequest: true},
		},
	}
}

// CalicoSource is the folder of Calico's module, with its manifests.
func (b *Builder) CalicoSource(ctx context.Context) (string, error) {
	if err := b.findGo(ctx); err != nil {
		return "", err
	}
	var dir string
	err := again.Do(ctx, func() (err error) {
		dir, err = b.download(ctx, calicoModule, calicoModuleVersion)
		return err
	})
	return dir, err
}
