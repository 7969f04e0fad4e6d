// SPDX-License-Identifier: Apache-2.0

// Package api has the messages of the Node Resource Interface that holding the start of pods takes.
// The module of that interface has all of them, in a package that brings a WebAssembly runtime,
// which an agent has no use for.
package api

//go:generate go -C ../../../../hack/tools run ./gen-proto internal/agent/nri/api/nri.proto
