// SPDX-License-Identifier: Apache-2.0

// Package kernel reads and prepares what the data plane needs of the running kernel: features,
// clock, mounts, network namespaces, sysctls.
package kernel
