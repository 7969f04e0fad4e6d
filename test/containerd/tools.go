// SPDX-License-Identifier: Apache-2.0

//go:build tools

// Package containerd pins the container runtime that labs of Amazon VPC CNI have.
package containerd

import (
	_ "github.com/containerd/containerd/v2/cmd/containerd"
	_ "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"
)
