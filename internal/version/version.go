// SPDX-License-Identifier: Apache-2.0

// Package version holds the version of this build.
package version

// Version is set at link time.
var Version = "dev"
