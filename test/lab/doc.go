// SPDX-License-Identifier: Apache-2.0

// Package lab tests Weir as a whole: a real Kubernetes in the lab, its API server, kubelets and
// container runtime, with real pods, sockets and clients.
//
// Its tests have the build tag lab, so that what is not run is not counted as passed:
//
//	go test -tags lab ./test/lab                  # labs of its own, removed at the end
//	go test -tags lab ./test/lab -lab NAME        # in a lab that is there
//	go test -tags lab ./test/lab -run TestPolicy
//
// Most have one lab in common, and a base of pods and Services in it (sharedBase); TestDualStack
// and TestFromKubeProxy have one each. Tests of different labs run in parallel at the end, those
// that wait most of the time; figures are those of a machine with nothing else to do with -judge
// only.
//
// They need root, the programs in bin/ (make build) and a filled cache (weir-lab build). Figures go
// to out/lab.json. Whatever dials an address of the lab does so from one of the lab's network
// namespaces.
package lab
