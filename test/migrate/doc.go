// SPDX-License-Identifier: Apache-2.0

// Package migrate tries weir migrate in labs that run another network plugin. Its tests need root
// and what hack/setup.sh brings, bring their labs up themselves, and are run by `make e2e-migrate`
// (build tag lab).
package migrate
