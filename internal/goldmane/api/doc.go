// SPDX-License-Identifier: Apache-2.0

// Package api holds the messages of Goldmane's APIs Flows and Statistics, which Calico's Whisker
// asks: what is on the wire is the same, the file is of our own.
package api

//go:generate go -C ../../../hack/tools run ./gen-proto internal/goldmane/api/goldmane.proto
