// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/weir-net/weir/lab/internal/nodespec"
)

// checkOther is check for labs whose pods are another network's.
func checkOther(o Options) error {
	if (o.Proxy.Calico() || o.Proxy.VPC()) && o.Family.Has6() {
		return errors.New("a lab with Calico, or with Amazon's VPC CNI, has IPv4 alone")
	}
	if !o.Proxy.VPC() {
		return nil
	}
	for _, program := range nodespec.AWSPrograms {
		if _, err := os.Stat(filepath.Join(o.Weir, program)); err != nil {
			return fmt.Errorf("Amazon's VPC CNI is missing: build it by make aws-vpc-cni: %w", err)
		}
	}
	return nil
}
