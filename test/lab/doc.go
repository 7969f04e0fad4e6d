// SPDX-License-Identifier: Apache-2.0

// Package lab tests Weir as a whole: a real Kubernetes in the lab, its API server, kubelets and
// container runtime, with real pods, sockets and clients.
//
// Its tests have the build tag lab, so that what is not run is not counted as passed:
//
//	go test -tags lab ./test/lab                  # one lab for all, removed at the end
//	go test -tags lab ./test/lab -lab NAME        # in a lab that is there
//	go test -tags lab ./test/lab -run TestPolicy
//
// They need root, the programs in bin/ (make build) and a filled cache (weir-lab build). Figures go
// to out/lab.json. Whatever dials an address of the lab does so from one of the lab's network
// namespaces.
package lab
