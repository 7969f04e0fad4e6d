// Package policyapi pins the module of policy.networking.k8s.io: deploy/gen takes its definitions, and its conformance suite is built
// from here. It is a module of its own, since the suite's dependencies are none of Weir's; they are held at the Kubernetes version that
// Weir has.
package policyapi

import (
	_ "sigs.k8s.io/network-policy-api/conformance/tests"
	_ "sigs.k8s.io/network-policy-api/conformance/utils/flags"
	_ "sigs.k8s.io/network-policy-api/conformance/utils/suite"
)
