// Package policyapi pins the module of policy.networking.k8s.io, whose conformance suite `make e2e-policy-api` runs and whose
// definitions deploy/gen takes. It is a module of its own: the suite's dependencies are none of Weir's.
package policyapi

import (
	_ "sigs.k8s.io/network-policy-api/conformance/tests"
	_ "sigs.k8s.io/network-policy-api/conformance/utils/flags"
	_ "sigs.k8s.io/network-policy-api/conformance/utils/suite"
)
