// SPDX-License-Identifier: Apache-2.0

// Package attach attaches programs to sites: hooks of interfaces (tcx links, clsact filters where
// the kernel has no tcx and behind the links of pods, XDP) and of the control group. Links are
// pinned, and those of an earlier run are reused: their program is replaced in place, so that no
// packet goes unseen. Which program belongs where is the driver's to say; this package knows what
// is attached, checks that it still is, and attaches it again.
package attach
