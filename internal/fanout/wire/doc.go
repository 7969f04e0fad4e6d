// SPDX-License-Identifier: Apache-2.0

// Package wire is how a fan-out sends an agent what changed of the part of the cluster that its
// node needs: model.Changes as messages of wire.proto, which says what they mean and how a receiver
// reads those of another version. An Encoder cuts large changes into several messages; a Decoder
// shares texts, labels and ports among pods. It makes and reads bytes: how they are transported is
// not here.
package wire

//go:generate go -C ../../../hack/tools run ./gen-proto internal/fanout/wire/wire.proto

// Version is of the messages that are made and read; receivers refuse every other one.
const Version = 1

const (
	// Size is at how many bytes an Encoder begins another message. A message is larger by the last
	// object in it.
	Size = 1 << 20
	// MostSize is the largest message that a Decoder reads. One object makes at most some 4.5 MiB:
	// the API stores 1.5 MiB of it, where an empty rule has two bytes; here it has six, and what
	// says more grows less.
	MostSize = 8 << 20
)
