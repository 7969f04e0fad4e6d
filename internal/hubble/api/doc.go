// SPDX-License-Identifier: Apache-2.0

// Package api holds the messages of Hubble's API in its packages flow, observer, peer and relay.
// The .proto files are those of github.com/cilium/cilium v1.20.2, api/v1 (Apache-2.0, copyright
// authors of Hubble and Cilium), as they are. Go is made of them here because to require that
// module, which has no module for its API alone, raises Kubernetes' libraries and gRPC to the
// versions that it names.
package api

//go:generate go -C ../../../hack/tools run ./gen-proto -in internal/hubble/api relay/relay.proto flow/flow.proto observer/observer.proto peer/peer.proto
