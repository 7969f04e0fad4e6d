// SPDX-License-Identifier: Apache-2.0

// Package shape holds pods to the bandwidth that they may have, by queues of the kernel (TBF): for
// what a pod gets, at the host side of its interface; for what it sends, at a device of the node
// through which a data plane leads its packets before it evaluates them. Nothing of it is in the
// pod, which may have the rights to change its own side. Both data planes make their queues with
// it, each with the kind of device that suits it.
package shape
