// SPDX-License-Identifier: Apache-2.0

// Package subject finds the policies that select a pod or a host endpoint, in the order in which
// they are looked at. What nobody knows of a pod yet, its labels or those of its namespace, may be
// anything: then every policy that could select it does.
package subject
