// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/weir-net/weir/lab/internal/nodespec"
	"github.com/weir-net/weir/lab/internal/plan"
)

// checkOther is check for labs whose pods are another network's.
func checkOther(o Options) error {
	if (o.Proxy.Other() != "" || o.Proxy.VNet()) && o.Family.Has6() {
		return errors.New("a lab with Calico or flannel, or with Azure CNI, has IPv4 alone")
	}
	if o.Racks && (o.Proxy.VPC() || o.Proxy.VNet()) {
		return errors.New("--racks: a lab with the CNI plugin of a cloud has one network for all nodes")
	}
	var programs []string
	var make string
	switch {
	case o.Proxy.VPC():
		programs, make = nodespec.AWSPrograms, "aws-vpc-cni"
	case o.Proxy.VNet():
		programs, make = nodespec.AzurePrograms, "azure-cni"
	}
	for _, program := range programs {
		if _, err := os.Stat(filepath.Join(o.Weir, program)); err != nil {
			return fmt.Errorf("a program of the cloud's nodes is missing: build it by make %s: %w", make, err)
		}
	}
	return nil
}

// withoutWeir says what such a lab does before Weir is installed.
func withoutWeir(p plan.Proxy) string {
	if p.KubeProxyMode() != "" {
		return "pods are routed, and kube-proxy carries Services; Weir is not installed (--no-install)"
	}
	return "pods are routed; nobody carries Services until Weir is installed (--no-install)"
}
